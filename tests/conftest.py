"""Shared fixtures. Tests that want the real data skip, saying why, where it is absent."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared_data(*parts: str) -> Path:
    """A file of the development data beside the checkout, or a skip that names it."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs the development data {'/'.join(parts)} beside the checkout (../shared/data)")
    return path


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small runs trained on images and on features, and the same rows as files and tables."""
    from support.trained_runs import train_runs, write_tables

    root = tmp_path_factory.mktemp("trained")
    train_runs(root)
    write_tables(root)
    return root
