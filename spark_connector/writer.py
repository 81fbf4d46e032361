"""The sink: tasks stage their rows, and one commit publishes those of the tasks that count.

A task that fails, is repeated or is overtaken by its speculative copy leaves a stage that nobody
publishes. A batch of a query is published once: RMQ remembers which batches it has seen, and ends
a batch that was interrupted with the very rows that it began with.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

import rmq
from rmq.errors import ConfigurationError, InvalidValue, QueueFull, RMQError, SendError
from spark_connector import columns, options
from spark_connector.link import connect, patient
from spark_connector.options import SinkOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

PATIENT_S = 60.0  # a commit that fails ends a query
KEEP_S = 86_400.0  # a stage that nobody commits


@dataclass
class Written(WriterCommitMessage):
    """What one task has staged, and for which batch."""

    staged: rmq.Staged
    query: str | None = None


def _sink(
    given: dict[str, str], schema: StructType, overwrite: bool, setting: str, word: str
) -> _Sink:
    if overwrite:
        raise InvalidValue(
            f'{setting}: {word}; a queue is not overwritten: use {setting}("append"), and rmq '
            "purge to delete what waits"
        )
    return _Sink(options.sink(given), columns.checked(schema))


class _Sink:
    """What both writers do. Holds options alone: Spark pickles it to every task."""

    def __init__(self, asked: SinkOptions, fields: dict[str, str]) -> None:
        self.asked = asked
        self.fields = fields

    def topic(self, client: rmq.Client) -> rmq.Topic:
        """The topic that is written to."""
        return client.topic(self.asked.at.topic, codec=columns.Encoded(self.asked.codec))

    def stage(self, batches: Iterator[RecordBatch], name: str) -> rmq.Staged:
        """Stage the rows of a task; what fails leaves nothing."""
        rows = columns.Rows(self.fields, self.asked.merge)
        with connect(self.asked.at) as client:
            stage = self.topic(client).stage(name, keep=KEEP_S, late=self.asked.late)
            push = stage.push_bodies if rows.is_plain else stage.push
            try:
                for batch in batches:
                    for messages in rows.slices(batch):
                        push(messages)
            except BaseException as error:
                with contextlib.suppress(RMQError):
                    stage.discard()
                if isinstance(error, ConfigurationError | SendError) and not isinstance(
                    error, QueueFull
                ):
                    rows.explain(error, _partition())
                raise
            return stage.staged

    def publish(self, found: Sequence[Written], batch: int | None = None) -> None:
        """Publish what tasks have staged."""
        staged = [one.staged for one in found]
        query = found[0].query if found else None
        with connect(self.asked.at) as client:
            topic = self.topic(client)
            patient(lambda: topic.publish(staged, query=query, batch=batch), PATIENT_S)

    def discard(self, found: Sequence[Written]) -> None:
        """Drop what tasks have staged; what has begun to be published stays."""
        query = found[0].query if found else None
        with contextlib.suppress(RMQError), connect(self.asked.at) as client:
            self.topic(client).discard([one.staged for one in found], query=query)


def _partition() -> int:
    context = TaskContext.get()
    return context.partitionId() if context else 0


def _of(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [one for one in messages if isinstance(one, Written)]


class RmqWriter(DataSourceArrowWriter):
    """`df.write`: the rows of all tasks, published when all have succeeded."""

    def __init__(self, sink: _Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return Written(self._sink.stage(iterator, uuid.uuid4().hex))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish."""
        self._sink.publish(_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what is staged."""
        self._sink.discard(_of(messages))


class RmqStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: each batch published once."""

    def __init__(self, sink: _Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task.

        Spark gives its writers the batch only at the commit, and the query never; its tasks have
        both as local properties.
        """
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if query is None or batch is None:
            raise ConfigurationError(
                "writeStream: this task is of no streaming query; write with df.write"
            )
        # Attempts are counted anew by every run of a driver: a name is used once.
        name = f"{query}:{batch}:{uuid.uuid4().hex}"
        return Written(self._sink.stage(iterator, name), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish, once."""
        found = _of(messages)
        if found:  # Spark runs a task even for a batch without rows
            self._sink.publish(found, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drop what is staged, unless it has begun to be published."""
        self._sink.discard(_of(messages))


def batch_writer(given: dict[str, str], schema: StructType, overwrite: bool) -> RmqWriter:
    """The writer of `df.write`.

    Raises:
        ConfigurationError: an option or a column cannot work.
    """
    return RmqWriter(_sink(given, schema, overwrite, "mode", "overwrite"))


def stream_writer(given: dict[str, str], schema: StructType, overwrite: bool) -> RmqStreamWriter:
    """The writer of `df.writeStream`.

    Raises:
        ConfigurationError: an option or a column cannot work.
    """
    return RmqStreamWriter(_sink(given, schema, overwrite, "outputMode", "complete"))
