"""A replica that has missed writes takes over: what was confirmed as replicated is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import rmq
from bench.soak.proxy import Proxy, between
from tests.conftest import any_binary
from tests.faults.checker import History
from tests.faults.test_kill import drained
from tests.patience import PATIENCE_S
from tests.servers import Server, following

COUNT = 20


class Pair:
    """A master and its replica, which follows it through a proxy."""

    def __init__(self, master: Server, replica: Server, line: Proxy) -> None:
        self.master, self.replica, self.line = master, replica, line

    def cut_off(self) -> None:
        """Let nothing of the master reach the replica any more, and tell neither of them."""
        self.line.hole = True
        self.line.fired += 1

    def fail_over(self) -> str:
        """Kill the master and promote the replica; return its address."""
        self.master.kill()
        with self.replica.raw() as raw:
            raw.execute_command("REPLICAOF", "NO", "ONE")
        return self.replica.url


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        master = Server(any_binary())
        stack.callback(master.stop)
        line = stack.enter_context(between(master.port))
        replica = stack.enter_context(following(line.port, any_binary()))
        yield Pair(master, replica, line)


def play(pair: Pair, name: str, before: Any, after: Any) -> tuple[History, int]:
    """Send before and after the replica is cut off, and drain it once it has taken over.

    `before`, `after`: the durability of the sends.
    """
    history, refused = History(), 0
    with rmq.Client(pair.master.url, timeout=2 * PATIENCE_S, retry_for=1) as client:
        topic = client.topic(name)
        topic.open()
        for number in range(2 * COUNT):
            if number == COUNT:
                with pair.master.raw() as raw:
                    raw.set(f"{name}:mark", 1)  # WAIT counts for what its connection has written
                    assert raw.wait(1, int(PATIENCE_S * 1000)) == 1
                pair.cut_off()
            history.attempt(number)
            try:
                topic.send({"n": number}, durability=before if number < COUNT else after)
            except rmq.NotDurable:
                refused += 1
            else:
                history.answer(number)
    with rmq.Client(pair.fail_over()) as client:
        drained(client.topic(name), history)
    return history, refused


@pytest.mark.fault("F11", "F12")
def test_what_was_confirmed_as_replicated_survives_a_stale_replica(pair: Pair, name: str) -> None:
    history, refused = play(pair, name, rmq.Replicated(1, PATIENCE_S), rmq.Replicated(1, 0.1))

    verdict = history.verdict(fired=pair.line.fired)
    print(f"FIG stale replica, Replicated(1): {verdict}; {refused} told as not durable")
    assert verdict.state == "valid", verdict
    assert (verdict.answered, refused) == (COUNT, COUNT)


@pytest.mark.fault("F11", "F12", control=True)
def test_what_was_confirmed_in_memory_is_lost_by_a_stale_replica(pair: Pair, name: str) -> None:
    history, refused = play(pair, name, "memory", "memory")

    verdict = history.verdict(fired=pair.line.fired)
    print(f"FIG control, stale replica, memory: {verdict}")
    assert verdict.lost == list(range(COUNT, 2 * COUNT))
    assert refused == 0
