"""The example of sixty types in three topics."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq.testing import Broker
from tests.conftest import any_binary

EXAMPLE = Path(__file__).parents[2] / "examples" / "many_types.py"


@pytest.fixture
def program() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("many_types", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["many_types"] = module  # where annotations of its handlers are looked up
    spec.loader.exec_module(module)
    yield module
    module.client.close()
    del sys.modules["many_types"]


def test_sixty_types_find_their_handlers_and_one_waits(program: Any) -> None:
    with Broker() as broker, broker.adopting(program.client):
        expected = program.send_all()
        results = broker.drain()

        acked = [one for one in results if one.verb == "ack"]
        assert len(acked) == expected == 61
        assert len({one.type for one in acked if one.type}) == 60
        assert set(program.done.values()) == {1}
        assert program.balance["ann"] == 10 * 40 - 10 * 60
        assert [one.type for one in broker.sent("types-mails")] == ["mail.pigeon"]

        broker.drain(advance=3 * 3600)
        (dead,) = broker.dead("types-mails")
        assert dead.failure is not None
        assert (dead.type, dead.failure.reason) == ("mail.pigeon", "unhandled")


def test_a_worker_runs_them(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RMQ_URL"}
    environment |= {"RMQ_REDIS_SERVER": any_binary(), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip

    assert done.stdout.splitlines() == [
        "61 messages of 60 types handled, and 1 other",
        "the balance of ann is -2.00",
        "mail.pigeon waits for a worker with a handler for it",
    ], done.stderr
