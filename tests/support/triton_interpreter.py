"""Triton's kernels without a GPU, by its interpreter."""

import os
import subprocess
import sys

import pytest


def run_interpreted(program: str) -> str:
    """What a program prints, in a process of its own, for the interpreter is chosen before Triton is imported."""
    pytest.importorskip("triton")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    if "only 0-dimensional arrays can be converted" in done.stderr and "in _new_range" in done.stderr:
        pytest.skip("Triton's interpreter is older than this NumPy, and cannot run a loop with it")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
