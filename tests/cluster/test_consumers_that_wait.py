"""A consumer that waits asks few slots: on a cluster, each slot that is asked costs a call."""

from __future__ import annotations

import time
from typing import Any

import pytest

import rmq
from rmq.kernel.consumer import scripts
from rmq.kernel.transport.flow.steps import POLL_S
from tests.clusters import Cluster

SLOTS = 16
MESSAGES = 30


def test_between_two_messages_only_the_slot_that_gave_one_is_asked(
    cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    next_ready = scripts.next_ready

    def counting(slots: Any, waits: bool, many_topics: bool = False) -> Any:
        asked.append(len(slots))
        return next_ready(slots, waits, many_topics)

    monkeypatch.setattr(scripts, "next_ready", counting)
    with rmq.Client(cluster.url) as client:
        topic = client.topic(name, slots=SLOTS)
        with topic.consumer() as consumer:
            assert consumer.receive(wait=0.2) == []
            asked.clear()
            began = time.monotonic()
            for number in range(MESSAGES):
                topic.send(number, slot_basis=str(number))
                (d,) = consumer.receive(wait=10)
                assert d.body == number
                d.ack()
            took_s = time.monotonic() - began

    in_all = [count for count in asked if count == SLOTS]
    assert len(in_all) <= took_s / POLL_S + 2, "all slots are asked once a second"
    # Each is asked before the next sleep, for some slots the one before as well.
    assert sum(asked) - SLOTS * len(in_all) <= 3 * MESSAGES
