"""Write batches and streams. Tasks store their rows, and the commit publishes the rows.

A stage keeps rows in Redis. No consumer receives the rows of a stage. The commit publishes only the
stages of successful tasks. It does not publish the stage of a failed task, or of a repeated task
whose result Spark does not use. RMQ records the published batches of a query, so it publishes each
batch once. If a publication is interrupted, RMQ later finishes the batch with the same rows.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

import rmq
from rmq.errors import ConfigurationError, InvalidValue, QueueFull, RMQError, SendError
from spark_connector import columns, options
from spark_connector.connection import COMMIT_RETRY_S, connect, retry_while_away
from spark_connector.dead_letters import DeadLetterWriter
from spark_connector.options import SinkOptions
from spark_connector.versions import DataSourceStreamArrowWriter

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

STAGE_TTL_S = 86_400.0  # lifetime of a stage that is never committed


@dataclass
class Written(WriterCommitMessage):
    """The stages (stored rows) that a task has written, and the query to which they belong."""

    staged: list[rmq.StageContent]
    query: str | None = None


def _refuse_overwrite(overwrite: bool, setting: str, word: str) -> None:
    if overwrite:
        raise InvalidValue(
            f'{setting}: {word}; a queue cannot be overwritten: use {setting}("append"), and rmq '
            "purge to delete waiting messages"
        )


def _sink(
    given: dict[str, str], schema: StructType, overwrite: bool, setting: str, word: str
) -> _Sink:
    _refuse_overwrite(overwrite, setting, word)
    parsed, fields = options.sink(given, schema.names), columns.checked(schema)
    if parsed.key_header and "slot_basis" not in fields:
        raise InvalidValue("keyHeader: given without a column key; add the column, or drop it")
    return _Sink(parsed, fields)


class _Sink:
    """Common base class of both writers.

    Spark pickles this object, so the object has no connection.
    """

    def __init__(self, options: SinkOptions, fields: dict[str, str]) -> None:
        self.options = options
        self.fields = fields

    def topic(self, client: rmq.Client, name: str) -> rmq.Topic:
        """Return the topic with this name. The topic object uses the codec of the write."""
        return client.topic(name, codec=columns.Encoded(self.options.codec))

    def home(self, client: rmq.Client, staged: Sequence[rmq.StageContent]) -> rmq.Topic | None:
        """Return the topic that records the stored rows (stages) of a batch, or None for no rows.

        The option `topic` names this topic. Without this option, the method chooses the first topic
        of the stages by name, so that a repeated batch has the same topic.
        """
        name = self.options.at.topic or min((stage.topic for stage in staged), default="")
        return self.topic(client, name) if name else None

    def stage(self, batches: Iterator[RecordBatch], name: str) -> list[rmq.StageContent]:
        """Store the rows of a task until the commit, with one stage for each topic.

        If the task fails, drop its stages.
        """
        rows = columns.Rows(self.fields, self.options.merge, self.options.key_header)
        default, stages = self.options.at.topic, dict[str, rmq.Stage]()

        def stage_of(topic: str | None) -> rmq.Stage:
            chosen = default if topic is None else topic
            if chosen not in stages:
                if topic is None and not default:
                    raise InvalidValue("topic: null; name it, or give the option topic")
                to = self.topic(client, chosen)
                if chosen != default:  # a topic that only a row names must exist
                    to.open(create=False)
                stages[chosen] = to.stage(name, keep=STAGE_TTL_S, late=self.options.late)
            return stages[chosen]

        with connect(self.options.at) as client:
            try:
                for batch in columns.gathered(batches):
                    rows.push(batch, stage_of)
            except BaseException as error:
                for stage in stages.values():
                    with contextlib.suppress(RMQError):
                        stage.discard()
                if isinstance(error, ConfigurationError | SendError) and not isinstance(
                    error, QueueFull
                ):
                    rows.explain(error, _partition())
                raise
            return [stage.staged for stage in stages.values()]

    def publish(
        self, written: Sequence[Written], query: str | None = None, batch: int | None = None
    ) -> None:
        """Publish the rows that tasks have stored. RMQ publishes a batch of a query only once."""
        staged = [content for each in written for content in each.staged]
        with connect(self.options.at) as client:
            if topic := self.home(client, staged):
                retry_while_away(
                    lambda: topic.publish(staged, query=query, batch=batch), COMMIT_RETRY_S
                )

    def discard(self, written: Sequence[Written], query: str | None) -> None:
        """Delete the rows that tasks have stored. If RMQ has begun to publish them, do nothing."""
        staged = [content for each in written for content in each.staged]
        with contextlib.suppress(RMQError), connect(self.options.at) as client:
            if topic := self.home(client, staged):
                topic.discard(staged, query=query)


def _partition() -> int:
    context = TaskContext.get()
    return context.partitionId() if context else 0


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]


class RmqWriter(DataSourceArrowWriter):
    """The writer of `df.write`. It publishes the rows after all tasks have succeeded."""

    def __init__(self, sink: _Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Store the rows of a task until the commit."""
        return Written(self._sink.stage(iterator, uuid.uuid4().hex))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows that the tasks have stored.

        After a crash, only a part of the rows may be published. If the write has a query and a
        batch number, you can repeat the write to publish the other rows.
        """
        options = self._sink.options
        self._sink.publish(_written(messages), options.query, options.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the stored rows of a failed job, unless RMQ has begun to publish them."""
        self._sink.discard(_written(messages), self._sink.options.query)


class RmqStreamWriter(DataSourceStreamArrowWriter):
    """Publishes the rows of `df.writeStream`. Each batch is published once."""

    def __init__(self, sink: _Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Store the rows of a task until the commit.

        Spark passes the batch number to writers only at the commit, and never passes the query. So
        a task reads both from Spark's task context.
        """
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if query is None or batch is None:
            raise ConfigurationError(
                "writeStream: this task does not belong to a streaming query; write with df.write"
            )
        # The random part is needed because every driver counts task attempts from 0 again.
        name = f"{query}:{batch}:{uuid.uuid4().hex}"
        return Written(self._sink.stage(iterator, name), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the rows of a batch. If Spark commits the batch again, nothing is added."""
        written = _written(messages)
        if written:  # Spark runs a task even for a batch without rows
            self._sink.publish(written, written[0].query, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the stored rows of a batch, unless RMQ has begun to publish them."""
        written = _written(messages)
        self._sink.discard(written, written[0].query if written else None)


def batch_writer(
    given: dict[str, str], schema: StructType, overwrite: bool
) -> RmqWriter | DeadLetterWriter:
    """Return the writer of `df.write`.

    Raises:
        ConfigurationError: An option or a column is not valid.
    """
    if options.of_dead_letters(given):
        _refuse_overwrite(overwrite, "mode", "overwrite")
        return DeadLetterWriter(options.dead_letters(given, schema.names), schema)
    return RmqWriter(_sink(given, schema, overwrite, "mode", "overwrite"))


def stream_writer(given: dict[str, str], schema: StructType, overwrite: bool) -> RmqStreamWriter:
    """Return the writer of `df.writeStream`.

    Raises:
        ConfigurationError: An option or a column is not valid.
    """
    if options.of_dead_letters(given):
        raise InvalidValue("action: it is for df.write; call that in foreachBatch")
    sink = _sink(given, schema, overwrite, "outputMode", "complete")
    if sink.options.query is not None:
        raise InvalidValue("queryId, batchId: a streaming write takes them from its checkpoint")
    return RmqStreamWriter(sink)
