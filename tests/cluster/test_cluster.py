"""A topic on a real cluster: its slots on all masters, through a reshard and a kill -9."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

import rmq
from rmq.kernel.core.keys import SlotKeys, topic_key
from rmq.kernel.transport import errors
from rmq.kernel.transport.cluster import node_call
from rmq.kernel.transport.hash_slots import SlotTable, hash_slot
from tests.cluster.conftest import ClusterAsServer
from tests.clusters import MASTERS, PATIENCE_S, Cluster, until
from tests.conftest import any_binary
from tests.patience import asleep

SLOTS = 16
REPLICA_WAIT_S = 0.2  # for a confirmation; a replica that was promoted has none of its own
PACE_S = 0.03  # between two sends to a slot
HASH_SLOT_PAUSE_S = 0.03  # between two keys of a slot that moves: about ten keys


def receive_all(topic: Any, count: int, wait_s: float = PATIENCE_S) -> Counter[Any]:
    """Receive and ack until so many messages have come, and nothing more does for a moment."""
    bodies: Counter[Any] = Counter()
    end = time.monotonic() + wait_s
    with topic.consumer(lease=300) as consumer:
        while bodies.total() < count and time.monotonic() < end:
            batch = consumer.receive(max_messages=100, wait=1)
            assert consumer.ack(batch) == []
            bodies.update(d.body for d in batch)
        bodies.update(d.body for d in consumer.receive(max_messages=100, wait=0))
    return bodies


def test_slots_are_spread_over_all_masters_and_evenly(
    cluster: Cluster, api: Any, name: str
) -> None:
    topic = api.topic(name, slots=SLOTS)
    results = topic.send_many([rmq.Outgoing(n) for n in range(1600)])

    of_master: Counter[int] = Counter()
    for result in results:
        of_master[cluster.master_of(SlotKeys("rmq", name, result.slot).slot).port] += 1
    assert len(of_master) == 3
    by_slot = [slot["accepted"] for slot in api.admin.stats_by_slot(name)]
    assert sum(by_slot) == 1600
    assert max(by_slot) <= 2 * min(by_slot)
    assert receive_all(topic, 1600) == Counter(range(1600))
    assert api.admin.stats(name)["settled"] == 1600


def test_a_consumer_is_woken_by_a_send_to_any_slot(
    server: ClusterAsServer, api: Any, name: str
) -> None:
    topic = api.topic(name, slots=SLOTS)
    topic.open()
    sent: list[float] = []

    def send_soon(number: int) -> None:
        asleep(server, name)  # type: ignore[arg-type]
        with rmq.Client(server.url) as other:
            sent.append(time.monotonic())
            other.topic(name).send(number, slot_basis=str(number))

    late = []
    with topic.consumer() as consumer:
        for number in range(8):
            sender = threading.Thread(target=send_soon, args=(number,))
            sender.start()
            (d,) = consumer.receive(wait=20)
            sender.join()
            late.append(time.monotonic() - sent[-1])
            d.ack()
    # By the signal, not by the look once a second, which would be 0.5 s late on average.
    assert min(late) < 0.5, late


def test_scripts_that_a_node_has_lost_are_loaded_again(
    cluster: Cluster, api: Any, name: str
) -> None:
    topic = api.topic(name, slots=SLOTS)
    topic.send_many([rmq.Outgoing(n) for n in range(100)])
    cluster.flush_scripts()
    topic.send(100)
    cluster.flush_scripts()
    topic.send_many([rmq.Outgoing(n) for n in range(101, 200)])
    cluster.flush_scripts()

    assert receive_all(topic, 200) == Counter(range(200))


def test_durability_is_the_least_of_all_nodes(api: Any, name: str) -> None:
    topic = api.topic(name, slots=SLOTS)
    results = topic.send_many(
        [rmq.Outgoing(n) for n in range(100)], durability=rmq.Replicated(1, 5)
    )
    assert {result.durable for result in results} == {"replicated"}
    with pytest.raises(rmq.NotDurable, match="1 replicas"):
        topic.send_many([rmq.Outgoing(n) for n in range(100)], durability=rmq.Replicated(2, 0.1))


def test_a_deleted_topic_leaves_no_key_on_any_master(cluster: Cluster, api: Any, name: str) -> None:
    topic = api.topic(name, slots=SLOTS)
    topic.send_many([rmq.Outgoing(n) for n in range(100)])
    topic.stage("left").push([rmq.Outgoing(n, slot_basis=str(n)) for n in range(100)])

    api.admin.topic_delete(name, force=True)

    left = [key for node in cluster.masters() for key in node.raw().scan_iter(f"*{name}*")]
    assert left == []


def test_a_worker_hears_of_requests_to_cancel_on_every_master(
    client: rmq.Client, name: str
) -> None:
    topic = client.topic(name, slots=SLOTS)
    begun: list[int] = []

    @topic.handler(concurrency=SLOTS)
    def wait(body: int, d: rmq.Delivery) -> None:
        begun.append(body)
        assert d.cancelled.wait(PATIENCE_S)
        d.checkpoint()

    ids = [topic.send(number, slot_basis=str(number)).id for number in range(SLOTS)]
    with rmq.Worker(client, heartbeat="thread"):
        until(lambda: len(begun) == SLOTS, text="all are run")
        assert {topic.cancel(id, running=True) for id in ids} == {"requested"}
        until(lambda: client.admin.stats(name)["cancelled"] == SLOTS, text="all are cancelled")
    assert client.admin.stats(name)["records"] == 0


@pytest.mark.parametrize("heartbeat", ["process", "thread"])
def test_a_worker_keeps_leases_on_every_master(
    cluster: Cluster, server: ClusterAsServer, client: rmq.Client, name: str, heartbeat: Any
) -> None:
    topic = client.topic(name, slots=SLOTS, lease=5)
    runs: Counter[Any] = Counter()
    over = threading.Event()

    def ends() -> list[float]:
        """When the leases of all slots end, by Redis."""
        keys = [SlotKeys("rmq", name, slot).leases for slot in range(SLOTS)]
        leases: list[Any] = [server.raw().zrange(key, 0, 0, withscores=True) for key in keys]
        return [float(lease[0][1]) if lease else 0.0 for lease in leases]

    @topic.handler(concurrency=SLOTS)
    def slow(body: int) -> None:
        runs[body] += 1
        over.wait(PATIENCE_S)

    for number in range(SLOTS):
        topic.send(number, slot_basis=str(number))
    with rmq.Worker(client, heartbeat=heartbeat):
        until(lambda: len(runs) == SLOTS, text="all are run")
        first = ends()
        held = [slot for slot, end in enumerate(first) if end]
        assert len({cluster.master_of(SlotKeys("rmq", name, slot).slot) for slot in held}) == 3
        # Had nobody renewed them, the leases would have ended by then.
        until(lambda: min(ends()[slot] for slot in held) > max(first), text="all are renewed")
        over.set()
        until(lambda: client.admin.stats(name)["settled"] == SLOTS, text="all is settled")
    assert runs == Counter(range(SLOTS)), "no lease has ended"
    assert client.admin.stats(name)["rolled_back"] == 0


@pytest.fixture
def client(cluster: Cluster) -> Iterator[rmq.Client]:
    with rmq.Client(cluster.url) as made:
        yield made


# --- a slot moves --------------------------------------------------------------------------------


class Load:
    """Producers, and a consumer, of a topic; what was sent, what has come, and every error."""

    def __init__(self, url: str, name: str, durability: Any = None, **options: Any) -> None:
        self.client = rmq.Client(url, **options)
        self.topic = self.client.topic(name, slots=SLOTS, lease=300)
        # Messages of later and of remembered keys, so that a slot has several keys at all times.
        self.later = self.topic.send_many(
            [rmq.Outgoing(-n, slot_basis=str(n), delay=3600, dedup_key=str(n)) for n in range(200)]
        )
        self.durability = durability
        self.sent: list[tuple[float, int, int]] = []  # when, the slot, the number
        self.stored: list[tuple[float, int]] = []  # when and the slot, confirmed or not
        self.received: Counter[int] = Counter()
        self.errors: list[BaseException] = []
        self._stopping = threading.Event()
        self._is_sent = threading.Event()
        # One for each slot: a slot that does not answer keeps no other waiting.
        basis = {result.slot: str(n) for n, result in enumerate(self.later)}
        assert len(basis) == SLOTS
        self._producers = [
            threading.Thread(target=self._guard(self._produce), args=(slot, basis[slot]))
            for slot in range(SLOTS)
        ]
        self._consumer = threading.Thread(target=self._guard(self._consume))
        for thread in (*self._producers, self._consumer):
            thread.start()

    def _guard(self, work: Callable[..., None]) -> Callable[..., None]:
        def guarded(*args: Any) -> None:
            try:
                work(*args)
            except BaseException as error:
                self.errors.append(error)

        return guarded

    def _produce(self, slot: int, basis: str) -> None:
        number = slot
        while not self._stopping.is_set():
            try:
                self.topic.send(number, slot_basis=basis, durability=self.durability)
                self.sent.append((time.monotonic(), slot, number))
            except rmq.NotDurable:
                pass  # a replica that was promoted has none of its own
            self.stored.append((time.monotonic(), slot))
            number += SLOTS
            time.sleep(PACE_S)

    def _consume(self) -> None:
        with self.topic.consumer() as consumer:
            while True:
                ending = self._is_sent.is_set()
                batch = consumer.receive(max_messages=100, wait=0.5)
                consumer.ack(batch)
                self.received.update(d.body for d in batch)
                if ending and not batch:
                    return

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._producers:
            thread.join(PATIENCE_S)
        self._is_sent.set()
        self._consumer.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in (*self._producers, self._consumer))
        self.client.close()

    def lost(self) -> set[int]:
        return {number for _, _, number in self.sent} - set(self.received)


def busiest_slot(name: str) -> int:
    return hash_slot(SlotKeys("rmq", name, 0).slot)


def reshard(cluster: Cluster, name: str, pause_s: float = HASH_SLOT_PAUSE_S) -> None:
    """Move the hash slot of slot 0 to another master, and back."""
    home = cluster.master_of(SlotKeys("rmq", name, 0).slot)
    other = next(node for node in cluster.masters() if node is not home)
    slot = busiest_slot(name)
    for target in (other, home):
        assert cluster.move(slot, target, pause_s) > 1
        time.sleep(0.2)


@pytest.mark.fault("F16")
def test_a_slot_moves_under_load_without_an_error_or_a_loss(cluster: Cluster, name: str) -> None:
    load = Load(cluster.url, name)
    try:
        until(lambda: stored_in(load, {0}) > 5, text="a load")
        reshard(cluster, name)
    finally:
        load.stop()

    gaps = [longest_gap([at for at, slot in load.stored if slot == one]) for one in range(SLOTS)]
    print(
        f"\nFIG longest gap {gaps[0]:.2f} s in the slot that moved twice, {max(gaps[1:]):.2f} s "
        f"in others; {len(load.sent)} sent, errors {len(load.errors)}, lost {len(load.lost())}, "
        f"delivered twice {sum(count > 1 for count in load.received.values())}"
    )
    assert load.errors == []
    assert len(load.sent) > 100
    assert load.lost() == set()
    assert max(load.received.values()) == 1
    with rmq.Client(cluster.url) as client:
        (stats, *_) = client.admin.stats_by_slot(name)
        later = sum(result.slot == 0 for result in load.later)
        assert stats["accepted"] - later == stats["settled"] > 0
        assert stats["records"] == stats["later"] == later  # no script was applied by halves


def test_an_async_client_follows_a_slot_that_moves(cluster: Cluster, name: str) -> None:
    async def main() -> int:
        async with rmq.AsyncClient(cluster.url) as client:
            topic = client.topic(name, slots=SLOTS)
            await topic.open()
            sent, moving = 0, asyncio.create_task(asyncio.to_thread(reshard, cluster, name))
            basis = [str(n) for n in range(64)]
            while not moving.done() or sent == 0:
                results = await topic.send_many([rmq.Outgoing(n, slot_basis=n) for n in basis])
                sent += len(results)
            await moving
            return sent

    with rmq.Client(cluster.url) as client:
        topic = client.topic(name, slots=SLOTS)
        topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(64)])  # keys to move
        sent = asyncio.run(main())
        assert client.admin.stats(name)["accepted"] == sent + 64


@pytest.fixture
def moving(cluster: Cluster, client: rmq.Client, name: str) -> Iterator[rmq.Client]:
    """A client whose topic's key has moved, while its hash slot has not yet."""
    client.topic(name).open()
    home = cluster.master_of(topic_key("rmq", name))
    other = next(node for node in cluster.masters() if node is not home)
    slot = hash_slot(topic_key("rmq", name))
    assert cluster.begin_move(slot, other) is home
    cluster.migrate(slot, home, other)
    other.raw().script_flush()
    yield client
    cluster.end_move(slot, home, other)
    assert client.admin.settings(name).slots == 1


@pytest.mark.fault("F16")
def test_what_has_gone_ahead_of_its_slot_is_asked_for(moving: rmq.Client, name: str) -> None:
    assert moving.admin.settings(name).slots == 1


@pytest.mark.fault("F16", control=True)
def test_control_without_asking_what_has_gone_ahead_is_not_found(
    cluster: Cluster, moving: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_call, "_ASKING", b"*1\r\n$4\r\nPING\r\n")
    with rmq.Client(cluster.url, retry_for=0.5) as client, pytest.raises(rmq.Unavailable):
        client.admin.settings(name)
    monkeypatch.undo()


@pytest.mark.fault("F15", "F16", control=True)
def test_control_without_the_table_a_slot_that_moved_is_never_found(
    cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rmq.Client(cluster.url, retry_for=1) as client:
        topic = client.topic(name, slots=1)
        topic.send(1)
        monkeypatch.setattr(SlotTable, "note_moved", lambda *_: False)
        monkeypatch.setattr(SlotTable, "read", lambda *_: None)
        home = cluster.master_of(SlotKeys("rmq", name, 0).slot)
        other = next(node for node in cluster.masters() if node is not home)
        cluster.move(busiest_slot(name), other)
        with pytest.raises(rmq.Unavailable):
            topic.send(2)
        monkeypatch.undo()
        assert topic.send(2).status == "stored"


# --- a master dies -------------------------------------------------------------------------------


def longest_gap(times: list[float]) -> float:
    ordered = sorted(times)
    return max((b - a for a, b in pairwise(ordered)), default=float("inf"))


def stored_in(load: Load, slots: set[int]) -> int:
    return sum(slot in slots for _, slot in list(load.stored))


@pytest.mark.fault("F15")
def test_a_killed_master_is_followed_by_its_replica_and_nothing_confirmed_is_lost(
    own_cluster: Cluster, name: str
) -> None:
    """Its slots are served again without anybody's help; meanwhile the others go on."""
    cluster = own_cluster
    load = Load(cluster.url, name, durability=rmq.Replicated(1, REPLICA_WAIT_S), retry_for=30)
    victim_key = SlotKeys("rmq", name, 0).slot
    try:
        until(lambda: stored_in(load, {0}) > 20, text="a load")
        victim = cluster.master_of(victim_key)
        of_victim = {
            n for n in range(SLOTS) if cluster.master_of(SlotKeys("rmq", name, n).slot) is victim
        }
        others = set(range(SLOTS)) - of_victim
        before = {slot: stored_in(load, {slot}) for slot in others}
        killed_at = time.monotonic()
        victim.kill()
        until(
            lambda: all(stored_in(load, {slot}) > before[slot] + 5 for slot in others),
            text="the other slots go on",
        )
        gone = stored_in(load, of_victim)
        until(lambda: cluster.master_of(victim_key) is not victim, text="another master")
        until(lambda: stored_in(load, of_victim) > gone + 50, text="the dead master's slots go on")
    finally:
        load.stop()

    gap = longest_gap([at for at, slot in load.stored if slot in of_victim and at > killed_at - 1])
    print(
        f"\nFIG longest gap {gap:.2f} s in the slots of the dead master; {len(load.sent)} sent, "
        f"errors {len(load.errors)}, lost {len(load.lost())}"
    )
    assert load.errors == []
    assert load.lost() == set()


class Outage(NamedTuple):
    """Results of sends while a master and its replica were dead.

    Attributes:
        dead: slots without a node.
        stored, elsewhere: sends that were stored, and those to slots with a node.
        definite, unknown: sends that failed and said that nothing was done, or that it may be.
        longest_s: the slowest send that was stored.
        lost: confirmed messages that did not come after the return.
    """

    dead: int
    stored: int
    elsewhere: int
    definite: int
    unknown: int
    longest_s: float
    lost: int

    def __str__(self) -> str:
        tried = self.stored + self.definite + self.unknown
        return (
            f"{self.dead} of {SLOTS} slots without a node: {100 * self.stored / tried:.0f} % of "
            f"{tried} sends stored, the longest {self.longest_s * 1000:.0f} ms; {self.definite} "
            f"failed as not done, {self.unknown} as unknown; lost {self.lost} at the return"
        )


def without_a_node(name: str) -> Outage:
    """Kill a master and its replica, send to all slots, start the master, and receive all."""
    cluster = Cluster(any_binary(), "--appendonly", "yes", is_calm=True)
    try:
        with rmq.Client(cluster.url, retry_for=0.3) as client:
            topic = client.topic(name, slots=SLOTS)
            results = topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(200)])
            master = cluster.master_of(SlotKeys("rmq", name, 0).slot)
            replica = cluster.nodes[cluster.nodes.index(master) + MASTERS]
            masters = [cluster.master_of(SlotKeys("rmq", name, n).slot) for n in range(SLOTS)]
            dead = {slot for slot, node in enumerate(masters) if node is master}
            replica.kill()
            master.kill()

            took: list[float] = []
            failed: Counter[type[rmq.RMQError]] = Counter()
            for number in range(40):
                began = time.monotonic()
                try:
                    topic.send(number, slot_basis=str(number))
                    took.append(time.monotonic() - began)
                except rmq.StorageError as error:
                    assert results[number].slot in dead, "other slots go on"
                    failed[type(error)] += 1

            master.start()
            cluster.wait_ok()
            expected = 200 + len(took)
            received = receive_all(topic, expected).total()
            return Outage(
                len(dead), len(took), sum(one.slot not in dead for one in results[:40]),
                failed[rmq.Unavailable], failed[rmq.OutcomeUnknown], max(took),
                max(0, expected - received),
            )  # fmt: skip
    finally:
        cluster.stop()


@pytest.mark.fault("F17")
def test_while_a_slot_has_no_node_the_others_go_on_and_nothing_is_lost_at_its_return(
    name: str,
) -> None:
    found = without_a_node(name)

    print(f"\nFIG {found}")
    assert found.stored == found.elsewhere > 10
    assert found.definite > 1
    assert found.unknown <= 1, "the first may have lost its reply"
    assert found.lost == 0


@pytest.mark.fault("F17", control=True)
def test_control_a_client_that_does_not_know_what_it_never_sent_calls_it_unknown(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "_NEVER_SENT", ())
    found = without_a_node(name)

    print(f"\nFIG control, no word of what was never sent: {found}")
    assert found.unknown > 1
    assert found.definite == 0
