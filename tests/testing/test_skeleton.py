"""The package skeleton: its tests pass, and once installed its method is found."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from spml.errors import InputError
from spml.testing import write_method_package

SOURCE = Path(__file__).parents[2] / "src"


def run(*command, folder, path=SOURCE):
    environment = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)


def test_the_tests_of_a_new_package_pass(tmp_path):
    write_method_package("my-loss", tmp_path / "new")
    result = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder=tmp_path / "new")
    assert "4 passed" in result.stdout
    protocol = tomllib.loads((tmp_path / "new" / "compare.toml").read_text())
    assert list(protocol["methods"]) == ["an", "em", "auto", "my-loss"]


def test_an_installed_package_is_found(tmp_path):
    write_method_package("my-loss", tmp_path / "new")
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "--target", str(tmp_path / "site"), ".", folder=tmp_path / "new")
    path = f"{SOURCE}{os.pathsep}{tmp_path / 'site'}"
    result = run(sys.executable, "-m", "spml", "methods", folder=tmp_path, path=path)
    assert "my-loss" in result.stdout
    assert "unpublished" in result.stdout


@pytest.mark.parametrize("name", ["My-Loss", "1st", "a_b", "", "a--b", "../x", "für"])
def test_invalid_names_raise(name, tmp_path):
    with pytest.raises(InputError, match="is not a method name"):
        write_method_package(name, tmp_path / "new")


def test_taken_names_and_folders_raise(tmp_path):
    with pytest.raises(InputError, match="A method named 'em' exists already"):
        write_method_package("em", tmp_path / "new")
    with pytest.raises(InputError, match=r"exists already\. Choose another folder"):
        write_method_package("my-loss", tmp_path)
    assert not list(tmp_path.iterdir())
