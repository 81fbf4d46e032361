"""Counts of slots in topics that are resized: delivery numbers, and shares of a limit."""

from __future__ import annotations

import time
from typing import Any

import pytest

import rmq
from tests.integration.driven import both_clients
from tests.integration.test_resize import basis_of, drain


@both_clients
@pytest.mark.parametrize("ordered", [True, False])
def test_fence_of_a_basis_grows_over_resizes(api: Any, name: str, ordered: bool) -> None:
    check_fences_grow(api, name, ordered)


def check_fences_grow(api: Any, name: str, ordered: bool) -> None:
    """Resize a topic up and down, and compare the fences of each basis, as a database would."""
    bases = [basis_of(slot, 8) for slot in range(8)]
    topic = api.topic(name, slots=1)
    topic.send(None)
    drain(topic)
    fences = dict.fromkeys(bases, 0)
    for slots in (1, 4, 8, 2, 1, 2):
        api.admin.topic_resize(name, slots, wait=False)
        for _ in range(3):
            topic.send_many([rmq.Outgoing(basis, slot_basis=basis) for basis in bases])
            assert api.admin.topic_resize(name, slots).pending == 0
            for fence, basis in take_fences(topic, len(bases), ordered):
                assert fence > fences[basis], f"a conditional write is refused, {slots} slots"
                fences[basis] = fence
    counts = api.admin.stats(name)
    assert counts["delivered"] == counts["settled"] == 1 + 6 * 3 * len(bases)


def take_fences(topic: Any, count: int, ordered: bool) -> list[tuple[int, str]]:
    """Receive and settle so many messages; return their fences and bodies."""
    found: list[tuple[int, str]] = []
    with topic.consumer(ordered=ordered) as consumer:
        while len(found) < count:
            batch = consumer.receive(10, wait=10)
            assert batch
            found += [(delivery.fence, delivery.body) for delivery in batch]
            consumer.ack(batch)
    return found


def test_fences_grow_for_what_a_resize_does_not_wait_for(api: Any, name: str) -> None:
    """Dead letters and retries stay in slot 0, where much is delivered; new messages are in 3."""
    basis, others = basis_of(3, 4), basis_of(0, 4)
    topic = api.topic(name, slots=1, retry="immediate")
    with topic.consumer() as consumer:
        for late in ("dead", "failed"):
            topic.send(late, slot_basis=basis)
            (delivery,) = consumer.receive(1, wait=5)
            delivery.reject("bad") if late == "dead" else delivery.nack(delay=60)
        failed = delivery.id

        api.admin.topic_resize(name, 4)

        fences = []
        for step in ("new", "dead", "new", "failed", "new"):
            topic.send_many([rmq.Outgoing("other", slot_basis=others) for _ in range(20)])
            if step == "new":
                topic.send(step, slot_basis=basis)
            elif step == "dead":
                assert api.admin.redrive(name).sent == 1
            else:
                topic.reschedule(failed, delay=0)
            left = 21
            while left:
                batch = consumer.receive(left, wait=5)
                fences += [d.fence for d in batch if d.body != "other"]
                left -= len(batch)
                consumer.ack(batch)
                time.sleep(0.005)  # numbers of two slots tell apart what is 4 ms apart
    assert fences == sorted(set(fences))
    assert len(fences) == 5
    assert api.admin.stats(name)["delivered"] == 107


@pytest.mark.parametrize("before", [1, 16])
@pytest.mark.parametrize("kind", ["slot_basis", "dedup_key", "neither"])
def test_a_resized_topic_holds_its_max_length_and_not_more(
    api: Any, name: str, before: int, kind: str
) -> None:
    topic = api.topic(name, slots=before, max_length=200)
    for n in range(60):
        topic.send(n, slot_basis=str(n))
    api.admin.topic_resize(name, 17 - before, wait=False)

    stored, refused = 60, 0
    for n in range(60, 400):
        try:
            topic.send(n, **({} if kind == "neither" else {kind: str(n)}))
            stored += 1
        except rmq.QueueFull:
            refused += 1
            if refused == 1:
                least = stored
    assert least >= 200 - 16, "it is refused early"
    assert 200 <= stored <= 200 + 16, "each slot may take one more than its part"
    assert api.admin.stats(name)["priority"] == stored
    assert api.admin.purge(name, "store") == stored
    assert topic.send("room", slot_basis="1").status == "stored"


def test_a_limit_of_a_resized_topic_is_one_limit_for_all_slots_that_it_has_had(
    api: Any, name: str
) -> None:
    topic = api.topic(name, slots=8)
    topic.open()
    api.admin.topic_resize(name, 1)

    with pytest.raises(rmq.InvalidValue, match="the 8 slots that may have messages"):
        api.admin.topic_set(name, limit=rmq.Concurrency(1))
    api.admin.topic_set(name, limit=rmq.Concurrency(20))
    for n in range(100):
        topic.send(n, dedup_key=str(n))
        topic.send(n, slot_basis=str(n))
    with topic.consumer() as consumer:
        held = [d for _ in range(20) for d in consumer.receive(100)]
        assert 12 <= len(held) <= 20
        assert len(held) == api.admin.stats(name)["in_flight"]
        consumer.ack(held)
