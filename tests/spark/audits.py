"""A small ledger, log and snapshot for tests of the audit, as DataFrames or as files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmq.kernel.core import ids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


BEGIN_MS = 1_790_000_000_000
AS_OF_MS = BEGIN_MS + 3_600_000
SETTLE_MS = 600_000
HORIZON_MS = AS_OF_MS - SETTLE_MS

_TYPES = {
    "seq": "bigint", "slot": "int", "attempt": "int", "produced_at": "bigint",
    "delivered_at": "bigint", "taken_at": "bigint", "sends": "int", "created": "bigint",
    "sent_at": "bigint", "confirm": "boolean",
}  # fmt: skip

Row = dict[str, Any]


class Books:
    """The ledger, log and snapshot of a run without faults, which a test then changes."""

    def __init__(self, count: int = 20, producers: int = 2, topic: str = "orders") -> None:
        self.ledger: list[Row] = []
        self.deliveries: list[Row] = []
        self.snapshot: list[Row] = []
        for n in range(count):
            producer, seq = f"p{n % producers}", n // producers + 1
            self.send(n, producer, seq, topic)
            self.deliver(self.ids[-1], BEGIN_MS + n * 10_000 + 500, topic=topic)

    @property
    def ids(self) -> list[str]:
        return [row["message_id"] for row in self.ledger]

    def send(self, n: int, producer: str, seq: int, topic: str = "orders", **more: Any) -> Row:
        row = {
            "message_id": str(ids.make(3, 77)[0]), "topic": topic, "slot": 3, "producer": producer,
            "seq": seq, "produced_at": BEGIN_MS + n * 10_000, **more,
        }  # fmt: skip
        self.ledger.append(row)
        return row

    def deliver(
        self, message_id: str, at_ms: int, outcome: str | None = "ack", attempt: int = 1,
        topic: str = "orders",
    ) -> None:  # fmt: skip
        self.deliveries.append(
            {
                "message_id": message_id, "topic": topic, "slot": 3, "attempt": attempt,
                "delivered_at": at_ms, "outcome": outcome,
            }
        )  # fmt: skip

    def forget(self, message_id: str) -> None:
        """No delivery of this message was ever noted."""
        self.deliveries = [row for row in self.deliveries if row["message_id"] != message_id]

    def queue(self, message_id: str, queue: str) -> None:
        self.snapshot.append(
            {"message_id": message_id, "topic": "orders", "slot": 3, "queue": queue}
        )

    def frames(self, spark: SparkSession) -> tuple[DataFrame, DataFrame, DataFrame]:
        return (
            frame(spark, self.ledger, "message_id topic slot producer seq produced_at"),
            frame(spark, self.deliveries, "message_id topic slot attempt delivered_at outcome"),
            frame(spark, self.snapshot, "message_id topic slot queue"),
        )

    def files(self, home: Path) -> list[str]:
        """The same as lines of JSON, and the options that name them."""
        home.mkdir(parents=True, exist_ok=True)
        options = []
        for name in ("ledger", "deliveries", "snapshot"):
            path = home / f"{name}.json"
            write(path, getattr(self, name))
            options += [f"--{name}", str(path)]
        return [*options, "--as-of", str(AS_OF_MS), "--settle", "10m"]


def frame(spark: SparkSession, rows: Iterable[Mapping[str, Any]], names: str) -> DataFrame:
    listed = list(rows)
    columns = list(dict.fromkeys([*names.split(), *(name for row in listed for name in row)]))
    schema = ", ".join(f"{name} {_TYPES.get(name, 'string')}" for name in columns)
    return spark.createDataFrame([tuple(row.get(c) for c in columns) for row in listed], schema)


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
