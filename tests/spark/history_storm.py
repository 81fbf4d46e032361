"""Kills around two queries over one history: `python -m tests.spark.history_storm [--kills 12]`.

Workers ack numbered messages of a topic that keeps a history. Two queries with consume=false read
it, and write a file for each batch. Each number has to be in the files of each query once.

A kill hits the JVM, a source runner, a worker of Python, the whole group, or Redis (which keeps all
that it has answered). Meanwhile the topic is resized from 4 slots to 64 and to 8.

Variants that are wrong on purpose, so the check has to find them: `--broken reads-on` (a task reads
up to the newest ack) and `--broken skips-logged` (a batch that an earlier run began is not read
again).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

import rmq
from spark_connector import RmqDataSource, options
from spark_connector.connection import client_of_task
from spark_connector.history import (
    HistoryPart,
    HistoryStreamReader,
    Position,
    is_behind,
    read_offset,
)
from tests.spark.conftest import environment, session
from tests.spark.storm import KINDS, MOST, PATIENCE_S, Storm, batches

TOPIC, QUERIES = "orders", ("first", "second")
BROKEN = ("reads-on", "skips-logged")
NAME = "rmq_history_storm"  # to pass to `format()`
KEEP = rmq.History(keep="1h", max_bytes="2GiB")


class ReadsOn(HistoryStreamReader):
    """Lets a task read up to the newest ack, and not up to the end of the batch."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, HistoryPart)
        newest = client_of_task(self._options.at).topic(TOPIC).history.position()
        spans = tuple(
            replace(span, upto={slot: newest[slot] for slot in span.upto})
            for span in partition.spans
        )
        return super().read(HistoryPart(spans))


class SkipsLogged(HistoryStreamReader):
    """Reads no batch again that an earlier run has begun."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[HistoryPart]:
        planned = super().partitions(start, end)
        is_ours = self._batch is not None and self._batch[1] == read_offset(end)
        return planned if is_ours else []


def source_with(broken: str) -> type[RmqDataSource]:
    variants = {"reads-on": ReadsOn, "skips-logged": SkipsLogged}
    reader = variants.get(broken, HistoryStreamReader)

    class Source(RmqDataSource):
        """The data source, with such readers. Spark 4.0 refuses to register a known name."""

        @classmethod
        def name(cls) -> str:
            return NAME

        def streamReader(self, schema: StructType) -> HistoryStreamReader:
            return reader(options.history(self.options), schema)

    return Source


def drive(url: str, home: Path, broken: str) -> None:
    """Run both queries until one of them fails."""
    os.environ.update(environment())
    spark = session("local[2]")
    spark.dataSource.register(source_with(broken))

    def keep(name: str, rows: DataFrame, batch: int) -> None:
        values = sorted(int(bytes(row.value)) for row in rows.select("value").collect())
        spark.conf.get("spark.app.id")  # raises if the JVM died, so that rows may be missing
        path = home / "batches" / f"{name}-{batch}"
        if path.exists() and (before := json.loads(path.read_text())) != values:
            (home / "differs").write_text(json.dumps({path.name: [before, values]}))
        path.with_suffix(".new").write_text(json.dumps(values))
        path.with_suffix(".new").rename(path)

    queries = []
    starts = ({"startingOffsets": "earliest"}, {"startingTimestamp": "2026-01-01"})
    for name, start in zip(QUERIES, starts, strict=True):
        asked = {
            "url": url, "subscribe": TOPIC, "consume": "false", "rowsPerTask": "100",
            "maxMessagesPerTrigger": str(MOST),
        }  # fmt: skip
        rows = spark.readStream.format(NAME).options(**asked, **start).load()
        writer = rows.writeStream.foreachBatch(partial(keep, name))
        queries.append(writer.option("checkpointLocation", str(home / "checkpoints" / name)))
    running = [query.start() for query in queries]
    while all(query.isActive for query in running):
        time.sleep(0.2)
    print("\n".join(str(query.exception()) for query in running if not query.isActive), flush=True)
    os._exit(1)  # at once: a broken query would only be stopped slowly


class HistoryOutcome(NamedTuple):
    """What a storm left.

    Attributes:
        sent: messages, each of which was acked.
        kept: messages in the history.
        missing: numbers that a query lacks, of both queries.
        double: numbers that a query has several times, of both queries.
        differs: whether a batch came back with other rows.
        kills: by kind.
        batches: files.
    """

    sent: int
    kept: int
    missing: int
    double: int
    differs: bool
    kills: Counter[str]
    batches: int

    @property
    def is_exact(self) -> bool:
        return self.kept == self.sent and not (self.missing or self.double or self.differs)


class HistoryStorm(Storm):
    """A storm around two queries over one history."""

    MODULE = "tests.spark.history_storm"
    TOPICS = (TOPIC,)

    def __init__(self, home: Path, kills: int, seed: int, broken: str) -> None:
        super().__init__(home, kills, seed, "", 600.0, broken)

    def run(self, tell: Callable[[str], object] = print) -> HistoryOutcome:
        """Let everything happen; wait until both queries have reached the end; compare."""
        kills: Counter[str] = Counter()
        with rmq.Client(self._url, retry_for=30) as client:
            client.topic(TOPIC, slots=4, retry="immediate", history=KEEP).open()
            topic = client.topic(TOPIC)  # of any number of slots
            threads = [
                threading.Thread(target=call, args=given, daemon=True)
                for call, given in (
                    (self._produce, ([topic],)),
                    (self._work, (client, topic, 100)),
                    (self._work, (client, topic, 7)),
                    (self._resize, (client, tell)),
                )
            ]
            for thread in threads:
                thread.start()
            try:
                for _ in range(self._kills):
                    self._progress(4)
                    time.sleep(self._random.uniform(0, 1.5))
                    kind = self._random.choice(KINDS)
                    self._strike(kind, client)
                    kills[kind] += 1
                    self._struck += 1
                    tell(f"{kind}: {self._sent} sent, {len(batches(self._home))} batches")
                self._ended.set()
                for thread in threads:
                    thread.join(PATIENCE_S)
                self._await(lambda: self._is_reached(topic), "the queries do not reach the end")
                kept = _count(topic)
            finally:
                self._ended.set()
                self._end_driver()
                self._redis.stop()
        return compare(self._home, self._sent, kept, kills)

    def _work(self, client: rmq.Client, topic: rmq.Topic, most: int) -> None:
        """Ack messages, until nothing is left after the last send."""
        is_empty = False
        while not (self._ended.is_set() and is_empty):
            with contextlib.suppress(rmq.StorageError), topic.consumer() as consumer:
                while not (self._ended.is_set() and is_empty):
                    deliveries = consumer.receive(most, wait=1)
                    consumer.ack(deliveries)
                    is_empty = not deliveries and not client.admin.stats(TOPIC)["records"]
            time.sleep(0.1)

    def _is_reached(self, topic: rmq.Topic) -> bool:
        newest = topic.history.position()
        ends = [committed(self._home / "checkpoints" / name) for name in QUERIES]
        return all(end is not None and not is_behind(end, newest) for end in ends)


def committed(checkpoint: Path) -> Position | None:
    """Return the position at the end of the last batch that is in Spark's commit log."""
    numbers = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    if not numbers:
        return None
    lines = (checkpoint / "offsets" / str(max(numbers))).read_text().splitlines()
    return read_offset(json.loads(lines[-1])).topics[TOPIC]


def compare(home: Path, sent: int, kept: int, kills: Counter[str]) -> HistoryOutcome:
    """Compare the numbers below `sent` with the files of both queries."""
    missing = double = 0
    files = batches(home)
    for name in QUERIES:
        rows: Counter[int] = Counter()
        for path in files:
            if path.name.startswith(name):
                rows.update(json.loads(path.read_text()))
        missing += len(set(range(sent)) - rows.keys())
        double += sum(count > 1 for count in rows.values())
    differs = (home / "differs").exists()
    return HistoryOutcome(sent, kept, missing, double, differs, kills, len(files))


def _count(topic: rmq.Topic) -> int:
    """Return how many messages the history has."""
    count, page = 0, None
    while page is None or not page.is_last:
        page = topic.history.read(after=page and page.position, limit=10_000, stored=True)
        count += len(page.messages)
    return count


def storm(
    home: Path, *, kills: int, seed: int, broken: str = "", tell: Callable[[str], object] = print
) -> HistoryOutcome:
    """Play one storm."""
    return HistoryStorm(home, kills, seed, broken).run(tell)


def main() -> None:
    """Play one, and exit with 1 if its check fails; a broken variant has to fail."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--broken", choices=BROKEN, default="")
    parser.add_argument("--home", type=Path, help="where files and logs go")
    parser.add_argument("--driver", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.driver:
        url, home, _, _, broken, _ = given.driver
        drive(url, Path(home), broken)
    home = given.home or Path(tempfile.mkdtemp(prefix="rmq-storm-"))
    outcome = storm(home, kills=given.kills, seed=given.seed, broken=given.broken)
    print(f"kills: {', '.join(f'{kind} {count}' for kind, count in sorted(outcome.kills.items()))}")
    print(
        f"{outcome.sent} sent, {outcome.kept} in the history, {outcome.batches} batches of two "
        f"queries: missing {outcome.missing}, double {outcome.double}"
        + (", a batch came back with other rows" if outcome.differs else "")
    )
    sys.exit(outcome.is_exact == bool(given.broken))


if __name__ == "__main__":
    main()
