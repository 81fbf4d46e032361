"""The AOF cannot grow while many messages wait: what producer and worker meet, and what is left.

A run in CI has 20 000 messages; `RMQ_TEST_LONG=1 pytest tests/faults/test_full_disk_deep.py -s` has
a million.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmq
from tests.faults.aof import end_of
from tests.faults.deep import CALL, LONG, WAITING, Deep
from tests.faults.test_full_disk import UNLIMITED, Disk
from tests.faults.test_kill import begin_no_fsync
from tests.patience import wait_for

ROOM = 300_000  # bytes that the file may still grow by

pytestmark = pytest.mark.timeout(1800 if LONG else 300)


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Disk]:
    rewrites = ("--auto-aof-rewrite-percentage", "0")
    made = Disk(tmp_path, "--appendfsync", request.param or "always", *rewrites,
                aof=bool(request.param))  # fmt: skip
    yield made
    made.server.stop()


def full(disk: Disk) -> None:
    """Let the file grow by a little, and no other file either."""
    folder = Path(disk.server.dir)
    size = end_of(folder).stat().st_size if disk.server.aof else 0
    disk.limit(size + ROOM)


def outcome(call: object) -> str:
    """Call it; the name of its error, or "done"."""
    try:
        call()  # type: ignore[operator]
    except rmq.RMQError as error:
        return type(error).__name__
    return "done"


@pytest.mark.fault("F20")
@pytest.mark.parametrize(
    "disk", ["always", pytest.param("everysec", marks=pytest.mark.slow)], indirect=True
)
def test_a_full_disk_with_many_messages_stops_everything_and_loses_nothing(
    disk: Disk, name: str
) -> None:
    server = disk.server
    assert server.process is not None
    with Deep(server.url, name) as deep:
        deep.fill()
        held = deep.take(CALL)
        full(disk)
        deep.start_producer(server.url)
        deep.wait_for_refusals()
        assert deep.stored > 0  # until then

        is_always = server.options[1] == "always"
        if is_always:  # it has answered nothing that it did not write
            wait_for(lambda: server.process and server.process.poll() is not None, "Redis ends")
        told = Counter(outcome(lambda: deep.topic.consumer().receive(1)) for _ in range(5))
        told_ack = outcome(lambda: held[0].ack())
        told_stats = outcome(lambda: deep.client.admin.stats(name))
        refused = dict(deep.refused)

        if is_always:
            server.start()
        else:
            disk.limit(UNLIMITED)
        deep.wait_for_progress()
        deep.ack(held)  # their leases are still theirs
        deep.stop_producer()
        begin_no_fsync(server)
        server.kill()
        server.start()
        deep.drain()

    verdict = deep.history.verdict(fired=sum(refused.values()))
    print(
        f"FIG full disk, {WAITING:,} waiting, {server.options[1]}: {verdict}; the producer "
        f"met {refused}, receive {dict(told)}, ack {told_ack}, stats {told_stats}"
    )
    assert verdict.state == "valid", verdict
    assert told_ack == "Unavailable"
    assert told_stats == ("Unavailable" if is_always else "done")
    if is_always:  # the call that its end has cut off, and those after it
        assert {*told, *refused} <= {"Unavailable", "OutcomeUnknown"}
    else:  # definite: nothing was stored, nothing was taken
        assert {*told, *refused} == {"Unavailable"}


@pytest.mark.fault("F20", control=True)
@pytest.mark.parametrize("disk", [None], indirect=True)
def test_many_messages_without_an_aof_are_seen_to_be_lost(disk: Disk, name: str) -> None:
    with Deep(disk.server.url, name) as deep:
        deep.fill()
        full(disk)
        deep.ack(deep.take(CALL))
        disk.server.kill()
        disk.server.start()
        told = outcome(lambda: deep.drain())

    verdict = deep.history.verdict(fired=1)
    print(f"FIG control, full disk, {WAITING:,} waiting, no AOF: {verdict}; {told} is raised")
    assert verdict.state == "invalid"
    assert len(verdict.lost) == WAITING - CALL
