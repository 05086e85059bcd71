"""Development data next to the checkout. Tests that need it skip, with a reason, where it is absent."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def shared_data(*parts: str) -> Path:
    """A file of the development data next to the checkout, or a skip that names it."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs the development data {'/'.join(parts)} next to the checkout (../shared/data)")
    return path
