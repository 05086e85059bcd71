"""Shared fixtures. Tests that need the development data are skipped if it is missing."""

from pathlib import Path

import numpy as np
import pytest

from spml.labels import Labels
from support.shared_data import shared_data


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
