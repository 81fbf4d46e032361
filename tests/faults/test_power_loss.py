"""Power loss: of each file, what was written after its last fsync is gone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import rmq
from tests.conftest import any_binary
from tests.faults.aof import end_of
from tests.faults.checker import History, Verdict
from tests.faults.preload import preloaded
from tests.faults.test_kill import drained
from tests.servers import Server


class Machine:
    """A server that notes its fsyncs, and can lose its power."""

    def __init__(self, folder: Path, fsync: str) -> None:
        self.log = folder / "synced"
        self.log.touch()
        self.server = Server(
            preloaded(any_binary(), "lose", folder, RMQ_LOSE_LOG=self.log), "--appendfsync", fsync,
            "--auto-aof-rewrite-percentage", "0", aof=True,
        )  # fmt: skip

    def lose_power(self) -> int:
        """Kill the server, cut off what was not synced, start it; return that size."""
        self.server.kill()
        synced: dict[str, int] = {}
        for line in self.log.read_text().splitlines():
            size, _, path = line.partition(" ")
            synced[path] = max(int(size), synced.get(path, 0))
        path = end_of(Path(self.server.dir))
        kept = synced.get(str(path.resolve()), 0)
        gone = path.stat().st_size - kept
        with path.open("r+b") as file:
            file.truncate(kept)
        self.server.start()
        return gone


def play(folder: Path, fsync: str, name: str) -> tuple[Verdict, int]:
    """Send for a while, lose the power between two fsyncs of everysec, and drain."""
    machine, history = Machine(folder, fsync), History()
    try:
        with rmq.Client(machine.server.url, retry_for=5) as client:
            topic = client.topic(name)
            topic.send({"n": 0})
            before = machine.log.read_text()
            while fsync == "everysec" and machine.log.read_text() == before:
                topic.send({"n": 0})  # until an fsync: the next one is a second away
            until = time.monotonic() + 0.4
            number = 0
            while time.monotonic() < until:
                number += 1
                history.attempt(number)
                topic.send({"n": number})
                history.answer(number)
            gone = machine.lose_power()
            history.attempt(0)
            history.explain(0)
            history.causes[0] += 1_000_000  # those that only waited for an fsync
            drained(client.topic(name), history)
        return history.verdict(fired=1), gone
    finally:
        machine.server.stop()


@pytest.mark.fault("F2")
def test_an_aof_that_is_always_synced_loses_nothing_with_the_power(
    name: str, tmp_path: Path
) -> None:
    verdict, gone = play(tmp_path, "always", name)

    print(f"FIG power loss, always: {verdict}; {gone} bytes gone")
    assert verdict.state == "valid", verdict


@pytest.mark.fault("F2", control=True)
def test_an_aof_that_is_synced_each_second_is_seen_to_lose_that_second(
    name: str, tmp_path: Path
) -> None:
    verdict, gone = play(tmp_path, "everysec", name)

    print(f"FIG control, power loss, everysec: {verdict}; {gone} bytes gone")
    assert gone > 0
    assert verdict.lost
    assert verdict.lost == list(range(verdict.lost[0], verdict.answered + 1)), "not the end alone"
