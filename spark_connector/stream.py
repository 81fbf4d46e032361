"""Read a stream in micro-batches, and settle them. Spark can replay them exactly after a crash.

Spark calls latestOffset, writes the offset to its log, calls partitions, runs the tasks, and writes
the batch to its commit log. After a crash, Spark starts again at partitions, with the same offsets.
So RMQ receives messages only before latestOffset returns. Tasks read messages that the query
already has, and change nothing. When Spark calls latestOffset, the batch that ends at the argument
`start` is in the commit log. So latestOffset settles the messages up to `start`. Spark does not
call `commit` for the last batch of a run.

While the tasks of a batch run, RMQ settles the previous batch. If more messages wait, RMQ also
receives the next batch. Messages are "ahead" if RMQ has received them, but latestOffset has not
returned them yet. After a crash, these messages are the next batch. RMQ recognizes these messages
because no task has read them. If a task has read a message, Spark may have the offset of its batch.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.types import StructType

import rmq
from rmq.connectors import Held, HeldPart, open_parts
from rmq.errors import ConfigurationError, LeaseLost, TopicNotFound, TopicVanished
from spark_connector import offset as offsets, planning
from spark_connector.connection import RETRY_S, client_of_task, retry_while_away
from spark_connector.offset import Numbers, Offset, Position
from spark_connector.options import StreamOptions
from spark_connector.progress import Progress
from spark_connector.query_lease import QueryLease, gone
from spark_connector.schema import Batches
from spark_connector.versions import (
    DataSourceStreamReader,
    InputPartition,
    LoggedOffset,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    import pyarrow as pa

TOPICS_S = 5.0  # time between two searches for topics that match subscribePattern
T = TypeVar("T")
STOP_S = 2.0  # longest wait for background work when the query ends

_log = logging.getLogger("spark_connector")


@dataclass
class Part(InputPartition):
    """The part of a batch that a task reads. Spark pickles this object for the executor."""

    run: str
    held: int
    parts: tuple[HeldPart, ...]
    stamps: dict[str, bytes]  # creation time of each topic, by name


class RmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics for one run of a query.

    Spark creates one object in the source runner, which lives as long as the query. Spark pickles
    another object for the tasks. So an object connects to Redis only at its first call.
    """

    # Name of the query's owner. Default: the JVM that started this process.
    _owner: str | None = None

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._new_run = uuid.uuid4().hex  # name of the run, if the checkpoint has none
        self._query_lease: QueryLease | None = None
        self._settling: Future[None] | None = None
        self._settling_end: Offset | None = None
        self._taking: Future[dict[str, Numbers]] | None = None
        self._begun = False  # whether the state of the query was read from Redis
        self._announced = False
        # With Trigger.AvailableNow: number of messages that may still be taken.
        self._left: int | None = None
        self._start: Offset | None = None  # start of the last call of latestOffset
        self._logged = LoggedOffset()
        self._returned: tuple[Offset, Offset, dict[str, Any]] | None = (
            None  # start of the batch, its end, and its end as text
        )
        self._ahead: dict[str, Numbers] | None = None  # newest numbers taken, by topic and slot
        self._first_ahead = 0.0  # time when the first message ahead was taken (see above)
        self._topics: tuple[float, list[str]] | None = None  # time of the search, its topics
        # End of the batch that an earlier run left unfinished, until latestOffset has returned it.
        self._found: dict[str, Numbers] | None = None
        self._inherited: dict[str, Numbers] = {}  # newest numbers that an earlier run took
        self._lapses = 0  # `QueryLease.lapses` when a batch was last counted
        self._checked: Offset | None = None  # last batch that tasks have certainly read
        self._progress = Progress()
        self._planned: Offset | None = None  # end of this run's last batch with messages
        self._committed: Offset | None = None  # end of the last batch that Spark has committed

    # --- on the driver -------------------------------------------------------------------------

    def _open(self, run: str) -> QueryLease:
        if self._query_lease is None or self._query_lease.run != run:
            if self._query_lease is not None:
                self._query_lease.release_ownership()
            orphaned = _terminate if _stop_on_sigterm() else None
            self._query_lease = QueryLease(self._options, run, orphaned, self._owner)
            self._query_lease.report = partial(self._progress.figures, self._query_lease)
            self._begun, self._ahead, self._taking, self._settling = False, None, None, None
        self._query_lease.check()
        return self._query_lease

    def _in_background(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Run a call in a daemon thread, so that the executor's process can end."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call(*args))
            except BaseException as error:  # reading the result raises it
                future.set_exception(error)

        threading.Thread(target=run, name="rmq-background", daemon=True).start()
        return future

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before the first message. Spark may call this again after a crash."""
        lease = self._open(self._new_run)
        start = {topic: _zeros(lease.slots(topic)) for topic in self._subscribed(lease, None)}
        return Offset(self._new_run, start).spell()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the default limit of a batch.

        Because there is a default limit, Spark passes `ReadAllAvailable` only with Trigger.Once.
        """
        return ReadMaxRows(self._options.most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit this run to the messages that are waiting now."""
        lease = self._open(self._new_run)
        waiting = lease.waiting(self._subscribed(lease, None))
        self._left = sum(sum(counts) for counts in waiting.values())

    def _subscribed(self, lease: QueryLease, known: Offset | None) -> list[str]:
        """Return the topics to read.

        If you pass the offset `known`, the query must still read all topics of this offset.

        Raises:
            TopicNotFound: A topic of the checkpoint was deleted, and onTopicLoss is `fail`.
            ConfigurationError: No topic matches the pattern, or the checkpoint has other topics.
        """
        now = time.monotonic()
        if self._topics is None or (self._options.pattern and now - self._topics[0] > TOPICS_S):
            self._topics = now, lease.topics()
        topics = list(self._topics[1])
        if known is None:
            if not topics:
                raise ConfigurationError(
                    f"subscribePattern: no topic matches {self._options.at.topic!r}; create one "
                    "before the query starts: rmq topic create NAME"
                )
            return topics
        for topic in known.topics:
            if topic not in topics:
                if self._options.pattern is None:
                    raise offsets.not_subscribed(topic, self._options.at.topic)
                self._lose(lease, topic)
        return topics

    def _lose(self, lease: QueryLease, topic: str) -> None:
        text = (
            f"topic {topic!r} is gone, or its name no longer matches subscribePattern; restart "
            "with onTopicLoss=continue to continue without it"
        )
        if self._options.on_topic_loss == "fail":
            raise TopicNotFound(text)
        _log.warning("%s", text)
        lease.leave(topic)

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Settle the batch that ends at `start`, and return the end of the next batch.

        Spark 4.0 and 4.1 pass no arguments.
        """
        if start is None:
            start = self._logged.start(self.initialOffset)
        limit = limit or self.getDefaultReadLimit()
        known = offsets.read(start)
        if self._returned is not None and self._returned[0] == known:
            return self._returned[2]
        lease = self._open(known.run)
        self._finish_settling()
        topics, first = self._subscribed(lease, known), not self._begun
        self._start = known
        self._begin(lease, known, topics)
        if self._unread(lease, known):
            lease.again(known)
            self._begun, self._ahead = False, None
            self._begin(lease, known, topics)
        elif first:
            self._settle(lease, known)
        else:
            self._settling_end = known
            self._settling = self._in_background(self._settle, lease, known)
        if self._announces(known, limit):
            self._finish_settling()
            return start
        end = self._next(lease, known, topics, limit)
        if end is None:
            self._finish_settling()
            return start
        spelled = end.spell()
        self._returned = known, end, spelled
        self._progress.rows += end.messages
        self._progress.batches += 1
        return spelled

    def _begin(self, lease: QueryLease, known: Offset, topics: list[str]) -> None:
        """Read from Redis which messages the query has received after the offset in `known`.

        The first call reads all topics. Later calls read only new topics.
        """
        ahead = self._ahead = _without(lease.lost, self._ahead or {})
        first = not self._begun
        handed: dict[str, Numbers] = {}
        for topic in topics:
            if topic in ahead:
                continue
            slots = known.slots(topic)
            holding = self._hold(lease, topic, slots)
            if not holding:
                continue
            offsets.check_slots(slots, len(holding), topic)
            offsets.check_age(slots, [slot.settled for slot in holding], topic)
            ahead[topic] = {
                slot: max(state.newest, slots.get(slot, 0)) for slot, state in enumerate(holding)
            }
            handed[topic] = {
                slot: max(state.handed, slots.get(slot, 0)) for slot, state in enumerate(holding)
            }
        if first:
            self._begun = True
            self._inherited = {topic: dict(numbers) for topic, numbers in ahead.items()}
            # Messages that tasks have read belong to a batch. Spark may have lost the offset of
            # this batch.
            left = handed if _beyond(known, handed) else ahead
            self._found = left if _beyond(known, ahead) else None

    def _hold(self, lease: QueryLease, topic: str, slots: Numbers) -> list[Held]:
        try:
            return lease.hold(topic, slots)
        except (TopicNotFound, TopicVanished):
            if slots:
                raise
            self._topics = None
            return []

    def _next(
        self, lease: QueryLease, known: Offset, topics: list[str], limit: ReadLimit
    ) -> Offset | None:
        if self._found is not None:
            found, self._found = self._found, None
            return self._batch(lease, known, found)
        newest = self._finish_taking()
        self._progress.ahead = _beyond(known, newest)
        most = self._most(limit)
        until = time.monotonic() + self._options.poll_s
        is_last = self._left is not None or isinstance(limit, ReadAllAvailable)
        while True:
            count = _beyond(known, newest)
            if most is None or count < most:
                if not count or not self._options.most_bytes:
                    left = None if most is None else most - count
                    newest = self._ahead = lease.take(newest, left, self._options.most_bytes)
                count = _beyond(known, newest)
            now = time.monotonic()
            self._first_ahead = self._first_ahead if count and self._first_ahead else now
            late = now >= self._first_ahead + self._options.delay_s
            if count and (count >= self._options.least or late or is_last):
                break
            if lease.lost & known.topics.keys():
                break  # end a batch without the lost topics, so that they can join again
            if now >= until or is_last:
                return None
            lease.wait(topics, until - now)
        self._first_ahead = 0.0
        if self._left is not None:
            self._left = max(0, self._left - count)
        if most is not None and count >= most and self._left != 0:
            more = self._most(limit)
            self._taking = self._in_background(lease.take, newest, more, self._options.most_bytes)
        return self._batch(lease, known, newest)

    def _batch(
        self, lease: QueryLease, known: Offset, newest: Mapping[str, Numbers]
    ) -> Offset | None:
        """Return the offset of a batch, with its number of messages.

        The number of messages is the difference between two sequence numbers. If the lease may have
        expired since RMQ received the messages, RMQ counts the messages instead.
        """
        end, newest = _without(lease.lost, known.topics), _without(lease.lost, newest)
        exact = lease.lapses() != self._lapses or _beyond(known, self._inherited) > 0
        self._lapses = lease.lapses()
        for topic, numbers in newest.items():
            slots = known.slots(topic)
            held = {slot: number - slots.get(slot, 0) for slot, number in numbers.items()}
            if exact:
                states = lease.hold(topic, slots, numbers)
                if not states:
                    end.pop(topic, None)
                    continue
                counts = {slot: state.messages for slot, state in enumerate(states)}
                self._log_gaps(topic, sum(held.values()) - sum(counts.values()))
                held = counts
            # Use the form that `spell` writes, so that `partitions` recognizes the offset.
            end[topic] = Position(dict(numbers), {slot: n for slot, n in held.items() if n})
        for topic in set(end) - set(newest):
            if topic in known.topics and topic in self._known_topics():
                end[topic] = Position(known.topics[topic].slots, {})
            else:
                del end[topic]
        offset = Offset(known.run, end)
        same = all(offset.slots(topic) == known.slots(topic) for topic in {*end, *known.topics})
        return None if same else offset

    def _known_topics(self) -> list[str]:
        return self._topics[1] if self._topics else []

    def _finish_taking(self) -> dict[str, Numbers]:
        """Wait until the background thread has received messages.

        Return the newest sequence number of each slot (part) of each topic.
        """
        if self._taking is not None:
            taking, self._taking = self._taking, None
            found = taking.result()
            assert self._ahead is not None
            self._ahead = {topic: found.get(topic, at) for topic, at in self._ahead.items()}
        assert self._ahead is not None
        return self._ahead

    def _finish_settling(self) -> None:
        if self._settling is not None:
            settling, self._settling = self._settling, None
            settling.result()

    def _unread(self, lease: QueryLease, end: Offset) -> bool:
        """Return whether Spark has ended a batch although no task has read its messages.

        RMQ does not settle such a batch. If a file sink has already written a batch with the same
        number, the sink drops the new batch, and Spark runs no task. This happens if a new query
        uses the output path of an earlier query. Without this check, the new query would lose its
        first batches.

        Raises:
            ConfigurationError: No task has read the batch, and onClaimLoss is `fail`.
        """
        batch = [
            (topic, slot, at.slots[slot] - count)
            for topic, at in end.topics.items()
            for slot, count in at.held.items()
            if count
        ]
        if not batch or end == self._checked:
            return False
        # Tasks usually have read the first slot of a batch, so one call usually decides.
        if any(lease.was_read(*where) for where in batch):
            self._checked = end
            return False
        for topic, at in end.topics.items():
            since = {slot: at.slots[slot] - count for slot, count in at.held.items()}
            states = lease.hold(topic, at.slots | since, at.slots)
            if any(state.messages for state in states):
                break
        else:
            self._checked = end
            return False
        self._raise_or_log(ConfigurationError(unread(self._options, end.messages)))
        return True

    def _settle(self, lease: QueryLease, end: Offset) -> None:
        """Settle a batch that is in Spark's commit log.

        Raises:
            LeaseLost: Other consumers may have received messages of the batch, and onClaimLoss is
                `fail`.
        """
        missing = lease.settle(end)
        if missing:
            self._raise_or_log(LeaseLost(missed(self._options, end.messages, missing)))

    def _raise_or_log(self, error: Exception) -> None:
        """Raise an error about messages that other consumers may have received.

        If onClaimLoss is `continue`, log the error instead.
        """
        if self._options.on_loss == "fail":
            raise error
        _log.warning("%s", error)

    def _log_gaps(self, topic: str, gone: int) -> None:
        """Log that messages of a batch are missing, because RMQ gave them back to their queue.

        The lease of the query has expired, and the offset in Spark's checkpoint is older. This
        happens if Spark's driver process died before it wrote the offset, or if somebody restored
        an old checkpoint. RMQ does not use the numbers of the missing messages for other messages.
        With an old checkpoint, a sink ignores the batch, because the sink has already written a
        batch with this number. Other messages in this batch would get lost.
        """
        if gone:
            _log.warning(
                "topic %r: %d messages that the query had taken beyond its checkpoint were given "
                "back since then, when its lease ran out; this batch has nothing in their place. "
                "If the checkpoint was rolled back, sinks may have them already, and whoever got "
                "them meanwhile has them twice",
                topic, gone,
            )  # fmt: skip

    def _announces(self, known: Offset, limit: ReadLimit) -> bool:
        """Return whether the first batch of a query must be empty.

        The offset of the empty batch puts the name of the run into Spark's log. Without this batch,
        Spark could crash after RMQ has received messages, but before the name is in the log. These
        messages would then wait until their lease ends. With Trigger.Once, there is only one batch,
        so RMQ accepts this wait.
        """
        if known.run != self._new_run or self._announced or isinstance(limit, ReadAllAvailable):
            return False
        self._announced = True
        return True

    def _most(self, limit: ReadLimit) -> int | None:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._left is None:
            return most
        return self._left if most is None else min(most, self._left)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the numbers that Spark shows in the progress of the query as the latest offset.

        The result has the number of waiting messages for each topic and slot, and the counts in
        `Progress`.
        """
        if self._query_lease is None or not self._begun:
            return None
        return self._progress.report(self._query_lease, self._known_topics())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Part]:
        """Plan the tasks of a batch. An earlier run may have begun this batch.

        The method reads the name of the run from `end`. The name in `start` can be wrong: if Spark
        replays the first batch of a query, it calls initialOffset again and gets a new name.
        """
        self._logged.note_planned(start, end)
        known, since = offsets.read(end), offsets.read(start)
        if since.run != known.run:
            since = Offset(known.run, {})
        if all(known.slots(topic) == since.slots(topic) for topic in known.topics):
            return []
        self._check_progress(since)
        self._planned = known
        lease = self._open(known.run)
        ours = self._returned is not None and self._returned[1] == known
        if not ours:
            self._subscribed(lease, known)
        shares, wanted, counts = [], 0, 0
        topics: dict[str, tuple[int, bytes]] = {}
        for topic, at in known.topics.items():
            after, held = since.slots(topic), at.held
            opened = None if topic in lease.lost else lease.opened(topic)
            if opened is None:
                continue
            if not ours:
                self._progress.replays += 1
                states = lease.hold(topic, after, at.slots)
                if not states:
                    continue
                offsets.check_slots(at.slots, len(states), topic)
                held = {slot: state.messages for slot, state in enumerate(states)}
            topics[topic] = opened
            wanted += at.messages
            counts += sum(held.values())
            shares += planning.shares(topic, after, at.slots, held)
        if not ours:
            self._settle(lease, since)
        if self._gives_up(lease, known):
            return []
        if counts != wanted:
            self._raise_or_log(LeaseLost(lost(self._options, wanted, counts)))
        tasks = planning.wanted(
            counts, self._options.tasks, self._options.rows, planning.cores_of_cluster()
        )
        return [self._part(known.run, task, topics) for task in planning.tasks(shares, tasks)]

    def _part(
        self, run: str, task: list[planning.Share], topics: Mapping[str, tuple[int, bytes]]
    ) -> Part:
        parts = tuple(
            HeldPart(
                self._options.at.prefix, share.topic, share.slot, share.after, share.upto,
                topics[share.topic][0],
            )
            for share in task
        )  # fmt: skip
        stamps = {share.topic: topics[share.topic][1] for share in task}
        return Part(run, sum(share.held for share in task), parts, stamps)

    def _check_progress(self, since: Offset) -> None:
        """Raise an error if Spark tracks progress asynchronously.

        With asynchronous progress tracking, RMQ would settle batches that Spark may replay. Spark
        then does not always call `commit` between two batches of a run.

        Raises:
            ConfigurationError: Spark has not committed the previous batch.
        """
        if self._planned is not None and since == self._planned and since != self._committed:
            raise ConfigurationError(
                "asyncProgressTrackingEnabled: RMQ does not support it, because Spark requests the "
                "next batch before it has recorded the end of the last; switch it off. If the "
                f"checkpoint is then refused as an older copy, give the query {offsets.ANEW}"
            )

    def _gives_up(self, lease: QueryLease, end: Offset) -> bool:
        """Make the messages of a batch dead letters if the batch was replayed too often.

        Return whether the batch was replayed too often.
        """
        most = self._options.max_replays
        if most is None:
            return False
        home = min(end.topics.keys() - lease.lost, default=None)
        if home is None:
            return False
        batch = ",".join(
            str(number) for topic in sorted(end.topics) for number in end.slots(topic).values()
        )
        runs = lease.begun(home, batch, self._new_run)
        if runs <= most + 1:
            return False
        why = f"Spark began its batch {runs - 1} times and never ended it"
        rejected = lease.reject(end, why)
        _log.warning(
            "%s: %d messages are dead letters, their batch was replayed %d times",
            _named(self._options), rejected, most,
        )  # fmt: skip
        return True

    def commit(self, end: dict[str, Any]) -> None:
        """Settle a batch, unless `latestOffset` settles it.

        Spark waits for this call before it runs the next tasks, so the call must be short.
        """
        known = self._committed = offsets.read(end)
        if self._returned is not None and self._returned[0] == known:
            self._logged.note(self._returned[2])
        if self._settling is None or self._settling_end != known:
            self._finish_settling()
            self._settle(self._open(known.run), known)

    def stop(self) -> None:
        """Let another driver (the process that runs the query) continue immediately.

        The query keeps the messages of its batches, because a restart replays these batches. RMQ
        releases messages that were received for the next batch, because Spark has no offset for
        them. Spark calls this method when the driver has crashed or a call has raised an error. At
        a clean stop, Spark sends SIGTERM, see `_stop_on_sigterm`.
        """
        if self._query_lease is None:
            return
        for future in (self._taking, self._settling):
            if future is not None:
                _wait(future)
        end = self._returned[1] if self._returned is not None else self._start
        beyond = None if end is None else {topic: at.slots for topic, at in end.topics.items()}
        self._query_lease.release_ownership(beyond)
        self._query_lease = None

    # --- in a task -----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part of a batch. Spark may call this again, because reading changes nothing."""
        assert isinstance(partition, Part)
        options = self._options
        batches = Batches(self._schema, partition.run)
        count = 0
        client = client_of_task(options.at)
        for topic, parts in groupby(partition.parts, lambda part: part.topic):
            read = open_parts(
                client._transport, partition.run, parts, options.fetch,
                options.memory // SHARE_OF_PAGE,
            )  # fmt: skip
            try:
                while blocks := retry_while_away(read, RETRY_S):
                    count += sum(len(block.records) for block in blocks)
                    yield batches.of_blocks(blocks)
            except (TopicNotFound, TopicVanished) as error:
                if options.on_topic_loss == "fail":
                    raise type(error)(gone(topic, error)) from error
        if count == partition.held or options.on_loss == "continue":
            return
        if options.on_topic_loss == "fail" or not _are_gone(client, partition.stamps):
            raise LeaseLost(lost(options, partition.held, count))


SHARE_OF_PAGE = 4  # copies of a page in memory: replies, records, columns, and Spark's copy


def _are_gone(client: rmq.Client, stamps: Mapping[str, bytes]) -> bool:
    """Return whether a topic was deleted after the batch was planned.

    `stamps` has the creation time of each topic in the plan. If a topic was created again, its
    creation time differs.
    """
    for name, stamp in stamps.items():
        topic = client.topic(name)
        try:
            retry_while_away(partial(topic.open, create=False), RETRY_S)
        except (TopicNotFound, TopicVanished):
            return True
        if topic._context.identity != stamp:
            return True
    return False


def _without(lost: Collection[str], topics: Mapping[str, T]) -> dict[str, T]:
    return {topic: value for topic, value in topics.items() if topic not in lost}


def _zeros(slots: int) -> Position:
    return Position(dict.fromkeys(range(slots), 0), {})


def _beyond(known: Offset, newest: Mapping[str, Numbers]) -> int:
    return sum(
        max(0, number - known.slots(topic).get(slot, 0))
        for topic, numbers in newest.items()
        for slot, number in numbers.items()
    )


def _wait(future: Future[Any]) -> None:
    try:
        future.result(STOP_S)
    except BaseException as error:
        _log.debug("at the end of the query: %s", error)


def _named(options: StreamOptions) -> str:
    if options.pattern is not None:
        return f"topics {options.at.topic!r}"
    return f"topic{'s' if len(options.topics) > 1 else ''} {', '.join(map(repr, options.topics))}"


def _stop_on_sigterm() -> bool:
    """Let SIGTERM end this process with an exception, so that Spark calls `stop`.

    The function does this only in Spark's source runner, which has no other signal handlers. Return
    whether this process is a source runner.
    """
    if (
        sys.argv[0].endswith("python_streaming_source_runner.py")
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGTERM, _end)
        return True
    return False


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _end(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Spark sends two
    raise SystemExit(128 + number)


def unread(options: StreamOptions, batch: int) -> str:
    """Return the error text for a batch that Spark ended before a task had read it."""
    return (
        f"{_named(options)}: Spark ended a batch of {batch} messages of which no task has "
        "read any. Either a sink dropped it because it had seen the batch's number, as file sinks "
        "do if a new checkpoint has an old output path, or foreachBatch did not read it. No "
        f"message is settled or lost. Give the query {offsets.ANEW}; or restart with "
        "onClaimLoss=continue to get the messages again in the next batches until a batch is read"
    )


def missed(options: StreamOptions, batch: int, missing: int) -> str:
    """Return the error text for a batch whose messages other consumers may have received."""
    return (
        f"{_named(options)}: {missing} of {batch} messages of the last batch, which has "
        f"ended, could not be settled: its lease of {options.lease_s:g} s ran out before, or the "
        "query was released. Other readers have received them, or will, so their output may be "
        "there twice. No message is lost. Restart with onClaimLoss=continue to continue with the "
        "next batch"
    )


def lost(options: StreamOptions, batch: int, held: int) -> str:
    """Return the error text for a batch with messages that the query no longer has."""
    return (
        f"{_named(options)}: {batch - held} of {batch} messages of this batch are no longer "
        f"held, because its lease of {options.lease_s:g} s ran out or because they were settled "
        "before. No message is lost: messages whose lease ran out come again, settled messages do "
        "not. To continue without them in this batch, restart with onClaimLoss=continue"
    )
