"""Triton kernels without a GPU, run by its interpreter."""

import os
import subprocess
import sys

import pytest


def run_interpreted(program: str) -> str:
    """The output of a program in a new process: the interpreter must be chosen before Triton is imported."""
    pytest.importorskip("triton")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    if "only 0-dimensional arrays can be converted" in done.stderr and "in _new_range" in done.stderr:
        pytest.skip("Triton's interpreter is older than this NumPy, and cannot run a loop with it")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
