"""Consumers that wait for long: they write next to nothing, and messages are still handed over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import rmq
from rmq.kernel.consumer import hand_over, scripts
from rmq.kernel.transport.lua import script_loader as transport_scripts
from rmq.kernel.transport.lua.script_loader import Script
from tests.integration.driven import connect
from tests.integration.test_hand_over import Waiting, credits_in, leave_a_credit
from tests.patience import PATIENCE_S, wait_for
from tests.servers import Server
from tests.sources import text_of

KINDS = [("sync", 1), ("sync", 8), ("async", 1), ("async", 8), ("worker", 1)]
PUBLISHES = {"PUBLISH", "SPUBLISH"}
WRITES = {"HSET", "HSETNX", "HDEL", "HINCRBY", "ZADD", "ZREM", "SADD", "DEL", "UNLINK", *PUBLISHES}
IDLE_S = 2.5


def written(server: Server, topic: str, seconds: float) -> list[str]:
    """Commands of so many seconds by which scripts changed a topic, or published on its channels.

    Without those by which a worker renews its lease, and reports how late messages were taken.
    """
    end = f"end of {topic}"
    with server.raw() as raw, server.raw() as other, raw.monitor() as monitor:
        time.sleep(seconds)
        other.echo(end)
        found: list[str] = []
        for one in monitor.listen():
            if end in one["command"]:
                return found
            verb, key, field = (*one["command"].split(), "", "")[:3]
            is_written = one["client_type"] == "lua" and verb in WRITES and topic in key
            is_others = key.endswith(":leases") or field in ("leases_until", "lateness")
            if is_written and not is_others and not field.startswith("@"):
                found.append(one["command"])
    raise AssertionError("the server says nothing")


class Idle:
    """A consumer of a kind that waits; its credits stand."""

    def __init__(self, server: Server, client: rmq.Client, name: str, slots: int) -> None:
        self.server, self.client, self.slots = server, client, slots
        self.topic = client.topic(name, slots=slots)
        self.topic.open()
        self.got: list[Any] = []

    def await_credits(self, count: int = 1) -> None:
        expected = [count] * self.slots
        wait_for(lambda: credits_in(self.server, self.topic.name, self.slots) == expected)

    def ends(self) -> list[int]:
        """When the credits end, epoch ms."""
        with self.server.raw() as raw:
            fields = [
                raw.hget(f"rmq:{{{self.topic.name}_{n}}}:slot", "credits") or b""
                for n in range(self.slots)
            ]
        return [int(entry.split()[2]) for field in fields for entry in field.split(b";")[:-1]]


@contextmanager
def idle(kind: str, server: Server, client: rmq.Client, name: str, slots: int) -> Iterator[Idle]:
    made = Idle(server, client, name, slots)
    if kind == "worker":
        made.topic.handler()(made.got.append)
        with rmq.Worker(client, heartbeat="thread"):
            leave_a_credit(server, made.topic, made.got)
            yield made
        return
    consumer = Waiting(kind, server.url, name, wait=10 * PATIENCE_S)
    made.got = consumer.got
    try:
        made.await_credits()
        yield made
    finally:
        consumer.end(client, name)


@pytest.fixture
def rewrite(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces text of the scripts that look at credits."""
    load = transport_scripts.load

    def replace(*pairs: tuple[str, str]) -> None:
        made: dict[str, Script] = {}
        for verb in ("prepare", "next_ready"):
            text = text_of(verb)
            for before, after in pairs:
                assert before in text
                text = text.replace(before, after)
            made[verb] = Script(verb, text)
        monkeypatch.setattr(transport_scripts, "load", lambda name: made.get(name) or load(name))

    return replace


def check_that_it_writes_nothing(idle: Idle) -> None:
    ends = idle.ends()

    assert written(idle.server, idle.topic.name, IDLE_S) == []
    assert idle.ends() == ends


@pytest.mark.parametrize(("kind", "slots"), KINDS)
def test_a_consumer_that_waits_writes_and_publishes_nothing_for_seconds(
    server: Server, client: rmq.Client, name: str, kind: str, slots: int
) -> None:
    with idle(kind, server, client, name, slots) as waiting:
        check_that_it_writes_nothing(waiting)


@pytest.mark.parametrize(("kind", "slots"), [("sync", 1), ("async", 8), ("worker", 1)])
def test_control_a_consumer_that_renews_its_credits_each_second_is_caught(
    server: Server, client: rmq.Client, name: str, kind: str, slots: int, rewrite: Any
) -> None:
    """Broken on purpose: each look writes."""
    rewrite(("till < now + 5000 and till < ends", "till < ends"))

    with idle(kind, server, client, name, slots) as waiting, pytest.raises(AssertionError):
        check_that_it_writes_nothing(waiting)


def check_that_short_waits_write_nothing(kind: str, server: Server, topic: rmq.Topic) -> None:
    with connect(kind, server.url) as one, one.topic(topic.name).consumer() as consumer:
        for _ in range(3):  # it subscribes, leaves a credit, and withdraws it
            assert consumer.receive(1, wait=0.3) == []
        over = threading.Event()
        calls: list[int] = []

        def loop() -> None:
            while not over.is_set():
                calls.append(len(consumer.receive(1, wait=0.3)))

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            assert written(server, topic.name, IDLE_S) == []
        finally:
            over.set()
            thread.join()
        assert len(calls) > 5

        waiting = threading.Thread(target=lambda: consumer.receive(1, wait=PATIENCE_S))
        waiting.start()
        wait_for(lambda: credits_in(server, topic.name) == [1])  # in a long wait there is one
        topic.send("x")
        waiting.join()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_short_waits_of_a_consumer_to_which_nothing_comes_write_nothing(
    server: Server, client: rmq.Client, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_over, "IDLE_S", 0.5)
    topic = client.topic(name)
    topic.open()

    check_that_short_waits_write_nothing(kind, server, topic)


def test_control_short_waits_that_leave_credits_are_caught(
    server: Server, client: rmq.Client, name: str
) -> None:
    topic = client.topic(name)
    topic.open()

    with pytest.raises(AssertionError):
        check_that_short_waits_write_nothing("sync", server, topic)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "slots"), KINDS[:4])
def test_a_consumer_that_waits_writes_to_each_slot_at_most_once_in_ten_seconds(
    server: Server, client: rmq.Client, name: str, kind: str, slots: int
) -> None:
    with idle(kind, server, client, name, slots) as waiting:
        made = written(server, name, 40.0)
        assert min(waiting.ends()) > time.time() * 1000

    assert not [one for one in made if one.split()[0] in PUBLISHES]
    for slot in range(slots):
        assert 2 <= sum(f"{{{name}_{slot}}}:slot" in one for one in made) <= 4


SHORT = ("now + 20000", "now + 3000"), ("now + 5000", "now + 1600")


def check_that_credits_never_lapse(idle: Idle, seconds: float) -> None:
    renewed, until = set(idle.ends()), time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.1)
        ends = idle.ends()
        assert len(ends) == idle.slots
        assert min(ends) > time.time() * 1000
        renewed.update(ends)
    assert len(renewed) >= 2


@pytest.mark.parametrize(("kind", "slots"), KINDS)
def test_a_credit_that_is_nearly_over_is_renewed_and_the_message_is_handed_over(
    server: Server, client: rmq.Client, name: str, kind: str, slots: int, rewrite: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    came: list[Any] = []
    read = scripts.read_hand_over
    monkeypatch.setattr(
        scripts, "read_hand_over", lambda *args: came.append(read(*args)) or came[-1]
    )
    rewrite(*SHORT)
    with idle(kind, server, client, name, slots) as waiting:
        check_that_credits_never_lapse(waiting, 4.0)
        before, handed = len(waiting.got), len(came)
        waiting.topic.send("x")
        wait_for(lambda: len(waiting.got) > before)

        assert len(came) == handed + 1


@pytest.mark.parametrize(("kind", "slots"), KINDS[:2])
def test_control_credits_that_no_look_renews_lapse(
    server: Server, client: rmq.Client, name: str, kind: str, slots: int, rewrite: Any
) -> None:
    """Broken on purpose: looks only read."""
    rewrite(("till < now + 5000 and till < ends", "till < 0"), SHORT[0])

    with idle(kind, server, client, name, slots) as waiting, pytest.raises(AssertionError):
        check_that_credits_never_lapse(waiting, 4.0)


def test_credits_of_several_consumers_are_renewed_each_by_itself(
    server: Server, client: rmq.Client, name: str, rewrite: Any
) -> None:
    rewrite(*SHORT)
    made = Idle(server, client, name, 3)
    consumers = [Waiting(kind, server.url, name) for kind in ("sync", "async", "sync")]
    made.await_credits(3)
    time.sleep(4.0)

    made.await_credits(3)
    assert min(made.ends()) > time.time() * 1000
    for number in range(3):
        made.topic.send(number)
    wait_for(lambda: sum(len(one.got) for one in consumers) == 3)

    for one in consumers:
        made.topic.send("end")
        wait_for(lambda: sum(("end", 1) in one.got for one in consumers) > consumers.index(one))
    for one in consumers:
        one.thread.join()
    assert sorted(got for one in consumers for got in one.got if got[0] != "end") == [
        (number, 1) for number in range(3)
    ]
