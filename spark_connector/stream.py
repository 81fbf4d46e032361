"""The streaming read: micro-batches that are taken once, replayed exactly, and settled at the end.

Spark calls latestOffset, writes the offset to its log, calls partitions, runs the tasks, and writes
the batch to its commit log. After a crash it starts again at partitions, with the same offsets. So
messages are taken only in latestOffset. Tasks read held messages and change nothing. Messages up to
`start` are settled in latestOffset, because Spark calls it only when the batch that ends there is
in the commit log; it does not call `commit` for the last batch of a run.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

import rmq
from rmq.connectors import Block, Held
from rmq.errors import ConfigurationError, LeaseLost
from spark_connector import offset as offsets
from spark_connector.connection import connect, retry_while_away
from spark_connector.offset import Offset, Share
from spark_connector.options import StreamOptions
from spark_connector.query_lease import RETRY_S, QueryLease
from spark_connector.schema import Batches

if TYPE_CHECKING:
    import pyarrow as pa

BACKLOG_S = 1.0  # between two counts of the backlog for Spark's progress

_log = logging.getLogger("spark_connector")


@dataclass
class Part(InputPartition):
    """The part of a batch that a task reads; pickled to the executor."""

    run: str
    share: Share


class RmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read a topic for one run of a query.

    Spark creates an object in the source runner, where it lives as long as the query, and pickles
    another one to the tasks; so it connects only at the first call.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._new_run = uuid.uuid4().hex  # the run, if the checkpoint has none
        self._query_lease: QueryLease | None = None
        self._announced = False
        self._left: int | None = None  # for Trigger.AvailableNow: how many may still be taken
        self._backlog: tuple[float, dict[str, Any]] | None = None
        self._planned: Offset | None = None  # the end of the last batch with messages of this run
        self._committed: Offset | None = None  # the last commit of Spark

    # --- on the driver -------------------------------------------------------------------------

    def _open(self, run: str) -> QueryLease:
        if self._query_lease is None or self._query_lease.run != run:
            if self._query_lease is not None:
                self._query_lease.release_ownership()
            orphaned = _terminate if _stop_on_sigterm() else None
            self._query_lease = QueryLease(self._options, run, orphaned)
        return self._query_lease

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before any message; after a crash, Spark may call it again."""
        slots = self._open(self._new_run).slots()
        return Offset(self._new_run, dict.fromkeys(range(slots), 0), {}).spell(
            self._options.at.topic
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a number, so that `ReadAllAvailable` can only mean Trigger.Once."""
        return ReadMaxRows(self._options.most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Take no more messages than wait now."""
        self._left = sum(self._open(self._new_run).waiting())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Settle the batch that ends at `start`, and take the next one."""
        topic = self._options.at.topic
        known = offsets.read(start, topic)
        lease = self._open(known.run)
        holding = lease.hold(known.slots)
        offsets.check_slots(known, len(holding), topic)
        offsets.check_age(known, [slot.settled for slot in holding], topic)
        if self._unread(lease, known, holding):
            lease.again(known.slots)
            holding = lease.hold(known.slots)
        else:
            self._settle(lease, known)
        if self._announces(known, limit):
            return start
        held = sum(slot.messages for slot in holding)
        until = time.monotonic() + self._options.poll_s
        while True:
            end = lease.take(known.slots, self._most(limit, held))
            if end != known.slots:
                counts = [slot.messages for slot in lease.hold(known.slots, end)]
                break
            left_s = until - time.monotonic()
            if left_s <= 0 or self._left is not None:
                return start
            lease.wait(left_s)
        if self._left is not None and not held:
            self._left = max(0, self._left - sum(counts))
        self._log_gaps(sum(end.values()) - sum(known.slots.values()) - sum(counts))
        return Offset(known.run, end, dict(enumerate(counts))).spell(topic)

    def _unread(self, lease: QueryLease, end: Offset, holding: list[Held]) -> bool:
        """Whether no task has read any message of a batch that has ended; then it is not settled.

        A file sink drops a batch whose number it knows, and Spark runs no task for it: a new query
        with the output path of a former query would lose its first batches.

        Raises:
            ConfigurationError: no task has, and onClaimLoss is `fail`.
        """
        batch = {slot: count for slot, count in end.held.items() if count}
        left = [holding[slot] for slot in batch if holding[slot].settled < end.slots[slot]]
        since = {slot: end.slots[slot] - count for slot, count in end.held.items()}
        if not left or any(holding[slot].handed > since[slot] for slot in batch):
            return False
        if not any(slot.messages for slot in lease.hold(end.slots | since, end.slots)):
            return False
        text = unread(self._options, sum(batch.values()))
        if self._options.on_loss == "fail":
            raise ConfigurationError(text)
        _log.warning("%s", text)
        return True

    def _settle(self, lease: QueryLease, end: Offset) -> None:
        """Settle a batch that is in Spark's commit log.

        Raises:
            LeaseLost: others may have had messages of it, and onClaimLoss is `fail`.
        """
        missing = lease.settle(end)
        if not missing:
            return
        text = missed(self._options, sum(end.held.values()), missing)
        if self._options.on_loss == "fail":
            raise LeaseLost(text)
        _log.warning("%s", text)

    def _log_gaps(self, gone: int) -> None:
        """Log that messages with numbers of this batch are gone from it.

        Such gaps come from a driver that died before Spark wrote their offset, or from a checkpoint
        that was rolled back. In the second case sinks know the number of the batch and drop it, so
        no other message may get these numbers.
        """
        if gone:
            _log.warning(
                "topic %r: %d messages that the query had taken beyond its checkpoint were given "
                "back since then, when its lease ran out; this batch has nothing in their place. "
                "If the checkpoint was rolled back, sinks may have them already, and whoever got "
                "them meanwhile has them twice",
                self._options.at.topic, gone,
            )  # fmt: skip

    def _announces(self, known: Offset, limit: ReadLimit) -> bool:
        """Whether Spark has to write the run to its log before any message is taken.

        A new query begins with an empty batch, whose offset has the run. Otherwise, after a crash
        between the first take and Spark's log, messages would wait for the end of their lease.
        Trigger.Once has only one batch, so it takes that risk.
        """
        if known.run != self._new_run or self._announced or isinstance(limit, ReadAllAvailable):
            return False
        self._announced = True
        return True

    def _most(self, limit: ReadLimit, held: int) -> int | None:
        """Return how many messages may be taken; held messages are handed out in any case."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._left is None or held:
            return most
        return self._left if most is None else min(most, self._left)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the backlog, which Spark shows in the progress of the query."""
        if self._query_lease is None:
            return None
        now = time.monotonic()
        if self._backlog is None or now - self._backlog[0] > BACKLOG_S:
            waiting = self._query_lease.waiting()
            by_slot = {str(slot): count for slot, count in enumerate(waiting)}
            self._backlog = now, {"waiting": sum(waiting), "slots": by_slot}
        return self._backlog[1]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Part]:
        """Plan a batch, which an earlier run may have begun.

        The run is that of `end`: when Spark replays the first batch it calls initialOffset again,
        so that `start` has a run which was never used.
        """
        topic = self._options.at.topic
        known, since = offsets.read(end, topic), offsets.read(start, topic)
        if since.run != known.run:
            since = Offset(known.run, dict.fromkeys(known.slots, 0), {})
        if known.slots == since.slots:
            return []
        self._check_progress(since)
        self._planned = known
        lease = self._open(known.run)
        held = lease.hold(since.slots, known.slots)
        offsets.check_slots(known, len(held), topic)
        self._settle(lease, since)
        if self._gives_up(lease, known):
            return []
        counts = {slot: state.messages for slot, state in enumerate(held)}
        if counts != {slot: known.held.get(slot, 0) for slot in counts}:
            self._lost(counts, known)
        shares = offsets.shares(since.slots, known, counts, self._options.min_partitions)
        return [Part(known.run, share) for share in shares]

    def _check_progress(self, since: Offset) -> None:
        """Refuse asynchronous progress tracking, which settles batches that Spark may replay.

        Between two batches of one run Spark calls `commit`, always, unless it skips its logs.

        Raises:
            ConfigurationError: Spark has not committed the batch before.
        """
        if self._planned is not None and since == self._planned and since != self._committed:
            raise ConfigurationError(
                "asyncProgressTrackingEnabled: RMQ cannot serve it, since Spark asks for the next "
                "batch before it has noted that the last one ended; switch it off, and give the "
                f"query {offsets.ANEW} if it is refused as an older copy then"
            )

    def _gives_up(self, lease: QueryLease, end: Offset) -> bool:
        """Whether this batch was replayed too often; then its messages are dead-lettered."""
        most = self._options.max_replays
        if most is None:
            return False
        batch = ",".join(str(number) for number in end.slots.values())
        runs = lease.begun(batch, self._new_run)
        if runs <= most + 1:
            return False
        why = f"Spark began its batch {runs - 1} times and never ended it"
        rejected = lease.reject(end.slots, why)
        _log.warning(
            "topic %r: %d messages are dead letters, their batch was replayed %d times",
            self._options.at.topic, rejected, most,
        )  # fmt: skip
        return True

    def _lost(self, counts: dict[int, int], end: Offset) -> None:
        text = lost(self._options, sum(end.held.values()), sum(counts.values()))
        if self._options.on_loss == "fail":
            raise LeaseLost(text)
        _log.warning("%s", text)

    def commit(self, end: dict[str, Any]) -> None:
        """Settle a batch, unless `latestOffset` has done so."""
        known = self._committed = offsets.read(end, self._options.at.topic)
        self._settle(self._open(known.run), known)

    def stop(self) -> None:
        """Let another driver continue at once. Messages stay held, because a restart replays them.

        Spark calls this when the driver has crashed or a call has raised. At a clean stop it sends
        SIGTERM, see `_stop_on_sigterm`.
        """
        if self._query_lease is not None:
            self._query_lease.release_ownership()
            self._query_lease = None

    # --- in a task -----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part of a batch; Spark may repeat it, because nothing changes."""
        assert isinstance(partition, Part)
        share, at = partition.share, self._options.at
        batches = Batches(self._schema, at.topic)
        count = 0
        with connect(at) as client:
            query = client.topic(at.topic).query(partition.run, "task")
            for block in _blocks(query, share, self._options.fetch):
                count += len(block.ids)
                yield batches.of_block(block)
        if count != share.held and self._options.on_loss == "fail":
            raise LeaseLost(lost(self._options, share.held, count))


def _stop_on_sigterm() -> bool:
    """Make SIGTERM end the process by an exception, so that `stop` is called.

    Only in Spark's source runner, which has no other signal handlers; return whether this is one.
    """
    if (
        sys.argv[0].endswith("python_streaming_source_runner.py")
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGTERM, _end)
        return True
    return False


def _terminate() -> None:
    """End this process as a clean stop does, even in the middle of a call."""
    os.kill(os.getpid(), signal.SIGTERM)


def _end(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Spark sends two
    raise SystemExit(128 + number)


def _page(query: rmq.Query, slot: int, after: int, upto: int) -> Block | None:
    return next(query.read(slot, after, upto), None)


def _blocks(query: rmq.Query, share: Share, most: int) -> Iterator[Block]:
    """Yield the held messages of a share; resume after an outage of Redis."""
    after = share.after
    while after < share.upto:
        upto = min(share.upto, after + most)
        block = retry_while_away(partial(_page, query, share.slot, after, upto), RETRY_S)
        if block is not None:
            yield block
        after = upto if block is None else block.numbers[-1]


def unread(options: StreamOptions, batch: int) -> str:
    """Return the text for a batch that Spark ended and no task has read."""
    return (
        f"topic {options.at.topic!r}: Spark ended a batch of {batch} messages of which no task has "
        "read any: a sink that knows its number dropped it, as file sinks do where a new "
        "checkpoint meets the output path of another one, or foreachBatch did not read it. None "
        f"of them is settled or lost. Give the query {offsets.ANEW}; or restart with "
        "onClaimLoss=continue, and they come again in the next batches until one is read"
    )


def missed(options: StreamOptions, batch: int, missing: int) -> str:
    """Return the text for an ended batch with messages that others have received."""
    return (
        f"topic {options.at.topic!r}: {missing} of {batch} messages of the last batch, which has "
        f"ended, could not be settled: its lease of {options.lease_s:g} s ran out before, or the "
        "query was released, and others have had them since, or get them now. So they may be twice "
        "where both write to; none is lost. Restart with onClaimLoss=continue to go on with the "
        "next batch"
    )


def lost(options: StreamOptions, batch: int, held: int) -> str:
    """Return the text for a batch with messages that are no longer held."""
    return (
        f"topic {options.at.topic!r}: {batch - held} of {batch} messages of this batch are no "
        f"longer held, because its lease of {options.lease_s:g} s ran out or they were settled "
        "before; none is lost, they were given back and come again: restart with "
        "onClaimLoss=continue to go on without them in this batch"
    )
