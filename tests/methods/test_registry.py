"""Plug-ins: entry points, imports by name and by path, name clashes, and broken packages."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from spml.errors import InputError
from spml.losses import assume_negative
from spml.losses.zhou import entropy_maximisation
from spml.methods import METHODS, loss_method, method, registry
from spml.methods.registry import import_plugins, imported_plugins

SOURCE = Path(__file__).parents[2] / "src"
CODE = """
from spml.methods import loss_method

def squared(logits, labels, *, weight=1.0):
    return weight * (logits.sigmoid() - (labels > 0).float()) ** 2

loss_method({name!r}, squared, paper="none", summary="A test.")
"""


def install(folder, package, name, code=CODE):
    """Write an importable module and the metadata of a distribution with an entry point."""
    (folder / f"{package}.py").write_text(code.format(name=name))
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[spml.methods]\n{package} = {package}\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path, with a registry that has not loaded plug-ins yet."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(METHODS, "loaded", False)
    monkeypatch.setattr(registry, "_broken", {})
    monkeypatch.setattr(registry, "_imported", [])
    return tmp_path


def test_installed_plugins_load_when_they_are_needed(site):
    install(site, "plugin_one", "one")
    method("em")
    assert "plugin_one" not in sys.modules  # ours need no plug-in
    assert "one" in METHODS
    assert "plugin_one" in sys.modules
    assert method("one", weight=2.0).settings.weight == 2.0
    assert METHODS["one"].__module__ == "plugin_one"


def test_a_broken_plugin_is_reported_and_left_out(site):
    install(site, "plugin_bad", "bad", CODE + "\nimport no_such_module\n")
    install(site, "plugin_good", "good")
    with pytest.warns(UserWarning, match="The plug-in package 'plugin_bad' cannot be loaded .*no_such_module"):
        names = set(METHODS)
    assert "good" in names
    assert "bad" not in names
    assert list(registry._broken) == ["plugin_bad"]
    with pytest.raises(InputError, match=r"No method named 'bad'\..* plug-in package 'plugin_bad'"):
        method("bad")


def test_the_command_reports_a_broken_plugin_in_one_sentence(tmp_path):
    install(tmp_path, "plugin_bad", "bad", CODE + "\nimport no_such_module\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(tmp_path)])}
    command = [sys.executable, "-m", "spml", "methods"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "annotator-em" in result.stdout
    assert result.stderr.startswith("spml: The plug-in package 'plugin_bad' cannot be loaded")
    assert result.stderr.count("\n") == 1


def test_name_clashes_are_errors(site):
    with pytest.raises(InputError, match=r"Method 'em' of test_registry is already registered by spml\.methods\.zhou"):
        loss_method("em", entropy_maximisation, paper="none", summary="A test.")
    install(site, "plugin_one", "same")
    install(site, "plugin_two", "same")
    with pytest.warns(UserWarning, match="'same' of plugin_.* is already registered by plugin_"):
        list(METHODS)
    assert METHODS["same"].__module__ in ("plugin_one", "plugin_two")
    for _ in range(2):  # running a cell of a notebook twice replaces the method
        loss_method("mine", assume_negative, paper="none", summary="A test.")


def test_import_by_name_and_by_path(site, monkeypatch):
    folder = site / "elsewhere"
    folder.mkdir()
    (folder / "plugin_file.py").write_text(CODE.format(name="by-path"))
    (folder / "plugin_module.py").write_text(CODE.format(name="by-name"))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (folder / "plugin_package").mkdir()
    (folder / "plugin_package" / "__init__.py").write_text("from . import formula\n")
    (folder / "plugin_package" / "formula.py").write_text(CODE.format(name="by-init"))
    import_plugins(["plugin_package/__init__.py"])
    assert METHODS["by-init"].__module__ == "plugin_package.formula"
    import_plugins(["plugin_file.py", "plugin_module"])
    assert {"by-path", "by-name"} <= set(METHODS)
    assert imported_plugins()[1:] == (str(folder / "plugin_file.py"), "plugin_module")
    import_plugins(imported_plugins())  # as worker processes do
    assert len(imported_plugins()) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("plugin_missing", "Cannot import the plug-in 'plugin_missing': ModuleNotFoundError: No module named"),
        ("missing.py", "Cannot import the plug-in 'missing.py': the file does not exist"),
        ("json.py", "a module named 'json' is already imported; rename the file"),
        ("plugin_syntax.py", "Cannot import the plug-in 'plugin_syntax.py': SyntaxError"),
    ],
)
def test_imports_that_fail_are_errors(site, monkeypatch, name, message):
    monkeypatch.chdir(site)
    (site / "json.py").touch()
    (site / "plugin_syntax.py").write_text("def (")
    with pytest.raises(InputError, match=message):
        import_plugins([name])
    assert imported_plugins() == ()


def test_without_plugins_nothing_warns():
    code = "import spml.methods; print(len(spml.methods.METHODS))"
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) >= 37
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(METHODS)
    assert not registry._broken
