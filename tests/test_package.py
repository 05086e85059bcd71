"""What a stranger meets first: the import, the command, the names."""

import os
import subprocess
import sys

import pytest

import spml

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def python(code):
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_is_quick_and_light():
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


def test_help_does_not_wait_for_torch():
    code = "import sys; import spml.cli; print('torch' in sys.modules)"
    assert python(code) == "False"


def test_help_is_quick():
    """Half a second of processor time, of which a busy machine takes no more than the best of several tries shows."""
    code = "import sys, time; sys.argv = ['spml', '--help']\nfrom spml.cli import app\n"
    code += "try: app()\nexcept SystemExit: pass\nprint(time.process_time(), file=sys.stderr)"
    tries = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
        assert "quickstart" in done.stdout
        tries.append(float(done.stderr.split()[-1]))
    assert min(tries) < 0.5


def test_every_public_name_is_there():
    for name in spml.__all__:
        assert getattr(spml, name) is not None
    assert set(spml.__all__) <= set(dir(spml))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        spml.nothing  # noqa: B018
