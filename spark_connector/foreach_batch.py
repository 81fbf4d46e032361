"""Read a stream on Spark 3.5, which has no data sources in Python.

Spark's source `rate-micro-batch` gives a batch at each trigger, but nobody reads its rows. For each
batch, this module plans messages with the reader of `format("rmq")`. The tasks read these messages
in `mapInArrow`.

Spark's checkpoint has no offset of RMQ. So this module stores the *plan* of a batch in the folder
`rmq` of the checkpoint. A plan has the start and the end of the batch. This module stores the plan
after it has received the messages, and before it calls your function. Spark repeats a batch number
until the batch is in its commit log, and then uses the next number. So if Spark uses the number of
the newest plan, Spark repeats the batch. If Spark uses a higher number, the batch of the newest
plan is done, and RMQ settles it.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StructType

from rmq.errors import ConfigurationError
from spark_connector import offset as offsets, options as parsing, planning, query_lease
from spark_connector.options import StreamOptions
from spark_connector.schema import stream_schema
from spark_connector.stream import STOP_S, Part, RmqStreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.query import StreamingQuery

Function = Callable[[DataFrame, int], None]  # called with the rows of a batch and its number
FOLDER = "rmq"  # of the checkpoint, for plans
IDLE_S = 10.0  # longest batch without messages
_PAUSE_S = 0.02  # shortest time between two searches for messages
_log = logging.getLogger("spark_connector")


def read_stream(spark: SparkSession, options: Mapping[str, Any]) -> Stream:
    """Prepare a streaming read that also works on Spark 3.5.

        spark_connector.read_stream(spark, {"subscribe": "orders"}).foreach_batch(handle, "data/1")

    Args:
        spark: Session of the query.
        options: Options of `spark.readStream.format("rmq")`, by name.

    Raises:
        ConfigurationError: An option is wrong, or the session uses Spark Connect.
    """
    if not hasattr(spark, "_jsparkSession"):
        raise ConfigurationError(
            "spark: it is a session of Spark Connect, where the function would run in another "
            "process; use a classic session, or Spark 4 and format('rmq')"
        )
    texts = {name: str(given) for name, given in options.items()}
    if parsing.of_history(texts) == "stream":
        raise ConfigurationError(
            "consume: a history can only be read with format('rmq'), on Spark 4"
        )
    return Stream(spark, parsing.stream(texts))


class Stream:
    """A streaming read that passes its batches to a function. Create it with `read_stream`."""

    def __init__(self, spark: SparkSession, options: StreamOptions) -> None:
        self._spark = spark
        self._options = options
        self._schema = stream_schema(options.headers, options.query)

    def foreach_batch(
        self,
        function: Function,
        checkpoint: str,
        *,
        query_name: str | None = None,
        processing_time: str = "0 seconds",
        available_now: bool = False,
    ) -> StreamingQuery:
        """Start a query that calls a function with the messages of each batch.

        Args:
            function: Function that gets a DataFrame and the batch number, as with Spark's
                `foreachBatch`. RMQ does not call it for a batch without messages. If it raises an
                error, the query fails.
            checkpoint: Folder of the query's checkpoint. The driver and all executors must reach
                the folder. The folder identifies the query.
            query_name: Name of the query in Spark.
            processing_time: Shortest time between the starts of two batches.
            available_now: If true, read the messages that wait now, settle them, and stop.

        Returns:
            The started query. Do not call its `processAllAvailable`, which never returns.

        Guarantee:
            Each message is in one batch. RMQ settles a batch after Spark has committed it, at the
            start of the next batch. After a crash, your function gets the same messages with the
            same batch number again, unless the query's lease has expired.

        Raises:
            ImportError: pandas or pyarrow is missing. Spark's `mapInArrow` needs both.
            ConfigurationError: You passed both `processing_time` and `available_now`.
        """
        if available_now and processing_time != "0 seconds":
            raise ConfigurationError("processing_time, available_now: give one of them")
        rows(self._spark, self._options, self._schema, [])  # it raises if a package is missing
        batches = ForeachBatch(self._options, self._schema, checkpoint, function, available_now)
        writer = (
            self._spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", 1)
            .load()
            .writeStream.foreachBatch(batches)
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime=processing_time)
        )
        if query_name is not None:
            writer = writer.queryName(query_name)
        query = writer.start()
        batches.watch(query)
        return query


def rows(
    spark: SparkSession, options: StreamOptions, schema: StructType, parts: list[Part]
) -> DataFrame:
    """Return the messages of a batch. Each task reads a part."""

    def read(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = RmqStreamReader(options, schema)
        for task in tasks:
            for place in task.column(0).to_pylist():
                yield from reader.read(parts[place])

    return spark.range(0, len(parts), 1, max(1, len(parts))).mapInArrow(read, schema)


class Plan(NamedTuple):
    """The plan of a batch: its number, and the offsets of its start and its end."""

    batch: int
    start: dict[str, Any]
    end: dict[str, Any]


class Plans:
    """Stores the newest plan of a query in one of two folders of the checkpoint.

    A new plan replaces the older of the two plans. Spark reads and writes the files, so you can use
    every file system of Spark.
    """

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._spark = spark
        self._folders = [f"{checkpoint.rstrip('/')}/{FOLDER}/{place}" for place in (0, 1)]
        self._newest = 0
        self.newest: Plan | None = None
        for place, folder in enumerate(self._folders):
            try:
                found = spark.read.text(folder).collect()
            except AnalysisException as error:
                if "PATH_NOT_FOUND" not in str(error):
                    raise
                continue
            for row in found:
                plan = Plan(**json.loads(row.value))
                if self.newest is None or plan.batch >= self.newest.batch:
                    self._newest, self.newest = place, plan

    def write(self, plan: Plan) -> None:
        """Store a plan. Spark reads a plan only if it is complete."""
        text = json.dumps(plan._asdict(), sort_keys=True)
        place = 1 - self._newest
        frame = self._spark.range(0, 1, 1, 1).select(functions.lit(text).alias("value"))
        frame.write.mode("overwrite").text(self._folders[place])
        self._newest, self.newest = place, plan


_runs = itertools.count()


class Reader(RmqStreamReader):
    """A reader in the driver's process.

    Each reader has its own name as the owner of the query. So a query that ends cannot release
    messages that its next run has received.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._owner = f"{query_lease.owner(os.getpid())}:{next(_runs)}"


class ForeachBatch:
    """The function that Spark calls for each batch of its `rate-micro-batch` source."""

    def __init__(
        self,
        options: StreamOptions,
        schema: StructType,
        checkpoint: str,
        function: Function,
        available_now: bool,
    ) -> None:
        self._options = options
        self._schema = schema
        self._checkpoint = checkpoint
        self._function = function
        self._available_now = available_now
        self._query: StreamingQuery | None = None
        self._reader: RmqStreamReader | None = None
        self._plans: Plans | None = None
        self._has_ended = False
        self._lock = threading.Lock()  # for calls of the reader

    def watch(self, query: StreamingQuery) -> None:
        """Release the query in RMQ when the query ends in Spark, or when the driver ends."""
        self._query = query
        threading.Thread(target=self._wait, args=(query,), name="rmq-watch", daemon=True).start()
        atexit.register(self._close)

    def _wait(self, query: StreamingQuery) -> None:
        with contextlib.suppress(Exception):  # the user sees the error of the query
            query.awaitTermination()
        self._close()
        atexit.unregister(self._close)

    def _close(self) -> None:
        self._has_ended = True
        is_locked = self._lock.acquire(timeout=STOP_S)
        try:
            if self._reader is not None:
                self._reader.stop()
        finally:
            if is_locked:
                self._lock.release()

    def __call__(self, tick: DataFrame, batch: int) -> None:
        """Call the user's function with the messages of a batch."""
        if self._has_ended:  # do not let Spark commit a batch that was not processed
            raise RuntimeError("the query has ended")
        spark = tick.sparkSession
        if self._reader is None:
            self._open(spark, batch)
        plan = self._plan(batch)
        if plan is None:
            return
        with self._lock:
            assert self._reader is not None
            parts = self._reader.partitions(plan.start, plan.end)
        if parts or offsets.read(plan.end).messages:
            self._function(rows(spark, self._options, self._schema, parts), batch)

    def _open(self, spark: SparkSession, batch: int) -> None:
        if self._options.tasks is None:
            tasks = spark.sparkContext.defaultParallelism
            least = self._options.rows or planning.ROWS
            self._options = replace(self._options, tasks=tasks, rows=least)
        self._plans = Plans(spark, self._checkpoint)
        if self._plans.newest is None and batch:
            raise ConfigurationError(
                f"checkpoint: its folder {FOLDER!r} is missing, and Spark begins batch {batch}; "
                f"restore the folder, or give the query {offsets.ANEW}"
            )
        self._reader = Reader(self._options, self._schema)
        if self._plans.newest is None:
            start = self._reader.initialOffset()
            self._plans.write(Plan(-1, start, start))  # the name of the query
            self._reader.latestOffset(start)  # it takes no messages for a new name
        if self._available_now:
            self._reader.prepareForTriggerAvailableNow()

    def _plan(self, batch: int) -> Plan | None:
        """Return the plan of a batch, or None if no messages have arrived for a while.

        Raises:
            ConfigurationError: The checkpoint is older than the newest plan.
        """
        reader, plans = self._reader, self._plans
        assert reader is not None
        assert plans is not None
        assert plans.newest is not None
        start = plans.newest.end
        if plans.newest.batch == batch:
            return plans.newest
        if plans.newest.batch > batch:
            raise ConfigurationError(
                f"checkpoint: it is an older copy; Spark begins batch {batch}, and batch "
                f"{plans.newest.batch} was planned before. Nothing was taken. Give the query its "
                f"newest checkpoint, or {offsets.ANEW}"
            )
        until = time.monotonic() + IDLE_S
        while not self._is_stopped():
            with self._lock:
                end = reader.latestOffset(start)
                if end != start:
                    reader.commit(start)
                    plans.write(Plan(batch, start, end))
                    return plans.newest
            if self._available_now:
                self._stop()
            if time.monotonic() > until:
                return None
            time.sleep(_PAUSE_S)
        return None

    def _stop(self) -> None:
        """Stop the query in another thread, because Spark first waits for the end of this batch."""
        while self._query is None:  # it has just started
            time.sleep(_PAUSE_S)
        threading.Thread(target=self._query.stop, name="rmq-stop", daemon=True).start()
        while not self._is_stopped():
            time.sleep(_PAUSE_S)

    def _is_stopped(self) -> bool:
        return self._has_ended or (self._query is not None and not self._query.isActive)
