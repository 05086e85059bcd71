"""Shared fixtures. Tests that need the development data are skipped if it is missing."""

import os

# Tests compute little, and several processes run them side by side: more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from spml.labels import Labels
from support.shared_data import shared_data

# A shell that starts the tests in the background ignores SIGINT, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def isolated_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Methods and plug-ins that a test registers are forgotten after it."""
    from spml.methods import registry

    monkeypatch.setattr(registry.METHODS, "data", dict(registry.METHODS.data))
    monkeypatch.setattr(registry, "_imported", list(registry._imported))
    monkeypatch.setattr(registry, "_broken", dict(registry._broken))
    before = set(sys.modules)
    yield
    for module in set(sys.modules) - before:
        if module.partition(".")[0].startswith("plugin_"):
            del sys.modules[module]


@pytest.fixture(autouse=True)
def no_feature_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests neither read nor fill the user's cache."""
    monkeypatch.setenv("SPML_CACHE", "")


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small runs trained on images and on features, and the same rows as files and tables."""
    from support.trained_runs import train_runs, write_tables

    root = tmp_path_factory.mktemp("trained")
    train_runs(root)
    write_tables(root)
    return root


@pytest.fixture(scope="session")
def voc() -> dict[str, np.ndarray]:
    """The labels, observed labels and split of VOC 2012."""
    with np.load(shared_data("voc12", "labels.npz"), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="session")
def voc_truth(voc: dict[str, np.ndarray]) -> Labels:
    """The official training rows of VOC 2012, fully labelled."""
    rows = np.union1d(voc["train"], voc["val"])
    return Labels.from_matrix(voc["labels"][rows], voc["classes"], voc["image"][rows], coding="full")
