"""Many clients at once: no answer is lost, no request fails. The benchmark does the same for minutes."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import spml
from support.attacks import matrix

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.timeout(120)
@pytest.mark.skipif(sys.platform == "win32", reason="stops the server by SIGINT")
def test_clients_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra review")
    spec = importlib.util.spec_from_file_location("review_load", BENCHMARKS / "review_load.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["review_load"] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    spml.train(matrix(tmp_path), out=tmp_path / "run", base="linear", device="cpu", progress=False)
    load = module.measure(tmp_path / "run", clients=12, seconds=4)
    assert load.failures == []
    assert load.lost == 0
    assert len(load.confirmed) > 20
    assert np.median(load.times) < 2
