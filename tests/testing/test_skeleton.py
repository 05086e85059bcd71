"""The package skeleton: its tests pass, and once installed its method is found."""

import csv
import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from spml.cli import new_method
from spml.errors import InputError
from spml.methods import METHODS
from spml.testing import write_method_package
from spml.type_checks import type_name
from support.bench_pack import write_pack

SOURCE = Path(__file__).parents[2] / "src"


def run(*command, folder, path=SOURCE):
    environment = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)


def install(package, site):
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "--target", str(site), ".", folder=package)


def test_the_tests_of_a_new_package_pass(tmp_path):
    write_method_package("my-loss", tmp_path / "new")
    result = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder=tmp_path / "new")
    assert "4 passed" in result.stdout
    assert "def my_loss(" in (tmp_path / "new" / "src" / "spml_my_loss" / "__init__.py").read_text()
    protocol = tomllib.loads((tmp_path / "new" / "compare.toml").read_text())
    assert list(protocol["methods"]) == ["an", "em", "auto", "my-loss"]
    project = tomllib.loads((tmp_path / "new" / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []  # spml of PyPI is an unrelated package


def test_the_skeleton_declares_the_range_of_its_setting_and_its_threshold(tmp_path, monkeypatch):
    write_method_package("ranged", tmp_path / "new")
    monkeypatch.syspath_prepend(str(tmp_path / "new" / "src"))
    monkeypatch.setattr(METHODS, "data", dict(METHODS.data))
    importlib.import_module("spml_ranged")
    assert type_name(METHODS["ranged"].setting_types()["threshold"]) == "between 0 and 1"
    assert "f1_threshold=0.5" in (tmp_path / "new" / "src" / "spml_ranged" / "__init__.py").read_text()


def test_the_command_prints_the_comparison_of_the_readme(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    new_method.command("my-loss")
    (comparison,) = re.findall(r"spml bench .*", capsys.readouterr().out)
    assert comparison in (tmp_path / "my-loss" / "README.md").read_text()


def test_an_installed_package_is_found(tmp_path):
    write_method_package("my-loss", tmp_path / "new")
    install(tmp_path / "new", tmp_path / "site")
    path = f"{SOURCE}{os.pathsep}{tmp_path / 'site'}"
    result = run(sys.executable, "-m", "spml", "methods", folder=tmp_path, path=path)
    assert "my-loss" in result.stdout
    assert "unpublished" in result.stdout


@pytest.mark.parametrize("name", ["My-Loss", "1st", "a_b", "", "a--b", "../x", "für"])
def test_invalid_names_raise(name, tmp_path):
    with pytest.raises(InputError, match="is not a method name"):
        write_method_package(name, tmp_path / "new")


def test_taken_names_and_folders_raise(tmp_path):
    with pytest.raises(InputError, match="A method named 'em' already exists"):
        write_method_package("em", tmp_path / "new")
    with pytest.raises(InputError, match=r"already exists\. Choose another folder"):
        write_method_package("my-loss", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_changed_formula_gives_new_numbers(tmp_path):
    """Install the package, compare its method in worker processes, change the formula, and compare again."""
    folder, site = tmp_path / "new", tmp_path / "site"
    write_method_package("my-loss", folder)
    install(folder, site)
    protocol = folder / "compare.toml"
    protocol.write_text(protocol.read_text().replace("batch_size = 64", "batch_size = 8"))
    data = f"scenes={write_pack(tmp_path / 'pack')}"  # a few small images in place of 9,000 scenes
    options = {"data": data, "methods": "an,my-loss", "seeds": "0", "workers": "2", "device": "cpu", "out": "bench"}
    bench = ["bench", str(protocol), *(word for name, value in options.items() for word in (f"--{name}", value))]

    def scores():
        result = run(sys.executable, "-m", "spml", *bench, folder=tmp_path, path=f"{SOURCE}{os.pathsep}{site}")
        with (tmp_path / "bench" / "runs.csv").open() as table:
            return result.stdout, {row["method"]: row["test_map"] for row in csv.DictReader(table)}

    _, before = scores()
    code = site / "spml_my_loss" / "__init__.py"
    code.write_text(code.read_text().replace("torch.where(ignored, 0.0, ", "torch.where(labels == 0, 0.1, 1.0) * ("))
    output, after = scores()
    assert "1 run to do, 1 already done" in output
    assert after["an"] == before["an"]
    assert after["my-loss"] != before["my-loss"]
