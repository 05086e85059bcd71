"""One run and its recovered labels, for all tests of recovery."""

import pytest

from spml.recover import (
    Recovered,
    recover,
)
from spml.runs.folder import RunFolder
from support.recovery import World


@pytest.fixture(scope="session")
def world() -> World:
    return World(2000)


@pytest.fixture(scope="session")
def run(world: World) -> RunFolder:
    return world.run()


@pytest.fixture(scope="session")
def recovered(run: RunFolder) -> Recovered:
    return recover(run)
