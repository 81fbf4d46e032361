"""Archivers are killed between all steps, and two run at once: each message is archived once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

import rmq
from tests.conftest import Clock
from tests.forkserver import Forked
from tests.integration.test_archive import KEEP, acked, archive, rows
from tests.patience import PATIENCE_S
from tests.servers import Server

HOURS, EACH = 3, 30
# A run makes about 40 calls, so these deaths are at every step of the first file and of later ones.
EVERY_STEP = range(36)


def filled(client: rmq.Client, name: str, clock: Clock) -> rmq.Topic:
    topic = client.topic(name, slots=2, history=KEEP)
    for hour in range(HOURS):
        acked(topic, range(hour * EACH, (hour + 1) * EACH))
        clock.advance(3600)
    clock.advance(60)
    return topic


def start(server: Server, name: str, to: Path, clock: Clock, nth: int, broken: str = "") -> Forked:
    args = [server.url, name, str(to), str(clock.now_us), str(nth), broken]
    return Forked("tests.faults.archiver", *args)


def killed(
    server: Server, topic: rmq.Topic, to: Path, clock: Clock, steps: Iterable[int], broken: str = ""
) -> list[Counter[int]]:
    """For each step, let an archiver die before it, and let others finish its work.

    Return how often each message is in each of the folders.
    """
    found = []
    for nth in steps:
        folder = to / str(nth)
        died = start(server, topic.name, folder, clock, nth, broken).wait(4 * PATIENCE_S)
        assert died == -signal.SIGKILL
        start(server, topic.name, folder, clock, -1, broken).wait(4 * PATIENCE_S)
        archive(topic, folder, clock)
        found.append(Counter(int(row["value"]) for row in rows(folder)))
    return found


@pytest.mark.parametrize(
    "steps",
    [range(9, 20, 3), pytest.param(EVERY_STEP, marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_archivers_killed_at_every_step_write_each_message_once(
    client: rmq.Client, server: Server, name: str, clock: Clock, tmp_path: Path, steps: range
) -> None:
    topic = filled(client, name, clock)

    found = killed(server, topic, tmp_path, clock, steps)

    assert found == [Counter(range(HOURS * EACH))] * len(steps)


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["names", "early"])
def test_broken_archivers_write_messages_twice_or_miss_some(
    client: rmq.Client, server: Server, name: str, clock: Clock, tmp_path: Path, broken: str
) -> None:
    """Negative controls: these deaths hit the moments between a file and the manifest."""
    topic = filled(client, name, clock)

    found = killed(server, topic, tmp_path, clock, EVERY_STEP, broken)

    assert any(each != Counter(range(HOURS * EACH)) for each in found)


@pytest.mark.slow
def test_two_archivers_at_once_write_each_message_once(
    client: rmq.Client, server: Server, name: str, clock: Clock, tmp_path: Path
) -> None:
    filled(client, name, clock)

    for nth in (7, 11, 16, 22, 30, -1):
        both = [start(server, name, tmp_path, clock, each) for each in (nth, nth - 1)]
        assert {each.wait(4 * PATIENCE_S) for each in both} <= {0, -signal.SIGKILL}
    assert start(server, name, tmp_path, clock, -1).wait(4 * PATIENCE_S) == 0

    assert Counter(int(row["value"]) for row in rows(tmp_path)) == Counter(range(HOURS * EACH))
