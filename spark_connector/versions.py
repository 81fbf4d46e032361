"""Replace parts of PySpark that the versions 3.5, 4.0 and 4.1 do not have.

Because of this module, other modules need not check versions. PySpark 4.0 and 4.1 have no limits
for streaming reads, and do not pass the start of a batch. PySpark 4.0 also has no filters for batch
reads, and no Arrow batches for streaming writes. PySpark 3.5 has no data sources in Python, so
`spark_connector.stream` uses the classes of a streaming read without Spark's base classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_schema

from rmq.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        InputPartition,
    )
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import StructType
else:
    try:
        from pyspark.sql.datasource import (
            DataSourceArrowWriter,
            DataSourceReader,
            DataSourceStreamReader,
            DataSourceStreamWriter,
            InputPartition,
        )
    except ImportError:  # before Spark 4.0

        class InputPartition:
            """A part of a batch."""

        class DataSourceReader:
            """A batch read."""

        class DataSourceStreamReader:
            """A streaming read."""

        class DataSourceArrowWriter:
            """A batch write."""

        class DataSourceStreamWriter:
            """A streaming write."""

    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # Spark 4.0 uses this class for streams as well

        class DataSourceStreamArrowWriter(DataSourceArrowWriter, DataSourceStreamWriter):
            """A writer of streams that receives Arrow batches."""

    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:  # before Spark 4.2

        class ReadLimit:
            """Limit of a batch."""

        class ReadAllAvailable(ReadLimit):
            """No limit. Spark 4.0 and 4.1 never pass it."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """A maximum number of messages."""

            max_rows: int

        class SupportsTriggerAvailableNow:
            """With this trigger, Spark 4.0 and 4.1 run one batch, and do not call the source."""


class LoggedOffset:
    """The newest offset in Spark's log. Spark 4.0 and 4.1 do not pass it to latestOffset.

    RMQ learns the offset from other calls. The first call after a restart is `partitions`, with the
    newest offset of the log as start and end. If the batch that ends at this offset is not in the
    commit log, Spark plans the batch before it calls latestOffset. In a new query, latestOffset is
    the first call. An offset from latestOffset is in the log when Spark plans its batch, or when
    Spark commits the previous batch.
    """

    def __init__(self) -> None:
        self._newest: dict[str, Any] | None = None
        self._is_asked = False  # whether Spark has called latestOffset without a start

    def start(self, first: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the start of the next batch.

        For a new query, call `first` and return its result.
        """
        self._is_asked = True
        if self._newest is None:
            self._newest = first()
        return self._newest

    def note(self, end: dict[str, Any]) -> None:
        """Record that Spark has written the offset `end` to its log."""
        self._newest = end

    def note_planned(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Record that Spark plans the batch that ends at `end`.

        Raises:
            ConfigurationError: Spark called latestOffset before any call that shows the newest
                offset.
        """
        if self._is_asked and start == end != self._newest:
            raise ConfigurationError(WRAPPED)
        self.note(end)


WRAPPED = (
    "spark.sql.streaming.triggerAvailableNowWrapper.enabled: RMQ does not support it, because it "
    "takes messages before the source knows its checkpoint. Switch it off. The trigger "
    "availableNow then runs one batch. To read all waiting messages, use the default trigger, and "
    "call query.processAllAvailable() and query.stop()"
)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema of Arrow batches. All times have the time zone UTC."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # always in UTC


__all__ = [
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "InputPartition",
    "LoggedOffset",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
]
