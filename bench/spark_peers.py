"""Two sources written in Python that Spark reads for comparison: generated rows, and raw streams.

`bench_made` is the ceiling: its tasks repeat one Arrow batch of a thousand rows. `bench_streams` is
the minimum for a source on Redis. Each slot is a stream with entries 0-1, 0-2 and so on, so an
offset is a number, as in a log. It does not take, hold or settle entries, and two queries would
read the same entries. Both have the columns of RMQ's source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import redis
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

PAGE = 1000  # rows of a call and of an Arrow batch, as in RMQ
SCHEMA = (
    "message_id string not null, topic string not null, slot int not null, value binary, "
    "timestamp timestamp, deliver_at timestamp, expires_at timestamp, priority int, "
    "merge_key string, producer string, producer_seq bigint, attempt int not null, "
    "seq bigint not null, unreadable string"
)
AT_US = 1_790_000_000_000_000
Offset = dict[str, int]


@dataclass
class Share(InputPartition):
    """The entries of one stream that a task reads; both numbers are inclusive."""

    key: str
    first: int
    last: int


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Common code of both readers: the parts have names, and an offset has a number for each."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self.arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self.keys = options["keys"].split(",")
        self.batch = int(options["batch"])
        self.rows = int(options.get("rows", "0"))
        self.url = options.get("url", "")
        self.redis: Any = None

    def initialOffset(self) -> Offset:
        return dict.fromkeys(self.keys, 0)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.batch)

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def newest(self) -> list[int]:
        raise NotImplementedError

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        most = self.batch // len(self.keys)
        found = zip(self.keys, self.newest(), strict=True)
        return {key: min(newest, start[key] + most) for key, newest in found}

    def partitions(self, start: Offset, end: Offset) -> list[Share]:
        return [Share(key, start[key] + 1, end[key]) for key in end if end[key] > start[key]]

    def arrays(self, ids: list[str], values: list[bytes], first: int) -> pa.RecordBatch:
        """Return a batch; a column without values is null."""
        count = len(ids)
        known: dict[str, Any] = {
            "message_id": ids, "value": values, "topic": ["bench"] * count, "slot": [0] * count,
            "timestamp": [AT_US] * count, "attempt": [1] * count,
            "seq": range(first, first + count),
        }  # fmt: skip
        return pa.RecordBatch.from_arrays(
            [
                pa.array(known[field.name], field.type) if field.name in known
                else pa.nulls(count, field.type)
                for field in self.arrow
            ],
            schema=self.arrow,
        )  # fmt: skip


class MadeReader(_Reader):
    """Yields the same batch repeatedly."""

    def newest(self) -> list[int]:
        """Return the last number of each part."""
        return [self.rows // len(self.keys)] * len(self.keys)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a share."""
        assert isinstance(partition, Share)
        batch = self.arrays(["0" * 26] * PAGE, [b"x" * 200] * PAGE, 1)
        left = partition.last - partition.first + 1
        while left > 0:
            yield batch[: min(PAGE, left)]
            left -= PAGE


class StreamsReader(_Reader):
    """Reads streams by XRANGE."""

    def newest(self) -> list[int]:
        """Return the number of each stream's last entry."""
        if self.redis is None:
            self.redis = redis.Redis.from_url(self.url)
        pipe = self.redis.pipeline(transaction=False)
        for key in self.keys:
            pipe.xrevrange(key, count=1)
        return [int(found[0][0].split(b"-")[1]) if found else 0 for found in pipe.execute()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a share."""
        assert isinstance(partition, Share)
        first = partition.first
        with redis.Redis.from_url(self.url) as client:
            while first <= partition.last:
                found: Any = client.xrange(partition.key, f"0-{first}", f"0-{partition.last}", PAGE)
                if not found:
                    raise LookupError(f"{partition.key} has no entry 0-{first}")
                ids = [entry.decode() for entry, _ in found]
                yield self.arrays(ids, [fields[b"body"] for _, fields in found], first)
                first += len(found)


class Made(DataSource):
    """Generated rows."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "bench_made"

    def schema(self) -> str:
        """Return the columns of RMQ's source."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> MadeReader:
        """Return the reader."""
        return MadeReader({**self.options}, schema)


class Streams(Made):
    """Raw streams."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "bench_streams"

    def streamReader(self, schema: StructType) -> StreamsReader:  # type: ignore[override]
        """Return the reader."""
        return StreamsReader({**self.options}, schema)
