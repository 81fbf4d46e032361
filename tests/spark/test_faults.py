"""Drivers that die or freeze in the middle of a batch, with everything that belongs to them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rmq
from tests.servers import Server
from tests.spark.conftest import MISSING, ROOT, environment

pytestmark = pytest.mark.timeout(500)  # six drivers, cold ones, on a busy machine

Rows = list[list[Any]]


class Drivers:
    """Drivers of one query, one after the other."""

    module = "tests.spark.driver"

    def __init__(self, url: str, topic: str, directory: Path) -> None:
        self.url, self.topic, self.directory = url, topic, directory
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, point: str, name: str) -> subprocess.Popen[bytes]:
        if MISSING:
            pytest.fail(MISSING)
        log = (self.directory / f"log-{name}").open("wb")
        self.started.append(
            subprocess.Popen(
                [
                    sys.executable, "-m", self.module,
                    self.url, self.topic, str(self.directory), point, name,
                ],
                cwd=ROOT, env=os.environ | environment(), stdout=log, stderr=log,
            )
        )  # fmt: skip
        return self.started[-1]

    def run(self, point: str, name: str) -> None:
        code = self.start(point, name).wait(240)
        log = (self.directory / f"log-{name}").read_text()
        assert code == (0 if point == "end" else -signal.SIGKILL), log[-3000:]

    def rows(self, batch: int, name: str) -> Rows:
        found: Rows = json.loads((self.directory / f"{batch}-{name}.json").read_text())
        return found

    def last(self, log: str) -> int:
        """The last batch in Spark's offset or commit log; -1: none."""
        files = (self.directory / "checkpoint" / log).glob("[0-9]*")
        return max((int(one.name) for one in files), default=-1)


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, slots=2, retry="immediate")
    made.open()
    return made


@pytest.fixture
def drivers(server: Server, topic: rmq.Topic, tmp_path: Path) -> Iterator[Drivers]:
    made = Drivers(server.url, topic.name, tmp_path)
    yield made
    for one in made.started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGCONT)
            os.killpg(one.pid, signal.SIGKILL)
        one.wait()


def state(client: rmq.Client, topic: rmq.Topic) -> tuple[int, int]:
    """In flight, settled."""
    stats = client.admin.stats(topic.name)
    return stats["in_flight"], stats["settled"]


def test_a_batch_is_replayed_exactly_wherever_its_driver_was_killed(
    client: rmq.Client, topic: rmq.Topic, drivers: Drivers
) -> None:
    sent = topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(25)])

    def check(offsets: int, commits: int) -> None:
        """What is in flight are whole batches of 10: the one that runs, and one taken ahead."""
        assert (drivers.last("offsets"), drivers.last("commits")) == (offsets, commits)
        in_flight, settled = state(client, topic)
        assert settled == 0
        assert in_flight in (10, 20, 25)

    drivers.run("claimed", "a")  # taken, and not in the offset log
    check(0, 0)

    drivers.run("logged", "b")
    check(1, 0)

    drivers.run("reading", "c")
    check(1, 0)

    drivers.run("sunk", "d")  # in the sink, and not in the commit log
    check(1, 0)

    drivers.run("end", "e")
    assert drivers.rows(1, "d") == drivers.rows(1, "e")
    batches = [drivers.rows(batch, "e") for batch in range(1, drivers.last("commits") + 1)]
    rows = [row for batch in batches for row in batch]
    assert sorted(row[2] for row in rows) == sorted(str(one.id) for one in sent)
    assert {row[3] for row in rows} == {1}
    assert state(client, topic) == (0, 25)


def test_a_driver_that_is_frozen_beyond_its_lease_loses_its_claims_and_fails(
    client: rmq.Client, topic: rmq.Topic, drivers: Drivers
) -> None:
    sent = [topic.send(n, slot_basis=str(n)).id for n in range(10)]
    driver = drivers.start("frozen", "a")
    until = time.monotonic() + 200
    while not (drivers.directory / "frozen").exists() and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(driver.pid, signal.SIGSTOP)
    assert state(client, topic) == (10, 0)

    time.sleep(1.3)  # longer than the lease
    with topic.consumer() as consumer:
        taken = consumer.receive(2, wait=5)
        assert {one.attempt for one in taken} == {2}
        consumer.ack(taken)
    os.killpg(driver.pid, signal.SIGCONT)
    assert driver.wait(240) == 0

    told = (drivers.directory / "told-a").read_text()
    assert "messages of this batch are no longer held, because its lease of 1 s ran out" in told
    assert (drivers.directory / "told-a-2").read_text() == ""
    # What no consumer had asked for in time was still held, and stayed in the batch.
    rows = [row for n in range(1, drivers.last("commits") + 1) for row in drivers.rows(n, "a")]
    assert {row[3] for row in rows} == {1, 2}
    assert len(rows) == 10 - len(taken)
    assert {row[2] for row in rows} | {str(one.id) for one in taken} == {str(i) for i in sent}
    assert state(client, topic) == (0, 10)
