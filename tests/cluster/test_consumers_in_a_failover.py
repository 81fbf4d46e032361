"""Consumers of a topic whose slots are on three masters, while one of these fails over."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from queue import SimpleQueue
from typing import Any

import pytest

import rmq
from rmq.core.keys import SlotKeys
from rmq.core.slots import slot_of
from tests.cluster.test_cluster import longest_gap
from tests.clusters import Cluster

SLOTS = 12
PAUSE_S = 0.02  # between two sends to each slot
OUTAGE_S = 4.0  # from the kill until the producers end


class Receiver:
    """A topic, what came of it and when; `run` receives until `ending` is set and no more comes."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name
        self.ending = threading.Event()
        self.came: list[tuple[float, int, int]] = []  # when, the slot, the number
        self.errors: list[BaseException] = []
        self.settled = False
        self._thread = threading.Thread(target=self._guarded)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self.ending.set()
        self._thread.join(60)

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.errors.append(error)

    def run(self) -> None:
        raise NotImplementedError

    def note(self, body: list[int]) -> None:
        self.came.append((time.monotonic(), *body))

    def gap(self, slots: set[int], since: float, until: float) -> float:
        """The longest time without a message of some slots."""
        times = [at for at, slot, _ in self.came if slot in slots and since <= at <= until]
        return longest_gap([since, *times, until])


class Sync(Receiver):
    """Receives in one thread and acks in another: an ack to the dead master takes its time."""

    def tune(self, client: rmq.Client) -> None:
        pass

    def run(self) -> None:
        acks: SimpleQueue[Any] = SimpleQueue()
        with rmq.Client(self.url) as client:
            self.tune(client)
            with client.topic(self.name).consumer(lease=30) as consumer:

                def ack() -> None:
                    while (batch := acks.get()) is not None:
                        consumer.ack(batch)

                acking = threading.Thread(target=ack)
                acking.start()
                while True:
                    ending = self.ending.is_set()
                    batch = consumer.receive(max_messages=20, wait=0.5)
                    for d in batch:
                        self.note(d.body)
                    acks.put(batch)
                    if ending and not batch:
                        break
                acks.put(None)
                acking.join(30)


class Patient(Sync):
    """The control: its takes are repeated until the dead master's slots are served."""

    def tune(self, client: rmq.Client) -> None:
        client._transport._cluster_calls._fail_fast = lambda *_: False  # type: ignore[attr-defined]


class Async(Receiver):
    """Receives in one task; each batch is acked in a task of its own."""

    def run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        async with (
            rmq.AsyncClient(self.url) as client,
            client.topic(self.name).consumer(lease=30) as consumer,
            asyncio.TaskGroup() as tasks,
        ):
            while True:
                ending = self.ending.is_set()
                batch = await consumer.receive(max_messages=20, wait=0.5)
                for d in batch:
                    self.note(d.body)
                if batch:
                    tasks.create_task(consumer.ack(batch))
                elif ending:
                    return


class Working(Receiver):
    """A worker: what it cannot settle at the dead master keeps no other delivery waiting."""

    def run(self) -> None:
        with rmq.Client(self.url) as client:
            topic = client.topic(self.name, slots=SLOTS, lease=30)
            topic.handler(concurrency=4, prefetch=60)(self.note)
            with rmq.Worker(client):
                self.ending.wait()
                counts = -1
                while counts != len(self.came):
                    counts = len(self.came)
                    time.sleep(1)
            self.settled = client.admin.stats(self.name)["in_flight"] == 0


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
                    self._topic.send([slot, number], slot_basis=basis)
                    self.sent.add((slot, number))
                time.sleep(PAUSE_S)
        except BaseException as error:
            self.errors.append(error)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)


@pytest.mark.fault("F15")
def test_a_consumer_goes_on_with_the_slots_of_other_masters(
    own_cluster: Cluster, name: str
) -> None:
    victim, chosen = names(own_cluster, name)
    receivers = {kind: KINDS[kind](own_cluster.url, topic) for kind, (topic, _) in chosen.items()}
    producers: dict[str, list[Producer]] = {}
    with rmq.Client(own_cluster.url) as client:
        for kind, (topic_name, dead) in chosen.items():
            topic = client.topic(topic_name, slots=SLOTS)
            topic.open()
            basis: dict[int, str] = {}
            for n in range(500):
                basis.setdefault(slot_of(str(n), SLOTS), str(n))
            producers[kind] = [
                Producer(topic, {slot: b for slot, b in basis.items() if (slot in dead) is is_dead})
                for is_dead in (False, True)
            ]
        for receiver in receivers.values():
            receiver.start()
        time.sleep(1)
        killed_at = time.monotonic()
        victim.kill()
        time.sleep(OUTAGE_S)
        stopped_at = time.monotonic()
        for producer in (each for pair in producers.values() for each in pair):
            producer.stop()
        for receiver in receivers.values():
            receiver.join()

    living, gone = {}, {}
    for kind, (_, dead) in chosen.items():
        receiver, others = receivers[kind], set(range(SLOTS)) - dead
        living[kind] = receiver.gap(others, killed_at, stopped_at)
        gone[kind] = receiver.gap(dead, killed_at, stopped_at)
        assert receiver.errors == []
        assert [producer.errors for producer in producers[kind]] == [[], []]
        sent = set().union(*(producer.sent for producer in producers[kind]))
        times = Counter((slot, number) for _, slot, number in receiver.came)
        # A replica may lack the last moments of its master: acks among them, and sends.
        assert len([one for one in sent if one[0] not in dead and times[one] != 1]) == 0
        assert len([one for one in sent if one[0] in dead and not times[one]]) < 20
    print(
        "\nFIG longest time without a message of other slots: "
        + ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in living.items())
        + f"; of the dead master's {min(gone.values()):.2f} to {max(gone.values()):.2f} s"
    )
    assert living["sync"] < gone["sync"] / 3
    assert living["async"] < gone["async"] / 3
    assert living["worker"] < gone["worker"] / 3
    assert receivers["worker"].settled, "what was put aside, too"
    assert living["control"] > gone["control"] / 2, "each take waits for its own master"
