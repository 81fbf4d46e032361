"""The cost of follow-ups: ack and send in one step, against an ack and a send."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import rmq
from bench.machine import settle
from bench.measurement import Measurement
from tests.servers import Server

SAME_SLOT, OTHER_TOPIC, WORKER = 1.3, 2.0, 0.5  # targets
FIRST, NEXT = "first", "next"


def follow_ups(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure single acks with a follow-up, and a worker whose handler has a follow-up."""
    count = 300 if quick else 3_000
    measurements = []
    for name, topic, most in (
        ("same slot", FIRST, SAME_SLOT),
        ("another topic", NEXT, OTHER_TOPIC),
    ):
        ratios, costs = [], []
        for number in range(rounds):
            with server.raw() as raw:
                settle(raw)
            took = _turns(server, count, topic, number)
            ratios.append(took[True] / took[False])
            costs.append(took[True] / count * 1e6)
        title = f"ack and send in one step, {name}: time, to two steps"
        measurements.append(
            Measurement("follow-ups", title, ratios, "x", most, True, notes={"us": costs})
        )
    rates = []
    for number in range(rounds):
        found: dict[bool, float] = {}
        for with_one in (bool(number % 2), not number % 2):
            with server.raw() as raw:
                settle(raw)
            found[with_one] = _worker(server, 20_000 if quick else 40_000, with_one)
        rates.append(found[True] / found[False])
    title = "worker with a follow-up for each message: rate, to none"
    return [*measurements, Measurement("follow-ups", title, rates, target=WORKER)]


def _turns(server: Server, count: int, target: str, number: int) -> dict[bool, float]:
    """Return the seconds of acks with a follow-up, and of acks and sends, in turns of 50."""
    took = {True: 0.0, False: 0.0}
    with rmq.Client(server.url) as client:
        first, other = client.topic(FIRST, codec="bytes"), client.topic(target, codec="bytes")
        other.open()
        body = b"x" * 100

        def one_step(d: rmq.Delivery) -> None:
            d.ack(then=[(other, rmq.Outgoing(body))])

        def two_steps(d: rmq.Delivery) -> None:
            other.send(body)
            d.ack()

        ways: list[tuple[bool, Callable[[Any], None]]] = [(True, one_step), (False, two_steps)]
        with first.consumer(lease=600) as consumer:
            for turn in range(count // 50):
                for is_one, way in ways if (turn + number) % 2 else reversed(ways):
                    first.send_many([rmq.Outgoing(body, priority=900) for _ in range(50)])
                    deliveries = consumer.receive(50)
                    began = time.perf_counter()
                    for delivery in deliveries:
                        way(delivery)
                    took[is_one] += time.perf_counter() - began
    return took


def _worker(server: Server, count: int, with_one: bool) -> float:
    """Return the messages per second of a worker."""
    with rmq.Client(server.url) as client:
        topic, other = client.topic(FIRST, codec="bytes"), client.topic(NEXT, codec="bytes")
        other.open()
        topic.open()
        goal = _settled(client) + count * 9 // 10
        for _ in range(count // 1000):
            topic.send_many([rmq.Outgoing(b"x" * 100) for _ in range(1000)])

        def follows(body: bytes, d: rmq.Delivery) -> None:
            d.then(other, body)

        def plain(body: bytes, d: rmq.Delivery) -> None: ...

        topic.handler(follows if with_one else plain)
        with rmq.Worker(client):
            time.sleep(0.3)  # until threads, connections and scripts are ready
            began, already = time.perf_counter(), _settled(client)
            while (done := _settled(client)) < goal:
                time.sleep(0.02)
            took = time.perf_counter() - began
            while _settled(client) < goal + count // 10:
                time.sleep(0.02)
            return (done - already) / took


def _settled(client: rmq.Client) -> int:
    return int(client.admin.stats(FIRST)["settled"])
