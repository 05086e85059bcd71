"""`spml doctor`: versions, devices, and which extras are complete."""

import torch
from typer.testing import CliRunner

import spml
from spml.cli import app, doctor


def doctor_output(monkeypatch, requirements, installed):
    def version(package):
        if package not in installed:
            raise doctor.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(doctor, "requires", lambda name: requirements)
    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    return result.output


def test_doctor_prints_versions_and_device(monkeypatch):
    output = doctor_output(monkeypatch, [], {})
    assert spml.__version__ in output
    assert torch.__version__ in output
    assert torch.cuda.is_available() or "none: training uses the CPU" in output
    assert "Extras" not in output


def test_doctor_lists_installed_and_missing_packages_of_each_extra(monkeypatch):
    declared = [
        "torch>=2.6",
        "timm>=1.0.12; extra == 'train'",
        'ray[data]>=2.40; extra == "ray"',
        "pytest>=8.3; extra == 'dev'",
        "spml[train]; extra == 'lite'",
    ]
    output = doctor_output(monkeypatch, declared, {"timm": "1.0.30"})
    (train,) = [line for line in output.splitlines() if line.startswith("│ train")]
    (ray,) = [line for line in output.splitlines() if line.startswith("│ ray")]
    assert "timm 1.0.30" in train
    assert ray.split("│")[3].strip() == "ray>=2.40"
    assert "pytest" not in output
    assert "lite" not in output


def test_packages_of_train_are_listed_once(monkeypatch):
    declared = [  # extras that include `train` repeat its packages
        "timm>=1.0.12; extra == 'hub'",
        "huggingface_hub>=0.27; extra == 'hub'",
        "timm>=1.0.12; extra == 'train'",
    ]
    output = doctor_output(monkeypatch, declared, {"timm": "1.0.30", "huggingface_hub": "1.0"})
    assert output.count("timm") == 1
    assert output.index("│ train") < output.index("│ hub")
    assert "Install an extra" not in output


def test_doctor_names_the_command_that_installs_an_extra(monkeypatch):
    output = doctor_output(monkeypatch, ["optuna>=4; extra == 'search'"], {})
    assert 'pip install ".[search]" in the checkout' in output


def test_doctor_works_from_a_source_tree(monkeypatch):
    def requires(name):
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", requires)
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0
