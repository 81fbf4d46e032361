"""Consumers of a topic whose slots are on three masters, while one of these is away.

It is killed, and its replica takes over when the test tells it to; or it stands still, and goes on
when the test tells it to. So the outage lasts until the test has seen what it asks for, however
slow the machine.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

import rmq
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic.slot_choice import slot_of
from rmq.kernel.transport.cluster.joined_replies import is_unreachable
from tests.clusters import MASTERS, PATIENCE_S, Cluster, until

SLOTS = 12
PAUSE_S = 0.2  # between two sends to each slot
MORE = 3 * SLOTS  # messages, in a row, for which a consumer asks many times
LEASE_S = 600  # no lease ends during an outage
RETRY_S = 30  # of each call; an outage may last longer
TIMEOUT_S = 60  # for each reply, the most that there is
OUTAGE_S = 45  # for messages of other slots: less than for the reply of a node that stands still


def patiently(call: Callable[[], Any]) -> Any:
    """Call again until the outage is over."""
    end = time.monotonic() + 2 * PATIENCE_S
    while True:
        try:
            return call()
        except rmq.StorageError:
            if time.monotonic() > end:
                raise


class Receiver:
    """A topic, what came of it and when; `run` receives until `ending` is set and no more comes."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name
        self.ending = threading.Event()
        self.came: list[tuple[int, int]] = []  # the slot, the number
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._guarded)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self.ending.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{type(self).__name__} does not end"

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.errors.append(error)

    def run(self) -> None:
        raise NotImplementedError

    def note(self, body: list[int]) -> None:
        slot, number = body
        self.came.append((slot, number))

    def count(self, slots: set[int]) -> int:
        """How many messages of some slots have come."""
        return sum(slot in slots for slot, _ in list(self.came))


class Sync(Receiver):
    """Receives in one thread and acks in another: an ack to the dead master takes its time."""

    def tune(self, client: rmq.Client) -> None:
        pass

    def run(self) -> None:
        acks: SimpleQueue[Any] = SimpleQueue()
        with rmq.Client(self.url, retry_for=RETRY_S, timeout=TIMEOUT_S) as client:
            self.tune(client)
            with client.topic(self.name).consumer(lease=LEASE_S) as consumer:

                def ack() -> None:
                    while (batch := acks.get()) is not None:
                        patiently(lambda: consumer.ack(batch))

                acking = threading.Thread(target=ack)
                acking.start()
                while True:
                    ending = self.ending.is_set()
                    batch = patiently(lambda: consumer.receive(max_messages=20, wait=0.5))
                    for d in batch:
                        self.note(d.body)
                    acks.put(batch)
                    if ending and not batch:
                        break
                acks.put(None)
                acking.join(PATIENCE_S)


class Patient(Sync):
    """The control: its takes are repeated until the dead master's slots are served."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(url, name)
        self.waits = threading.Event()

    def tune(self, client: rmq.Client) -> None:
        def wait_instead(tasks: list[Any], _: object) -> bool:
            # A slot that has moved is an error, too: it is asked for elsewhere, and nobody waits.
            if any(task.fails_fast and task.error and is_unreachable(task.error) for task in tasks):
                self.waits.set()
            return False

        client._transport._cluster._fail_fast = wait_instead  # type: ignore[attr-defined]


class Async(Receiver):
    """Receives in one task; each batch is acked in a task of its own."""

    def run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        async with (
            rmq.AsyncClient(self.url, retry_for=RETRY_S, timeout=TIMEOUT_S) as client,
            client.topic(self.name).consumer(lease=LEASE_S) as consumer,
            asyncio.TaskGroup() as tasks,
        ):
            while True:
                ending = self.ending.is_set()
                batch = await self._patiently(lambda: consumer.receive(max_messages=20, wait=0.5))
                for d in batch:
                    self.note(d.body)
                if batch:
                    tasks.create_task(self._patiently(partial(consumer.ack, batch)))
                elif ending:
                    return

    async def _patiently(self, call: Callable[[], Any]) -> Any:
        """Call again until the outage is over: it may last longer than a call is repeated."""
        end = time.monotonic() + 2 * PATIENCE_S
        while True:
            try:
                return await call()
            except rmq.StorageError:
                if time.monotonic() > end:
                    raise


class Working(Receiver):
    """A worker: what it cannot settle at the dead master keeps no other delivery waiting."""

    def run(self) -> None:
        with rmq.Client(self.url, retry_for=RETRY_S, timeout=TIMEOUT_S) as client:
            topic = client.topic(self.name, slots=SLOTS, lease=LEASE_S)
            topic.handler(concurrency=4, prefetch=60)(self.note)
            with rmq.Worker(client):
                self.ending.wait()
                # What was put aside is settled, too.
                until(lambda: client.admin.stats(self.name)["records"] == 0, text="a drained topic")


KINDS: dict[str, type[Receiver]] = {
    "sync": Sync, "async": Async, "worker": Working, "control": Patient,
}  # fmt: skip


def names(cluster: Cluster, name: str) -> tuple[Any, dict[str, tuple[str, set[int]]]]:
    """A master, and for each kind the name of a topic with the slots that this master has."""
    victim = cluster.masters()[0]
    chosen = {}
    for kind in KINDS:
        for number in range(100):
            topic = f"{name}-{kind}-{number}"
            of_victim = {
                slot
                for slot in range(SLOTS)
                if cluster.master_of(SlotKeys("rmq", topic, slot).slot) is victim
            }
            if 1 < len(of_victim) < SLOTS - 1:
                break
        chosen[kind] = topic, of_victim
    return victim, chosen


class Producer:
    """Sends to some slots of a topic, one after the other, until it is stopped."""

    def __init__(self, topic: Any, slots: dict[int, str]) -> None:
        self.sent: set[tuple[int, int]] = set()
        self.errors: list[BaseException] = []
        self._topic = topic
        self._slots = slots
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        try:
            while not self._stopping.is_set():
                number += 1
                for slot, basis in self._slots.items():
                    id = self._topic.new_id(basis)
                    patiently(partial(self._topic.send, [slot, number], id=id))
                    self.sent.add((slot, number))
                time.sleep(PAUSE_S)
        except BaseException as error:
            self.errors.append(error)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "a producer does not end"


def begin(
    client: rmq.Client, chosen: dict[str, tuple[str, set[int]]]
) -> dict[str, tuple[Producer, Producer]]:
    """Send to the topic of each kind: one producer to living slots, one to those of the victim."""
    producers = {}
    for kind, (topic_name, dead) in chosen.items():
        topic = client.topic(topic_name, slots=SLOTS, lease=LEASE_S)
        topic.open()
        basis: dict[int, str] = {}
        for n in range(500):
            basis.setdefault(slot_of(str(n), SLOTS), str(n))
        living = {slot: b for slot, b in basis.items() if slot not in dead}
        gone = {slot: b for slot, b in basis.items() if slot in dead}
        producers[kind] = Producer(topic, living), Producer(topic, gone)
    return producers


@pytest.mark.parametrize(
    "is_killed",
    [pytest.param(True, marks=pytest.mark.fault("F15"), id="killed"),
     pytest.param(False, marks=[pytest.mark.fault("F32"), pytest.mark.slow], id="frozen")],
)  # fmt: skip
def test_a_consumer_goes_on_with_the_slots_of_other_masters(
    calm_cluster: Cluster, name: str, is_killed: bool
) -> None:
    cluster = calm_cluster
    victim, chosen = names(cluster, name)
    receivers = {kind: KINDS[kind](cluster.url, topic) for kind, (topic, _) in chosen.items()}
    others = {kind: set(range(SLOTS)) - dead for kind, (_, dead) in chosen.items()}
    control = receivers["control"]
    assert isinstance(control, Patient)

    def wait_for_more(
        slots: dict[str, set[int]], kinds: list[str], text: str, wait_s: float = PATIENCE_S
    ) -> None:
        start = {kind: receivers[kind].count(slots[kind]) for kind in kinds}
        for kind in kinds:
            until(lambda kind=kind: has_more(kind, slots, start), wait_s, f"{text}: {kind}")

    def has_more(kind: str, slots: dict[str, set[int]], start: dict[str, int]) -> bool:
        assert receivers[kind].errors == [], kind
        return receivers[kind].count(slots[kind]) >= start[kind] + MORE

    living_kinds = [kind for kind in KINDS if kind != "control"]
    all_slots = {kind: set(range(SLOTS)) for kind in KINDS}
    blocked = 0
    with rmq.Client(cluster.url, retry_for=RETRY_S) as client:
        producers = begin(client, chosen)
        try:
            for receiver in receivers.values():
                receiver.start()
            wait_for_more(all_slots, list(KINDS), "before the outage")
            assert not control.waits.is_set()
            if is_killed:
                victim.kill()
            else:
                victim.signal(signal.SIGSTOP)
            try:
                # Twice: by the first, each has asked for the dead master's slots.
                wait_for_more(others, living_kinds, "in the outage", OUTAGE_S)
                until(control.waits.is_set, text="the control waits for the dead master")
                before = receivers["control"].count(others["control"])
                wait_for_more(others, living_kinds, "in the outage", OUTAGE_S)
                blocked = receivers["control"].count(others["control"]) - before
                assert receivers["sync"].errors == []
            finally:
                if is_killed:
                    replica = cluster.nodes[cluster.nodes.index(victim) + MASTERS]
                    replica.call("CLUSTER FAILOVER", "TAKEOVER")
                else:
                    victim.signal(signal.SIGCONT)
            gone = {kind: dead for kind, (_, dead) in chosen.items()}
            wait_for_more(gone, list(KINDS), "after the outage")
        finally:
            for producer in (each for pair in producers.values() for each in pair):
                producer.stop()
            for receiver in receivers.values():
                receiver.join()

    print(f"\nFIG in the outage {MORE} messages of other slots and more; control {blocked}")
    for kind, (_, dead) in chosen.items():
        assert receivers[kind].errors == []
        assert [producer.errors for producer in producers[kind]] == [[], []]
        sent = set().union(*(producer.sent for producer in producers[kind]))
        times = Counter(receivers[kind].came)
        # A replica may lack the last moments of its master: acks among them, and sends.
        assert len([one for one in sent if one[0] not in dead and times[one] != 1]) == 0
        assert len([one for one in sent if one[0] in dead and not times[one]]) < 20
    assert blocked < MORE / 3, "each take of the control waits for its own master"
