"""The streaming read: micro-batches that are taken once, replayed exactly, and settled at the end.

Spark calls latestOffset, writes the offset to its log, calls partitions, runs the tasks, and writes
the batch to its commit log. After a crash it begins again at partitions, with the same offsets. So
messages are taken in latestOffset alone; tasks read what the query holds and change nothing; and
everything up to `start` is settled in latestOffset, which Spark calls only when the batch that
ends there is in the commit log (it does not call `commit` for the last batch of a run).
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
from spark_connector.claims import PATIENCE_S, Claims
from spark_connector.link import connect, patient
from spark_connector.offset import Offset, Share
from spark_connector.options import StreamOptions
from spark_connector.schema import Batches

if TYPE_CHECKING:
    import pyarrow as pa

BACKLOG_S = 1.0  # the backlog is told to Spark's progress once in so long

_log = logging.getLogger("spark_connector")


@dataclass
class Part(InputPartition):
    """What one task reads. It travels to the executor, which knows nothing else of the batch."""

    run: str
    share: Share


class RmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic for one run of a query.

    Spark makes one of these in the source runner, where it lives as long as the query runs, and
    pickles another one into the tasks; so nothing is connected before the first call.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._fresh = uuid.uuid4().hex  # the run, if the checkpoint knows of none
        self._claims: Claims | None = None
        self._announced = False
        self._left: int | None = None  # for Trigger.AvailableNow: how many may still be taken
        self._backlog: tuple[float, dict[str, Any]] | None = None
        self._planned: Offset | None = None  # the end of the last batch with messages of this run
        self._committed: Offset | None = None  # what Spark told last

    # --- on the driver -------------------------------------------------------------------------

    def _open(self, run: str) -> Claims:
        if self._claims is None or self._claims.run != run:
            if self._claims is not None:
                self._claims.let_go()
            orphaned = _terminate if _stop_on_sigterm() else None
            self._claims = Claims(self._options, run, orphaned)
        return self._claims

    def initialOffset(self) -> dict[str, Any]:
        """Nothing is taken yet. Spark may ask again after a crash: see `partitions`."""
        slots = self._open(self._fresh).slots()
        return Offset(self._fresh, dict.fromkeys(range(slots), 0), {}).spell(self._options.at.topic)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Never "all": so `ReadAllAvailable` can only mean Trigger.Once."""
        return ReadMaxRows(self._options.most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note how many messages wait: no more than these are taken."""
        self._left = sum(self._open(self._fresh).waiting())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Settle what ends at `start`, and take the next batch."""
        topic = self._options.at.topic
        known = offsets.read(start, topic)
        claims = self._open(known.run)
        holding = claims.hold(known.slots)
        offsets.check_slots(known, len(holding), topic)
        offsets.check_age(known, [one.settled for one in holding], topic)
        if self._unread(claims, known, holding):
            claims.again(known.slots)
            holding = claims.hold(known.slots)
        else:
            self._settle(claims, known)
        if self._announces(known, limit):
            return start
        held = sum(one.messages for one in holding)
        until = time.monotonic() + self._options.poll_s
        while True:
            end = claims.take(known.slots, self._most(limit, held))
            if end != known.slots:
                counts = [one.messages for one in claims.hold(known.slots, end)]
                break
            left_s = until - time.monotonic()
            if left_s <= 0 or self._left is not None:
                return start
            claims.wait(left_s)
        if self._left is not None and not held:
            self._left = max(0, self._left - sum(counts))
        self._tell_of_gaps(sum(end.values()) - sum(known.slots.values()) - sum(counts))
        return Offset(known.run, end, dict(enumerate(counts))).spell(topic)

    def _unread(self, claims: Claims, end: Offset, holding: list[Held]) -> bool:
        """Whether no task has read anything of a batch that has ended; it is not settled then.

        A file sink drops a batch whose number it knows, and Spark runs no task for it: a new query
        with the output path of another one would lose its first batches.

        Raises:
            ConfigurationError: none has, and onClaimLoss is `fail`.
        """
        batch = {slot: count for slot, count in end.held.items() if count}
        left = [holding[slot] for slot in batch if holding[slot].settled < end.slots[slot]]
        since = {slot: end.slots[slot] - count for slot, count in end.held.items()}
        if not left or any(holding[slot].handed > since[slot] for slot in batch):
            return False
        if not any(one.messages for one in claims.hold(end.slots | since, end.slots)):
            return False
        text = unread(self._options, sum(batch.values()))
        if self._options.on_loss == "fail":
            raise ConfigurationError(text)
        _log.warning("%s", text)
        return True

    def _settle(self, claims: Claims, end: Offset) -> None:
        """Settle a batch that is in Spark's commit log.

        Raises:
            LeaseLost: others may have had messages of it, and onClaimLoss is `fail`.
        """
        missing = claims.settle(end)
        if not missing:
            return
        text = missed(self._options, sum(end.held.values()), missing)
        if self._options.on_loss == "fail":
            raise LeaseLost(text)
        _log.warning("%s", text)

    def _tell_of_gaps(self, gone: int) -> None:
        """Log that a batch lacks messages which had its numbers.

        A driver that died before Spark wrote their offset down leaves such numbers, and so does a
        checkpoint that was rolled back. Sinks know the number of the batch in the second case and
        drop whatever has it, so nothing new may stand in their place.
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
        """Whether Spark is to write the run down before anything is taken for it.

        A query that is new begins with an empty batch, whose offset has the run. Without it, a
        crash between the first taking and Spark's log would leave what was taken to its lease.
        Trigger.Once has one batch only, so it takes that risk.
        """
        if known.run != self._fresh or self._announced or isinstance(limit, ReadAllAvailable):
            return False
        self._announced = True
        return True

    def _most(self, limit: ReadLimit, held: int) -> int | None:
        """How many may be taken; what is held already is handed out whatever this says."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._left is None or held:
            return most
        return self._left if most is None else min(most, self._left)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The backlog: Spark shows it in the progress of the query, and uses it for nothing."""
        if self._claims is None:
            return None
        now = time.monotonic()
        if self._backlog is None or now - self._backlog[0] > BACKLOG_S:
            waiting = self._claims.waiting()
            told = {str(slot): count for slot, count in enumerate(waiting)}
            self._backlog = now, {"waiting": sum(waiting), "slots": told}
        return self._backlog[1]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Part]:
        """Plan a batch, or one that an earlier run has begun.

        Who it is says `end`: where the first batch is replayed, Spark asks initialOffset anew, and
        `start` has a run that nobody has ever used.
        """
        topic = self._options.at.topic
        known, since = offsets.read(end, topic), offsets.read(start, topic)
        if since.run != known.run:
            since = Offset(known.run, dict.fromkeys(known.slots, 0), {})
        if known.slots == since.slots:
            return []
        self._check_progress(since)
        self._planned = known
        claims = self._open(known.run)
        held = claims.hold(since.slots, known.slots)
        offsets.check_slots(known, len(held), topic)
        self._settle(claims, since)
        if self._gives_up(claims, known):
            return []
        there = {slot: one.messages for slot, one in enumerate(held)}
        if there != {slot: known.held.get(slot, 0) for slot in there}:
            self._lost(there, known)
        found = offsets.shares(since.slots, known, there, self._options.min_partitions)
        return [Part(known.run, share) for share in found]

    def _check_progress(self, since: Offset) -> None:
        """Refuse asynchronous progress tracking, which settles batches that Spark may replay.

        Between two batches of one run Spark calls `commit`, always, unless it skips its logs.

        Raises:
            ConfigurationError: Spark has not told of the batch before.
        """
        if self._planned is not None and since == self._planned and since != self._committed:
            raise ConfigurationError(
                "asyncProgressTrackingEnabled: RMQ cannot serve it, since Spark asks for the next "
                "batch before it has noted that the last one ended; switch it off, and give the "
                f"query {offsets.ANEW} if it is refused as an older copy then"
            )

    def _gives_up(self, claims: Claims, end: Offset) -> bool:
        """Whether this batch has been replayed too often; then it is in the DeadQueue."""
        most = self._options.max_replays
        if most is None:
            return False
        batch = ",".join(str(number) for number in end.slots.values())
        runs = claims.begun(batch, self._fresh)
        if runs <= most + 1:
            return False
        why = f"Spark began its batch {runs - 1} times and never ended it"
        buried = claims.reject(end.slots, why)
        _log.warning(
            "topic %r: %d messages sent to the DeadQueue, their batch was replayed %d times",
            self._options.at.topic, buried, most,
        )  # fmt: skip
        return True

    def _lost(self, there: dict[int, int], end: Offset) -> None:
        text = lost(self._options, sum(end.held.values()), sum(there.values()))
        if self._options.on_loss == "fail":
            raise LeaseLost(text)
        _log.warning("%s", text)

    def commit(self, end: dict[str, Any]) -> None:
        """Settle a batch; `latestOffset` has done it by now, or does it for the last one."""
        known = self._committed = offsets.read(end, self._options.at.topic)
        self._settle(self._open(known.run), known)

    def stop(self) -> None:
        """Let another driver go on at once. Claims are kept: they are what a restart replays.

        Spark calls this when the driver has crashed or a call has raised. At a clean stop it sends
        SIGTERM, see `_stop_on_sigterm`.
        """
        if self._claims is not None:
            self._claims.let_go()
            self._claims = None

    # --- in a task -----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part of a batch; as often as Spark likes, since nothing changes."""
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
    """Let a clean end of a query call `stop`, which Python would die without.

    Only in Spark's source runner, whose signals are nobody else's; whether this is one.
    """
    if (
        sys.argv[0].endswith("python_streaming_source_runner.py")
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGTERM, _end)
        return True
    return False


def _terminate() -> None:
    """End this process as a clean stop does, in the middle of a call too."""
    os.kill(os.getpid(), signal.SIGTERM)


def _end(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Spark sends two
    raise SystemExit(128 + number)


def _page(query: rmq.Query, slot: int, after: int, upto: int) -> Block | None:
    return next(query.read(slot, after, upto), None)


def _blocks(query: rmq.Query, share: Share, most: int) -> Iterator[Block]:
    """What the query holds of a share; goes on where it was when Redis has been away."""
    after = share.after
    while after < share.upto:
        upto = min(share.upto, after + most)
        block = patient(partial(_page, query, share.slot, after, upto), PATIENCE_S)
        if block is not None:
            yield block
        after = upto if block is None else block.numbers[-1]


def unread(options: StreamOptions, batch: int) -> str:
    """What to tell when Spark ended a batch and nobody has read it."""
    return (
        f"topic {options.at.topic!r}: Spark ended a batch of {batch} messages of which no task has "
        "read any: a sink that knows its number dropped it, as file sinks do where a new "
        "checkpoint meets the output path of another one, or foreachBatch did not read it. None "
        f"of them is settled or lost. Give the query {offsets.ANEW}; or restart with "
        "onClaimLoss=continue, and they come again in the next batches until one is read"
    )


def missed(options: StreamOptions, batch: int, missing: int) -> str:
    """What to tell when messages of a batch that has ended were given to others."""
    return (
        f"topic {options.at.topic!r}: {missing} of {batch} messages of the last batch, which has "
        f"ended, could not be settled: its lease of {options.lease_s:g} s ran out before, or the "
        "query was released, and others have had them since, or get them now. So they may be twice "
        "where both write to; none is lost. Restart with onClaimLoss=continue to go on with the "
        "next batch"
    )


def lost(options: StreamOptions, batch: int, held: int) -> str:
    """What to tell when messages of a batch are not held any more."""
    return (
        f"topic {options.at.topic!r}: {batch - held} of {batch} messages of this batch are no "
        f"longer held, because its lease of {options.lease_s:g} s ran out or they were settled "
        "before; none is lost, they were given back and come again: restart with "
        "onClaimLoss=continue to go on without them in this batch"
    )
