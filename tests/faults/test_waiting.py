"""Consumers that sleep: they cost next to nothing, and wake in time even when nobody tells them."""

from __future__ import annotations

import threading
import time

import pytest

import rmq
from tests.patience import PATIENCE_S, asleep
from tests.servers import Server

LATE_S = PATIENCE_S  # a busy machine; nobody would tell before `wait` is over


class Waiting:
    """A consumer that waits for one message in a thread, and when it got it."""

    def __init__(self, client: rmq.Client, topic: str, wait: float = 3 * PATIENCE_S) -> None:
        self.got = 0.0
        self.errors: list[BaseException] = []
        self.consumer = client.topic(topic).consumer()
        self.thread = threading.Thread(target=self._run, args=(wait,), daemon=True)
        self.thread.start()

    def _run(self, wait: float) -> None:
        try:
            for one in self.consumer.receive(1, wait=wait):
                self.got = time.monotonic()
                one.ack()
        except BaseException as error:
            self.errors.append(error)

    def after(self, sent: float) -> float:
        self.thread.join(4 * PATIENCE_S)
        assert not self.errors, self.errors
        assert self.got, "it never came"
        return self.got - sent


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks once a second for what no signal told: only a signal, or a due time, wakes."""
    monkeypatch.setattr("rmq.kernel.consumer.receive.POLL_S", 10 * PATIENCE_S)


def calls(server: Server) -> int:
    """Commands that RMQ's clients made the server do, scripts counted as one."""
    with server.raw() as raw:
        stats = raw.info("commandstats")
    return sum(
        int(one["calls"])
        for name, one in stats.items()
        if name.split("_", 1)[1].split("|")[0] in ("evalsha", "eval", "subscribe", "ping", "script")
    )


def rate_of_calls(server: Server, seconds: float) -> float:
    before, began = calls(server), time.monotonic()
    time.sleep(seconds)
    return (calls(server) - before) / (time.monotonic() - began)


@pytest.mark.parametrize("slots", [1, 8])
def test_an_idle_consumer_costs_about_a_command_a_second(
    ours: Server, name: str, slots: int
) -> None:
    with rmq.Client(ours.url) as client:
        client.topic(name, slots=slots).open()
        waiting = Waiting(client, name)
        asleep(ours, name)
        time.sleep(0.7)  # until it has looked again and gone to sleep
        for _ in range(3):  # on a busy machine the looks of its start may take seconds
            rate = rate_of_calls(ours, 5.0)
            if rate <= 1.4:
                break
        waiting.consumer._interrupt()
        waiting.thread.join(PATIENCE_S)

    print(f"FIG idle consumer, {slots} slots: {rate:.1f} commands/s")
    assert not waiting.errors
    assert 0 < rate <= 1.4


def test_a_due_time_wakes_an_idle_consumer_and_not_before(
    ours: Server, name: str, unasked: None
) -> None:
    with rmq.Client(ours.url) as client:
        topic = client.topic(name)
        sent = time.monotonic()  # before it is due to the millisecond
        topic.send(1, delay=1.4)

        assert -0.01 < Waiting(client, name).after(sent) - 1.4 < LATE_S


def test_a_lost_wake_signal_costs_about_a_second(ours: Server, name: str) -> None:
    with rmq.Client(ours.url) as client, rmq.Client(ours.url) as producer, ours.raw() as raw:
        waiting = Waiting(client, name)
        asleep(ours, name)
        killed = raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        assert killed >= 1, "there was no subscription to kill"
        sent = time.monotonic()
        producer.topic(name).send(1)
        delay = waiting.after(sent)

    print(f"FIG lost wake signal: {delay:.2f} s")
    assert delay < LATE_S


def test_a_signal_that_is_never_sent_costs_about_a_second(ours: Server, name: str) -> None:
    """The slot does not know that anybody waits: only the slow look finds the message."""
    with rmq.Client(ours.url) as client, rmq.Client(ours.url) as producer, ours.raw() as raw:
        waiting = Waiting(client, name)
        asleep(ours, name)
        raw.hset(f"rmq:{{{name}_0}}:slot", "waiting", 0)
        sent = time.monotonic()
        producer.topic(name).send(1)
        delay = waiting.after(sent)

    assert delay < LATE_S


def test_an_idle_consumer_outlives_a_restart_of_redis(own_server: Server, name: str) -> None:
    with rmq.Client(own_server.url) as client, rmq.Client(own_server.url) as producer:
        waiting = Waiting(client, name)
        asleep(own_server, name)
        own_server.kill()
        time.sleep(0.3)
        own_server.start()
        sent = time.monotonic()
        producer.topic(name).send(1)

        assert waiting.after(sent) < LATE_S
