"""A topic on a cluster is resized 4 -> 16 -> 8 under load; workers and resizers are killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rmq
from tests.clusters import Cluster
from tests.faults.storm import seeded
from tests.faults.test_resize_workers import KILLS, run
from tests.integration.test_resize_counts import check_fences_grow


@pytest.mark.slow  # on one server: tests/faults/test_resize_workers.py
def test_killed_workers_and_resizers_lose_nothing_and_keep_the_order_of_each_key(
    cluster: Cluster, server: Any, name: str, tmp_path: Path
) -> None:
    seed, rng = seeded()

    found, killed = run(server, name, tmp_path / "log", rng)

    told = f"RMQ_TEST_SEED={seed}: {found}; {killed} workers killed"
    assert killed == KILLS, told
    assert not found.lost, told
    assert not found.violations, told
    assert found.again == found.excused
    owners = {cluster.master_of(f"rmq:{{{name}_{slot}}}:slot").port for slot in range(16)}
    assert len(owners) == 3


def test_messages_keep_their_ids_and_can_be_redriven_after_two_resizes(
    cluster: Cluster, api: Any, name: str
) -> None:
    topic = api.topic(name, slots=2)
    sent = topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(40)])

    for slots in (8, 4):
        api.admin.topic_resize(name, slots, wait=False)
        for result in sent:
            assert api.admin.get(name, result.id).id == result.id
        if slots == 8:
            with topic.consumer() as consumer:
                got = consumer.receive(100, wait=5)
                got += consumer.receive(100, wait=0.2)
                for delivery in got[:20]:
                    delivery.reject("bad")
                consumer.ack(got[20:])
            assert api.admin.topic_resize(name, slots).pending == 0
            sent = [result for result in sent if result.id in {each.id for each in got[:20]}]

    assert api.admin.redrive(name).sent == 20
    with topic.consumer() as consumer:
        again = []
        while len(again) < 20 and (batch := consumer.receive(100, wait=5)):
            again += [delivery.id for delivery in batch]
            consumer.ack(batch)
    assert sorted(map(str, again)) == sorted(str(result.id) for result in sent)


def test_fence_of_a_basis_grows_where_its_slots_are_on_several_masters(
    cluster: Cluster, api: Any, name: str
) -> None:
    check_fences_grow(api, name, ordered=True)

    owners = {cluster.master_of(f"rmq:{{{name}_{slot}}}:slot").port for slot in range(8)}
    assert len(owners) > 1
