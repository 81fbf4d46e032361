"""A Redis user with the rules of a role, and clients of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import rmq
from rmq.protocol import commands
from tests.acl.scene import Scene
from tests.conftest import EACH, run_on
from tests.servers import Server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_on(EACH, metafunc)


@pytest.fixture
def scene(each_server: Server, name: str) -> Iterator[Scene]:
    made = Scene(each_server, name)
    yield made
    made.close()
    commands.set_clock(None)


@pytest.fixture
def full(scene: Scene) -> rmq.Client:
    return scene.full
