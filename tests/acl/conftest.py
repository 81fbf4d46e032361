"""A Redis user with the rules of a role, and clients of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from rmq.kernel.topic import clock as command_clock
from tests.acl.scene import Scene
from tests.conftest import EACH, NEWEST, run_on
from tests.servers import Server

# The newest engine; others are left to CI.
ENGINES: tuple[Any, ...] = tuple(
    name if name == NEWEST else pytest.param(name, marks=pytest.mark.slow) for name in EACH
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_on(ENGINES, metafunc)


@pytest.fixture
def scene(each_server: Server, name: str) -> Iterator[Scene]:
    made = Scene(each_server, name)
    yield made
    made.close()
    command_clock.set_clock(None)


@pytest.fixture
def full(scene: Scene) -> rmq.Client:
    return scene.full
