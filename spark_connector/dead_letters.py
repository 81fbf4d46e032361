"""Redrive or purge dead letters. A write with the option `action` uses this module.

The rows of the write name the dead letters. Tasks check their rows and change nothing. The commit
gets the ids from the tasks, and then starts and runs jobs in RMQ. Each job has a dedup key that
belongs to this write, so a repeated commit finds the same jobs. If the driver dies, another process
that runs jobs finishes them.
"""

from __future__ import annotations

import logging
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType, TimestampType

import rmq
from rmq.errors import InvalidValue
from spark_connector.columns import spelled
from spark_connector.connection import COMMIT_RETRY_S, connect, retry_while_away
from spark_connector.options import DeadLetterOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch

JOB_IDS = 10_000  # maximum number of ids in one job; the job stores them in Redis
SHOWN = 10  # maximum number of jobs that the driver logs
_ROW = struct.Struct("<16sq")  # an id, and its time of death in epoch ms
_ANY_TIME = -1

_TYPES = {
    "message_id": (BinaryType, StringType),
    "topic": (StringType,),
    "died": (TimestampType,),
}
_log = logging.getLogger("spark_connector")


@dataclass
class Chosen(WriterCommitMessage):
    """The dead letters that a task has found in its rows, for each topic.

    Each dead letter takes 24 bytes.
    """

    letters: dict[str, bytes]


def checked(schema: StructType) -> dict[str, str]:
    """Check the columns.

    Return the names of the known columns, with capital letters as in the schema. Other columns are
    ignored.

    Raises:
        InvalidValue: `message_id` is missing, or a column has another type.
    """
    found = spelled(schema, _TYPES)
    if "message_id" not in found:
        raise InvalidValue("message_id: an action needs this column; select it from the read")
    return found


class DeadLetterWriter(DataSourceArrowWriter):
    """The writer of `df.write` with the option `action`.

    Spark pickles this object for the tasks, so the object has no connection.
    """

    def __init__(self, options: DeadLetterOptions, schema: StructType) -> None:
        self._options = options
        self._fields = checked(schema)
        self._write = uuid.uuid4().hex  # name of this write, part of the keys of its jobs

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Check the rows of a task, and return the dead letters that the rows name."""
        letters: dict[str, bytearray] = {}
        topics: dict[str, tuple[int, int]] = {}
        numbered = enumerate(chain.from_iterable(map(self._rows, iterator)), 1)
        with connect(self._options.at) as client:
            for row, (text, name, died) in numbered:
                topic = name or self._options.at.topic
                if not topic:
                    raise InvalidValue(f"row {row}: topic: null; name it, or give the option topic")
                try:
                    id = rmq.MessageId.parse(text, "message_id")
                except InvalidValue as error:
                    raise InvalidValue(f"row {row}: {error}") from None
                if topic not in topics:
                    topics[topic] = _of_topic(client.topic(topic))
                if id.check != topics[topic][0] or id.slot >= topics[topic][1]:
                    raise InvalidValue(f"row {row}: message_id: {id} is not of topic {topic!r}")
                letters.setdefault(topic, bytearray()).extend(_ROW.pack(id, died))
        return Chosen({topic: bytes(packed) for topic, packed in letters.items()})

    def _rows(self, batch: RecordBatch) -> Iterator[tuple[str | bytes, str | None, int]]:
        rows = batch.num_rows
        ids = batch.column(self._fields["message_id"])
        if ids.null_count:
            raise InvalidValue("message_id: null; give it as it was read")
        topics, times = [None] * rows, [_ANY_TIME] * rows
        if "topic" in self._fields:
            topics = batch.column(self._fields["topic"]).to_pylist()
        if "died" in self._fields:
            died = batch.column(self._fields["died"]).cast(pa.timestamp("us", "UTC"))
            ms = pc.divide(pc.cast(died, pa.int64()), 1000)
            times = pc.fill_null(ms, _ANY_TIME).to_pylist()
        return zip(ids.to_pylist(), topics, times, strict=True)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Start the jobs, and run them one after another.

        The option `rate` applies to all jobs together. If the driver crashes, RMQ may not have
        started a job for some dead letters. These dead letters are unchanged. Repeat the write to
        handle them.
        """
        chosen = [each.letters for each in messages if isinstance(each, Chosen)]
        with connect(self._options.at) as client:
            for topic in sorted({topic for letters in chosen for topic in letters}):
                packed = b"".join(letters.get(topic, b"") for letters in chosen)
                step = JOB_IDS * _ROW.size
                jobs = [
                    self._run(client, topic, f"{self._write}-{at // step}", packed[at : at + step])
                    for at in range(0, len(packed), step)
                ]
                self._report(topic, len(packed) // _ROW.size, jobs)

    def _run(self, client: rmq.Client, topic: str, key: str, packed: bytes) -> rmq.Job:
        died = {id: None if ms == _ANY_TIME else ms for id, ms in _ROW.iter_unpack(packed)}
        conditions = {"ids": list(died), "died": list(died.values())}
        options = self._options
        job = retry_while_away(
            lambda: client.admin.job_start(
                topic, options.action, conditions=conditions, rate=options.rate,
                expected=len(died), dedup_key=key,
            ),
            COMMIT_RETRY_S,
        )  # fmt: skip
        return client.admin.job_run(job.id)

    def _report(self, topic: str, rows: int, jobs: Sequence[rmq.Job]) -> None:
        done, unreadable = sum(job.done for job in jobs), sum(job.unreadable for job in jobs)
        _log.warning(
            "%s of topic %s: %d rows, %d done, %d unreadable, %d not dead letters any more, or dead"
            " again; jobs: %s",
            self._options.action, topic, rows, done, unreadable, rows - done - unreadable,
            " ".join([*(job.id for job in jobs[:SHOWN]), *["..."][: len(jobs[SHOWN:])]]),
        )  # fmt: skip

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing. Tasks have changed nothing, and jobs that have started continue."""


def _of_topic(topic: rmq.Topic) -> tuple[int, int]:
    """Return the check bits in all ids of a topic, and the number of its slots (parts).

    Raises:
        TopicNotFound: There is no such topic.
    """
    topic.open(create=False)
    return topic.new_id().check, topic.settings.slots
