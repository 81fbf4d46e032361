"""The part `results`: messages that keep their results, against messages that do not.

It compares the time of Redis, the wait for a result with the wake-up of a consumer, and counts the
connections of many waiting tasks. It also measures the bytes of a result and of a progress entry.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

import rmq
from bench.cost.spending import Meter
from bench.machine import settle
from bench.measurement import Measurement
from tests.servers import Server

TIME, WAKE, CONNECTIONS = 1.5, 2.0, 1.0  # targets
BODY = b"x" * 100
VALUE = b"y" * 100
TOPIC = "results"
END_S = 60.0  # longest wait for a result or a message


def results(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure the cost of results and the wait for them."""
    measurements = []
    for k in (1, 100):
        count = 400 if quick else 4_000
        ratios, costs = [], []
        for number in range(rounds):
            spent = _redis_us(server, k, count, number)
            ratios.append(spent[True] / spent[False])
            costs.append(spent[True])
        title = f"life of a message with a result, k = {k}: Redis time, to a plain one"
        measurements.append(
            Measurement("results", title, ratios, "x", TIME, True, notes={"us": costs})
        )
    waits, ratios = [], []
    for _ in range(rounds):
        wait_ms, wake_ms = _delays_ms(server, 50 if quick else 500)
        waits.append(wait_ms)
        ratios.append(wait_ms / wake_ms)
    title = "wait(), p50 from the ack to its return, to a consumer's wake-up by a send"
    measurements.append(Measurement("results", title, ratios, "x", WAKE, True, notes={"ms": waits}))
    waiters = 500 if quick else 10_000
    found = float(asyncio.run(_connections(server, waiters)))
    title = f"subscribed connections of {waiters:,} waiting tasks"
    measurements.append(Measurement("results", title, [found], "connections", CONNECTIONS, True))
    return [*measurements, *_bytes(server, 1_000 if quick else 100_000)]


def _redis_us(server: Server, k: int, count: int, number: int) -> dict[bool, float]:
    """Return the us of Redis for the life of a message with and without a result, in turns."""
    with server.raw() as raw, rmq.Client(server.url) as client:
        settle(raw)
        meters = {True: Meter(raw), False: Meter(raw)}
        topics = {  # a slot each, so that a plain message is in a slot without results
            keeps: client.topic(f"{TOPIC}-{keeps}", codec="bytes", slots=1, results=kept)
            for keeps, kept in ((True, rmq.Results(keep=60)), (False, None))
        }
        for turn in range(count // 100):
            for keeps in (True, False) if (turn + number) % 2 else (False, True):
                topic = topics[keeps]
                with topic.consumer(lease=600) as consumer, meters[keeps].measure("life", 100):
                    for _ in range(100 // k):
                        if k == 1:
                            topic.send(BODY, priority=900)
                            consumer.receive(1)[0].ack(result=VALUE)
                        else:
                            topic.send_many([rmq.Outgoing(BODY, priority=900) for _ in range(k)])
                            consumer.ack(consumer.receive(k))
        return {keeps: meters[keeps].spent["life"].each()["redis"] for keeps in meters}


def _delays_ms(server: Server, count: int) -> tuple[float, float]:
    """Return the median delay of a waiting result, and of a waiting consumer, in turns."""
    delays: dict[str, list[float]] = {"wait": [], "wake": []}
    with rmq.Client(server.url) as client, rmq.Client(server.url) as other:
        topic = client.topic(f"{TOPIC}-wait", codec="bytes", slots=1, results=rmq.Results(keep=60))
        plain = client.topic(f"{TOPIC}-wake", codec="bytes", slots=1)
        plain.open()
        theirs = other.topic(f"{TOPIC}-wait", codec="bytes")
        asleep = other.topic(f"{TOPIC}-wake", codec="bytes").consumer(ordered=True)
        with topic.consumer(lease=600) as consumer, asleep as sleeper:  # ordered: no hand-overs

            def wait(id: rmq.MessageId) -> None:
                theirs.result(id).wait(END_S)

            def wake(_: object) -> None:
                sleeper.ack(sleeper.receive(1, wait=END_S))

            for _ in range(count):
                id = topic.send(BODY).message_id
                (delivery,) = consumer.receive()
                ack = partial(delivery.ack, result=VALUE)
                delays["wait"].append(_delay_ms(wait, id, ack))
                delays["wake"].append(_delay_ms(wake, None, lambda: plain.send(BODY)))
    return statistics.median(delays["wait"]), statistics.median(delays["wake"])


def _delay_ms(wait: Callable[[Any], None], subject: Any, act: Callable[[], object]) -> float:
    """Return the ms from the start of an act to the end of the wait of another thread."""
    ended: SimpleQueue[float] = SimpleQueue()

    def run() -> None:
        wait(subject)
        ended.put(time.perf_counter())

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.005)  # until it sleeps
    began = time.perf_counter()
    act()
    delay = ended.get() - began
    thread.join()
    return delay * 1000


async def _connections(server: Server, count: int) -> int:
    """Return the subscribed connections while many tasks wait for a result each."""
    async with rmq.AsyncClient(server.url) as client:
        topic = client.topic(f"{TOPIC}-many", codec="bytes", results=rmq.Results(keep=60))
        sent = await topic.send_many([rmq.Outgoing(BODY) for _ in range(count)])

        async def wait(id: rmq.MessageId) -> str:
            return (await topic.result(id)).outcome

        tasks = [asyncio.ensure_future(wait(each.id)) for each in sent]
        slots, found = {each.slot for each in sent}, 0
        with server.raw() as raw:
            while len(raw.pubsub_channels("*:results:*")) < len(slots):  # noqa: ASYNC110
                await asyncio.sleep(0.5)  # until all tasks have begun to wait
            found = sum(bool(int(one["sub"])) for one in raw.client_list())
        async with topic.consumer() as consumer:
            while batch := await consumer.receive(1000):
                await consumer.ack(batch)
        assert set(await asyncio.gather(*tasks)) == {"succeeded"}
        return found


def _bytes(server: Server, count: int) -> list[Measurement]:
    """Measure the memory of a progress entry, and of a result with a value of 100 bytes."""
    name, found = f"{TOPIC}-bytes", []
    with server.raw() as raw, rmq.Client(server.url) as client:
        settle(raw)
        topic = client.topic(name, codec="bytes", slots=1, results=rmq.Results())

        def note(title: str) -> None:
            keys = [f"rmq:{{{name}_0}}:{key}" for key in ("results", "keeping")]
            used = sum(int(raw.memory_usage(key, samples=0) or 0) for key in keys)
            found.append(Measurement("results", f"{title}, each", [used / count], "B"))

        with topic.consumer(lease=3600) as consumer:
            for _ in range(count // 1000):
                topic.send_many([rmq.Outgoing(BODY) for _ in range(1000)])
            given = [d for _ in range(count // 1000) for d in consumer.receive(1000)]
            for d in given:
                d.progress(0.5, "page 12 of 30 pages.")
            note("progress, a text of 20 characters")
            for d in given:
                d.ack(result=VALUE)
            note("result, a value of 100 bytes")
    return found
