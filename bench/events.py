"""The part `events`: the delay from a signal to the handler, against a wake-up by a send.

Each message waits for a key of its own. A consumer of its topic sleeps when the key is signalled.
In the same seconds, a message is sent to another topic, whose consumer sleeps as well. A worker's
handler is measured too: from the signal to the start of its second run.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

import rmq
from bench.machine import settle
from bench.measurement import Measurement
from rmq.kernel.core.keys import EventKeys
from tests.servers import Server

RATIO = 3.0  # target
BODY = b"x" * 100
SLEEP_S = 0.005  # until a consumer sleeps
END_S = 60.0  # longest wait for a message
AOFS = ("appendonly no", "appendonly everysec")


class Round(NamedTuple):
    """Median delays of a round, ms.

    Attributes:
        wake: From a send to a sleeping consumer that receives the message.
        consumer: From a signal to a sleeping consumer that receives the message which waited.
        worker: From a signal to the start of a worker's handler.
    """

    wake: float
    consumer: float
    worker: float


def events(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure signals, on a server without an AOF and on one with an AOF."""
    found: list[Measurement] = []
    with ExitStack() as stack:
        plain = Server(server.binary)
        stack.callback(plain.stop)
        for aof, own in zip(AOFS, (plain, server), strict=True):
            measured = [_round(own, 20 if quick else 300) for _ in range(rounds)]
            for name in ("consumer", "worker"):
                delays = [getattr(one, name) for one in measured]
                ratios = [delay / one.wake for delay, one in zip(delays, measured, strict=True)]
                title = f"a signal to the {name}, {aof}: p50, to a consumer's wake-up by a send"
                notes = {"ms": delays, "ms of a wake-up": [one.wake for one in measured]}
                found.append(Measurement("events", title, ratios, "x", RATIO, True, notes=notes))
    return found


def _round(server: Server, count: int) -> Round:
    """Measure some messages, each way in turn."""
    delays: dict[str, list[float]] = {name: [] for name in Round._fields}
    with (
        server.raw() as raw,
        rmq.Client(server.url) as client,
        rmq.Client(server.url) as other,
        rmq.Client(server.url) as third,
    ):
        settle(raw)
        plain, waiting, handled = (
            client.topic(f"events-{name}", codec="bytes", slots=1) for name in Round._fields
        )
        plain.open()
        started: SimpleQueue[float] = SimpleQueue()

        @third.topic(handled.name, codec="bytes").handler
        def handle(body: bytes, d: rmq.Delivery) -> None:
            if d.event is None:
                raise rmq.WaitFor(body.decode(), END_S)
            started.put(time.perf_counter())

        handled.open()
        with (
            rmq.Worker(third),
            other.topic(plain.name, codec="bytes").consumer(ordered=True) as sleeper,  # ordered:
            other.topic(waiting.name, codec="bytes").consumer(
                ordered=True
            ) as waiter,  # no hand-over
        ):
            for _ in range(count):
                delays["wake"].append(_delay_ms(sleeper, lambda: plain.send(BODY)))
                key = _key()
                waiting.send(BODY)
                (d,) = waiter.receive()
                with d:
                    raise rmq.WaitFor(key, END_S)
                delays["consumer"].append(_delay_ms(waiter, partial(client.signal, key, BODY)))
                key = _key()
                handled.send(key.encode())
                while not raw.exists(EventKeys("rmq", key.encode()).waiters):
                    time.sleep(SLEEP_S)
                time.sleep(SLEEP_S)
                began = time.perf_counter()
                client.signal(key, BODY)
                delays["worker"].append((started.get(timeout=END_S) - began) * 1000)
    return Round(*(statistics.median(delays[name]) for name in Round._fields))


def _key() -> str:
    return f"bench-{time.perf_counter_ns()}"


def _delay_ms(sleeper: rmq.Consumer, act: Callable[[], object]) -> float:
    """Return the ms from the start of an act to the end of a sleeping consumer's receive."""
    received: SimpleQueue[float] = SimpleQueue()

    def run() -> None:
        found = sleeper.receive(1, wait=END_S)
        received.put(time.perf_counter())
        sleeper.ack(found)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(SLEEP_S)
    began = time.perf_counter()
    act()
    delay = received.get(timeout=END_S) - began
    thread.join()
    return delay * 1000
