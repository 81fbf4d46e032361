"""A query on a checkpoint, played without Spark: crashes anywhere, lost leases, lost files.

Spark's part is small: two logs, the order of its calls, and a sink that keeps the first rows of a
batch number. Whatever happens no message is lost, and none comes twice before an error has said so
or the checkpoint was rolled back.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from typing import Any

import pytest

import rmq
from rmq.errors import ConfigurationError, LeaseLost
from spark_connector import options
from spark_connector.schema import stream_schema
from spark_connector.stream import RmqStreamReader
from tests.conftest import any_binary
from tests.servers import Server

POINTS = ("taken", "logged", "planned", "read", "sunk")
Offset = dict[str, Any]


class Crash(Exception):
    """The driver is gone."""


class Engine:
    """A model of Spark, and of its checkpoint between two runs.

    Attributes:
        offsets: the offset log, by batch number.
        commits: numbers in the commit log.
        sink: rows by batch number; it keeps the first ones of a number.
        lazy: the sink runs no task for a number that it knows, as file sinks do.
    """

    def __init__(self, url: str, topic: str, chance: random.Random, lazy: bool) -> None:
        self._url, self._topic, self._chance = url, topic, chance
        self.lazy = lazy
        self.offsets: list[Offset] = []
        self.commits: set[int] = set()
        self.sink: dict[int, list[int]] = {}
        self.newest: tuple[list[Offset], set[int]] = [], set()

    def roll_back(self) -> None:
        """Lose the newest files of both logs."""
        self.newest = list(self.offsets), set(self.commits)
        self.offsets.pop()
        self.commits.discard(len(self.offsets))

    def restore(self) -> None:
        """Bring them back."""
        self.offsets, self.commits = list(self.newest[0]), set(self.newest[1])

    def run(self, on_loss: str, triggers: int, crash_chance: float) -> None:
        """Run the query once. Raises Crash, and the errors of the source."""
        asked = {"url": self._url, "subscribe": self._topic, "pollWaitMs": "0"}
        asked |= {"maxMessagesPerTrigger": str(self._chance.choice([3, 7, 100]))}
        found = options.stream({**asked, "onClaimLoss": on_loss, "ownerLeaseSeconds": "1"})
        reader = RmqStreamReader(found, stream_schema(False))
        try:
            for _ in range(triggers):
                crashes = self._chance.random() < crash_chance
                self._trigger(reader, self._chance.choice(POINTS) if crashes else "")
        finally:
            reader.stop()

    def _trigger(self, reader: RmqStreamReader, crash: str) -> None:
        last = len(self.offsets) - 1
        if self.offsets and last not in self.commits:
            start = self.offsets[last - 1] if last else self._spoken(reader.initialOffset())
            return self._batch(reader, last, start, crash)
        start = self.offsets[-1] if self.offsets else self._spoken(reader.initialOffset())
        end = self._spoken(reader.latestOffset(start, reader.getDefaultReadLimit()))
        self._crash(crash, "taken")
        if end == start and self.offsets:
            return None
        self.offsets.append(end)
        if len(self.offsets) > 1:
            reader.commit(self.offsets[-2])
        self._crash(crash, "logged")
        return self._batch(reader, len(self.offsets) - 1, start, crash)

    def _batch(self, reader: RmqStreamReader, number: int, start: Offset, crash: str) -> None:
        if not (self.lazy and number in self.sink):
            parts = reader.partitions(start, self.offsets[number])
            self._crash(crash, "planned")
            batches = [batch for part in parts for batch in reader.read(part)]
            self._crash(crash, "read")
            values = [value for batch in batches for value in batch.column("value").to_pylist()]
            self.sink.setdefault(number, [json.loads(value) for value in values])
        self._crash(crash, "sunk")
        self.commits.add(number)

    @staticmethod
    def _spoken(offset: Offset) -> Offset:
        """Through JSON, as all that Spark hands over."""
        found: Offset = json.loads(json.dumps(offset))
        return found

    def _crash(self, at: str, point: str) -> None:
        if at == point:
            self.strike()

    def strike(self) -> None:
        """Do what happens at a point."""
        raise Crash


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("rolls_back", [False, True])
def test_no_message_is_lost_and_none_comes_twice_without_a_word(
    client: rmq.Client, server: Server, name: str, rolls_back: bool, lazy: bool, seed: int
) -> None:
    chance = random.Random(seed)
    topic = client.topic(name, slots=2, retry="immediate")
    topic.open()
    engine = Engine(server.url, name, chance, lazy)
    sent, told, rolled_back, on_loss = 0, 0, 0, "fail"
    handled: list[int] = []

    def run(triggers: int, crash_chance: float) -> None:
        """A run, and what an operator does who reads its error."""
        nonlocal told, on_loss
        try:
            engine.run(on_loss, triggers, crash_chance)
            on_loss = "fail"
        except LeaseLost:
            told, on_loss = told + 1, "continue"
        except ConfigurationError as error:
            told += 1
            if "older copy" in str(error):
                engine.restore()
            else:
                on_loss = "continue"

    def waits() -> int:
        stats = client.admin.stats(name)
        return stats["retries"] + stats["priority"] + stats["in_flight"]

    with topic.consumer() as consumer:
        for _ in range(14):
            more = range(sent, sent + chance.choice([0, 4, 9]))
            topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in more])
            sent += len(more)
            with contextlib.suppress(Crash):
                run(chance.randint(1, 4), 0.35)
            if chance.random() < 0.4:
                for query in client.admin.queries(name):
                    client.admin.release_query(name, query.run, force=True)
                for delivery in consumer.receive(chance.randint(1, 8)):
                    if chance.random() < 0.5:
                        consumer.ack([delivery])
                        handled.append(int(delivery.body))
                    else:
                        consumer.nack([delivery])
            if rolls_back and len(engine.offsets) > 1 and chance.random() < 0.3:
                engine.roll_back()
                rolled_back += 1
        for _ in range(60):
            run(4, 0)
            if not waits():
                break

    rows = [row for batch in engine.sink.values() for row in batch]
    assert not waits()
    assert set(rows) | set(handled) == set(range(sent)), "lost"
    if not told and not rolled_back:
        assert sorted(rows + handled) == list(range(sent)), "twice without a word"


@pytest.mark.parametrize("seed", range(4))
def test_a_redis_that_lost_its_last_writes_loses_nothing_and_doubles_what_was_not_settled_before(
    name: str, seed: int
) -> None:
    """As a replica that takes over, and has the messages, but not all that the query did."""
    chance = random.Random(seed)
    server = Server(any_binary())
    everything = set(range(60))
    saved_open, may_double = everything, set[int]()

    class Forgetting(Engine):
        def strike(self) -> None:
            """Redis is again as it was when it was saved; or the driver is gone."""
            if chance.random() < 0.5:
                raise Crash
            server.kill()
            server.start()
            may_double.update(saved_open)

    on_loss = "fail"
    try:
        with rmq.Client(server.url) as client, server.raw() as raw:
            topic = client.topic(name, slots=2, retry="immediate")
            topic.open()
            topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in everything])
            raw.save()
            engine = Forgetting(server.url, name, chance, lazy=False)
            for turn in range(60):
                if chance.random() < 0.7:
                    raw.save()
                    settled = [n for n in engine.commits if n < max(engine.commits)]
                    saved_open = everything.difference(*(engine.sink.get(n, []) for n in settled))
                try:
                    engine.run(on_loss, chance.randint(1, 4), 0.35 if turn < 20 else 0)
                    on_loss = "fail"
                except Crash:
                    pass
                except (LeaseLost, ConfigurationError):
                    on_loss = "continue"
                if turn >= 20 and not client.admin.stats(name)["records"]:
                    break
            assert not client.admin.stats(name)["records"]
    finally:
        server.stop()

    rows = Counter(row for batch in engine.sink.values() for row in batch)
    assert rows.keys() == everything, "lost"
    assert {row for row, times in rows.items() if times > 1} <= may_double
