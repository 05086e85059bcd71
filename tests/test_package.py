"""The package as a user meets it first: import, `spml --help`, public names."""

import inspect
import os
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import spml

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def python(code):
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_is_fast_and_light():
    code = """
import sys, time, torch
start = time.process_time()
import spml
spml.loss("an"), spml.Labels, spml.metrics.average_precision
took = time.process_time() - start
heavy = [name for name in ("torchvision", "timm", "matplotlib", "sklearn", "lightning") if name in sys.modules]
print(took, *heavy)
"""
    took, *heavy = python(code).split()
    assert heavy == []
    assert float(took) < 0.3


def test_help_does_not_import_torch():
    code = "import sys; import spml.cli; print('torch' in sys.modules)"
    assert python(code) == "False"


def test_help_is_fast():
    """At most half a second of processor time; the best of three attempts, as other processes only add to it."""
    code = "import sys, time; sys.argv = ['spml', '--help']\nfrom spml.cli import app\n"
    code += "try: app()\nexcept SystemExit: pass\nprint(time.process_time(), file=sys.stderr)"
    attempts = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
        assert "quickstart" in done.stdout
        attempts.append(float(done.stderr.split()[-1]))
    assert min(attempts) < 0.5


def test_importing_spml_alone_imports_no_dependency():
    code = "import sys, spml; print(*sorted({'torch', 'numpy', 'onnx', 'huggingface_hub', 'rich'} & set(sys.modules)))"
    assert python(code) == ""


def test_public_names_exist():
    for name in spml.__all__:
        assert getattr(spml, name) is not None
    assert set(spml.__all__) <= set(dir(spml))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        spml.nothing  # noqa: B018


@pytest.mark.parametrize("name", [name for name in spml.__all__ if name != "InputError"])
def test_public_names_are_documented_with_an_example(name):
    """The examples run as doctests."""
    assert ">>> " in inspect.getdoc(getattr(spml, name))


def test_help_of_train_documents_its_options():
    text = pydoc.render_doc(spml.train, renderer=pydoc.plaintext)
    assert "Train a multi-label classifier from one observed label per example." in text
    assert "batch_size : int" in text


def test_train_has_the_options_of_the_command():
    """Options of the data format are passed on to `open_data`."""
    from spml.cli.train import command

    names = set(inspect.signature(command).parameters)
    of_data = {"kind", "image_column", "label_column", "class_columns", "zeros", "image_root", "labels", "on_bad_image"}
    of_data |= {"text_column", "split_column", "id_column"}
    expected = (names - of_data - {"setting", "imports"}) | {"settings", "progress", "options"}
    assert set(inspect.signature(spml.train).parameters) == expected


WITHOUT_TRAINING_PACKAGES = """
import sys
from pathlib import Path

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("PIL", "msgspec", "pyarrow", "scipy", "sklearn", "timm", "torchvision"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def test_losses_need_only_the_required_packages():
    """The extra "train" is not needed for losses, labels, metrics and methods."""
    code = """
import torch, spml
labels = spml.Labels.from_names(["cat", "dog"], ["cat", "dog"]).batch([0, 1])
assert spml.loss("em")(torch.zeros(2, 2), labels).isfinite()
spml.metrics.mean_average_precision(torch.rand(2, 2), labels == 1)
spml.method("auto")
try:
    spml.train
except spml.InputError as error:
    print(error)
"""
    message = python(WITHOUT_TRAINING_PACKAGES + code)
    assert message.endswith('which is not installed: pip install ".[train]" in the checkout of spml')
    assert message.startswith("spml.train needs the package ")


def test_commands_without_their_packages_name_the_extra():
    code = WITHOUT_TRAINING_PACKAGES + "sys.argv = ['spml', 'train', 'scenes', '--out', 'x']\n"
    code += "from spml.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("spml: this command needs the package ")
    assert len(done.stderr.splitlines()) == 1


def test_citation_has_the_version_of_the_package():
    text = (Path(__file__).resolve().parents[1] / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {spml.__version__}\n" in text
