"""The AOF cannot grow: sends are refused while that is so, and what was answered is kept."""

from __future__ import annotations

import resource
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rmq
from rmq.kernel.transport.connections.pool import Pool
from rmq.kernel.transport.errors import code_of
from tests.conftest import any_binary
from tests.faults.checker import History, Verdict
from tests.faults.test_kill import drained
from tests.patience import wait_for
from tests.servers import Server

UNLIMITED = resource.RLIM_INFINITY
ROOM = 200_000  # bytes that each file may have


class Disk:
    """A server whose files may be limited, as on a full disk. It ignores the signal of a limit."""

    def __init__(self, folder: Path, *options: str, aof: bool) -> None:
        start = folder / "server"
        start.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec {shlex.quote(any_binary())} \"$@\"\n")
        start.chmod(0o700)
        self.server = Server(str(start), *options, aof=aof)

    def limit(self, size: int) -> None:
        """Let no file of the server grow beyond so many bytes."""
        assert self.server.process is not None
        resource.prlimit(self.server.process.pid, resource.RLIMIT_FSIZE, (size, UNLIMITED))


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Disk]:
    made = Disk(tmp_path, "--appendfsync", request.param or "always", aof=bool(request.param))
    yield made
    made.server.stop()


def send_until_refused(topic: rmq.Topic, history: History, most: int) -> int:
    """Send until a send fails, or so many; return how many failed."""
    for number in range(most):
        history.attempt(number)
        try:
            topic.send({"n": number, "pad": "x" * 1000})
        except (rmq.StorageError, rmq.SendError):
            return 1
        history.answer(number)
    return 0


def play(disk: Disk, name: str) -> tuple[Verdict, int]:
    """Fill the disk, make room, go on, restart and drain; return the verdict and the refusals."""
    history, server = History(), disk.server
    with rmq.Client(server.url, retry_for=0.3, timeout=5) as client:
        topic = client.topic(name)
        topic.open()
        disk.limit(ROOM)
        refused = send_until_refused(topic, history, 1000)
        assert server.process is not None
        if server.process.poll() is None:
            disk.limit(UNLIMITED)

            def has_room() -> bool:
                try:
                    topic.send({"n": -1})
                except rmq.RMQError:
                    return False
                return True

            history.attempt(-1)
            history.causes[-1] += 1000  # as often as it takes
            wait_for(has_room, "sends are taken again")
            server.kill()
        server.start()
        if server.aof:
            drained(client.topic(name), history)
        return history.verdict(fired=refused), refused


@pytest.mark.fault("F20")
@pytest.mark.parametrize("disk", ["always", "everysec"], indirect=True)
def test_a_full_disk_loses_nothing_that_was_answered(disk: Disk, name: str) -> None:
    verdict, refused = play(disk, name)

    print(f"FIG full disk, {disk.server.options[1]}: {verdict}; {refused} refused")
    assert verdict.state == "valid", verdict


@pytest.mark.fault("F20", control=True)
@pytest.mark.parametrize("disk", [None], indirect=True)
def test_a_redis_that_writes_no_file_notices_no_full_disk_and_loses_all(
    disk: Disk, name: str
) -> None:
    verdict, refused = play(disk, name)

    print(f"FIG control, full disk, no AOF: {verdict}; {refused} refused")
    assert refused == 0
    assert len(verdict.lost) == verdict.answered == 1000


@pytest.mark.fault("F20", control=True)
@pytest.mark.parametrize("disk", ["everysec"], indirect=True)
def test_a_client_that_takes_a_refusal_for_an_answer_loses_what_was_refused(
    disk: Disk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, answers = Pool.exchange, dict[int, list[Any]]()

    def careless(self: Pool, packed: bytes, count: int, late: bool = False) -> list[Any]:
        """Give the last answer again in place of MISCONF."""
        replies = exchange(self, packed, count, late)
        if any(isinstance(one, Exception) and code_of(one) == "MISCONF" for one in replies):
            return answers[count]
        answers[count] = replies
        return replies

    monkeypatch.setattr(Pool, "exchange", careless)
    verdict, refused = play(disk, name)

    print(f"FIG control, full disk, a refusal is taken for an answer: {verdict}")
    assert refused == 0
    assert verdict.lost
