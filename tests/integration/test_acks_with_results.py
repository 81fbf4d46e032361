"""Acks in slots that keep results: any consumer may settle there."""

from __future__ import annotations

from typing import Any

import pytest

import rmq
from tests.servers import Server


def keep(server: Server, name: str, *slots: int) -> None:
    """Let slots keep results."""
    with server.raw() as raw:
        for slot in slots:
            raw.hset(f"rmq:{{{name}_{slot}}}:slot", "outcomes", 1)


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_acks_go_on_when_some_slots_keep_results(
    api: Any, server: Server, name: str, mode: str
) -> None:
    topic = api.topic(name, slots=3)
    topic.open()
    for slots in ((), (0,), (0, 1, 2)):
        keep(server, name, *slots)
        topic.send_many([rmq.Outgoing(n) for n in range(30)])
        with topic.consumer(mode=mode) as consumer:
            got: list[int] = []
            while batch := consumer.receive(7, wait=0):
                if mode == "at_least_once":
                    consumer.ack(batch)
                got += [delivery.body for delivery in batch]
        assert sorted(got) == list(range(30))
    stats = api.admin.stats(name)
    assert (stats["settled"], stats["in_flight"], stats["priority"]) == (90, 0, 0)


def test_an_ack_by_receipt_goes_on_too(api: Any, server: Server, name: str) -> None:
    topic = api.topic(name)
    topic.send(1)
    keep(server, name, 0)
    with topic.consumer() as consumer:
        delivery = consumer.receive(wait=5)[0]
        receipt = delivery.receipt
        consumer.ack_receipts([receipt])

    assert api.admin.stats(name)["settled"] == 1
