"""Read the history of topics in a batch or as a stream. The history has acked messages.

A position is the last entry that was read in each slot (part of the topic). An entry has the form
`<ms of the ack>-<number>`. Between two positions, the messages never change, except when the limits
of the history remove old messages. So a repeated task reads the same rows. The driver chooses the
positions. RMQ leases and settles nothing. The checkpoint is the only state of a query, so each
query reads all messages.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

import rmq
from rmq.connectors import parse_entry
from rmq.errors import ConfigurationError, HistoryLost, InvalidValue
from spark_connector import planning
from spark_connector.connection import RETRY_S, client_of_task, connect, retry_while_away
from spark_connector.offset import ANEW, not_subscribed
from spark_connector.option_texts import Positions
from spark_connector.options import HistoryOptions
from spark_connector.schema import Batches
from spark_connector.versions import (
    LoggedOffset,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    import pyarrow as pa

Position = dict[int, str]  # by slot
OLDEST = "0-0"  # before the first entry of a slot
COUNTED = 10_000  # messages that the driver reads in one call to count them
VERSION = 1

_log = logging.getLogger("spark_connector")


@dataclass(frozen=True)
class Span:
    """A part of a topic's history: the entries of some slots between two positions.

    Attributes:
        topic: Name of the topic.
        created: Stamp of the topic. A topic that was deleted and created again has another stamp.
        after: Last entry before the part, for each slot.
        upto: Last entry of the part, for each slot.
    """

    topic: str
    created: str
    after: Position
    upto: Position


@dataclass
class HistoryPart(InputPartition):
    """The parts of a history that a task reads. Spark pickles this object for the executor."""

    spans: tuple[Span, ...]


class Spans:
    """Reads parts of a history, page by page.

    If messages of a part were removed, the object raises or logs an error.

    Args:
        client: Client of this process.
        options: Options of the read.
    """

    def __init__(self, client: rmq.Client, options: HistoryOptions) -> None:
        self._client, self._options = client, options

    def pages(
        self, span: Span, limit: int, stored: bool = False
    ) -> Iterator[tuple[list[rmq.AckedMessage], Position, bool]]:
        """Yield pages of a part of the history.

        Each page has messages and the position after these messages. It also says whether it is the
        last page.

        Raises:
            HistoryLost: Messages were removed, and failOnDataLoss is true.
        """
        after, topic = dict(span.after), self._client.topic(span.topic)
        is_last = not after
        while not is_last:
            read = partial(
                topic.history.read, after=after, upto=span.upto, slots=list(after), limit=limit,
                stored=stored,
            )  # fmt: skip
            page = rmq.HistoryPage([], span.upto, True)
            try:
                page = retry_while_away(read, RETRY_S)
            except HistoryLost as error:
                self.lose(error)
                after[error.slot] = error.removed_to
                continue
            except InvalidValue:
                if stamp_of(topic) == span.created:
                    raise  # otherwise it was created again, with fewer slots
            if stamp_of(topic) != span.created:
                self.lose(created_again(span.topic))
                page = rmq.HistoryPage([], span.upto, True)
            after, is_last = page.position, page.is_last
            yield page.messages, after, is_last

    def lose(self, error: HistoryLost) -> None:
        """Raise an error about removed messages.

        If failOnDataLoss is false, log the error instead.
        """
        if not self._options.fails:
            _log.warning("%s", error)
            return
        raise HistoryLost(
            f"{error}. To continue with the messages that are kept, restart with "
            "failOnDataLoss=false",
            slot=error.slot, position=error.position, removed_to=error.removed_to,
        ) from error  # fmt: skip


def stamp_of(topic: rmq.Topic) -> str:
    """Return the stamp of a topic whose history was read.

    Each time a topic is created, it gets a new stamp.
    """
    return topic.history._context.identity.decode()


def created_again(topic: str) -> HistoryLost:
    """Return the error for a topic that was deleted with its history and created again."""
    return HistoryLost(
        f"topic {topic!r} was deleted and created again, with a new history, before its acked "
        "messages were read"
    )


def is_behind(after: Position, upto: Position) -> bool:
    """Return whether a slot (part of the topic) has acked messages between two positions."""
    return any(
        parse_entry(after.get(slot, OLDEST)) < parse_entry(last) for slot, last in upto.items()
    )


def earlier(one: Position, other: Position) -> Position:
    """Return the earlier of two positions in the history, for each slot of `one`.

    A slot is a part of the topic. If a slot is missing in `other`, its entry is at the beginning.
    """
    return {slot: min(at, other.get(slot, OLDEST), key=parse_entry) for slot, at in one.items()}


def later(one: Position, other: Position) -> Position:
    """Return the later of two positions in the history, for each slot of `one`.

    A slot is a part of the topic.
    """
    return {slot: max(at, other.get(slot, OLDEST), key=parse_entry) for slot, at in one.items()}


def resolved(topic: rmq.Topic, at: str | int | Positions) -> Position:
    """Return the position that an option describes.

    A slot that is missing in the option is at its beginning.

    Raises:
        InvalidValue: The topic has fewer slots than the position.
        ConfigurationError: The topic keeps no history.
        TopicNotFound: The topic does not exist.
    """
    if isinstance(at, dict):
        position = retry_while_away(partial(topic.history.position, "oldest"), RETRY_S)
        if extra := sorted(set(at[topic.name]) - set(position)):
            raise InvalidValue(
                f"startingOffsets, endingOffsets: slot {extra[0]}; topic {topic.name!r} has "
                f"{len(position)}, numbered from 0"
            )
        return position | at[topic.name]
    word: Any = {"earliest": "oldest", "latest": "newest"}.get(str(at), at)
    return retry_while_away(partial(topic.history.position, word), RETRY_S)


def read_part(
    part: InputPartition, options: HistoryOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Read the part of the history that belongs to a task, page by page."""
    if not isinstance(part, HistoryPart):
        return  # Spark reads one part even if `partitions` of a batch read returns none
    batches, spans = Batches(schema), Spans(client_of_task(options.at), options)
    for span in part.spans:
        for messages, _, _ in spans.pages(span, options.fetch):
            if messages:
                yield from batches.of_history(span.topic, messages)


class HistoryReader(DataSourceReader):
    """Reads the history of a topic once, between two positions that the driver chooses."""

    def __init__(self, options: HistoryOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> list[HistoryPart]:
        """Return the tasks of the read.

        There is one task for each slot (part of the topic). If minPartitions requires more tasks,
        several tasks share a slot, and each of these tasks reads a range of time.
        """
        options = self._options
        with connect(options.at) as client:
            topic = client.topic(options.at.topic)
            after, newest = resolved(topic, options.start), resolved(topic, "latest")
            upto = resolved(topic, options.end)
            upto = earlier(newest, upto)
            if options.slots and options.slots[-1] >= len(newest):
                raise InvalidValue(
                    f"slots: {options.slots[-1]}; topic {topic.name!r} has {len(newest)}, numbered "
                    "from 0"
                )
            slots = [
                slot
                for slot in options.slots or newest
                if parse_entry(after.get(slot, OLDEST)) < parse_entry(upto[slot])
            ]
            state = retry_while_away(topic.history.state, RETRY_S)
            oldest_ms = int(state.oldest.timestamp() * 1000) if state and state.oldest else 0
            pieces = -(-(options.tasks or 1) // max(1, len(slots)))
            return [
                HistoryPart((Span(topic.name, stamp_of(topic), {slot: first}, {slot: last}),))
                for slot in slots
                for first, last in divided(after.get(slot, OLDEST), upto[slot], oldest_ms, pieces)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part of the history."""
        return read_part(partition, self._options, self._schema)


def divided(after: str, upto: str, oldest_ms: int, pieces: int) -> Iterator[tuple[str, str]]:
    """Divide a part of the history into smaller parts of equal time.

    The parts lie between two positions. The first entry of the history has the time `oldest_ms`.
    """
    (first, _), (last, _) = parse_entry(after), parse_entry(upto)
    first = max(first, oldest_ms)
    cuts = dict.fromkeys(first + (last - first) * n // pieces for n in range(1, pieces))
    for ms in cuts:
        if parse_entry(after) < (ms, 0) < parse_entry(upto):
            yield after, f"{ms}-0"
            after = f"{ms}-0"
    yield after, upto


# --- streams -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offset:
    """An offset of a stream that reads histories.

    Attributes:
        topics: Position of each topic, by name.
        created: Stamp of each topic, by name.
        begins: In the end of a batch, the positions at which the query began to read new topics. If
            Spark repeats the first batch, it calls initialOffset again, and the result may be a
            later position. In the first offset of a query, the value is the same as `topics`.
        is_first: Whether this is the first offset of a query.
    """

    topics: dict[str, Position]
    created: dict[str, str]
    begins: dict[str, Position]
    is_first: bool = False

    def start(self, topic: str, end: Offset) -> Position:
        """Return the position of a topic at the start of the batch that ends at `end`."""
        if topic in end.begins and (self.is_first or topic not in self.topics):
            return end.begins[topic]
        if self.created.get(topic) != end.created[topic]:
            return {}  # it was created again
        return self.topics[topic]

    def spell(self) -> dict[str, Any]:
        """Return the offset as Spark writes it to the checkpoint."""
        return {
            "v": VERSION, "history": _spelled(self.topics), "created": self.created,
            "begins": _spelled(self.begins), "first": self.is_first,
        }  # fmt: skip


def _spelled(topics: Mapping[str, Position]) -> dict[str, dict[str, str]]:
    return {
        name: {str(slot): at for slot, at in sorted(position.items())}
        for name, position in sorted(topics.items())
    }


def _parsed(texts: Mapping[str, Mapping[str, str]]) -> dict[str, Position]:
    return {name: {int(slot): at for slot, at in slots.items()} for name, slots in texts.items()}


def read_offset(given: Any) -> Offset:
    """Parse an offset from the checkpoint.

    Raises:
        ConfigurationError: The text is not an offset of a stream with consume=false.
    """
    try:
        if given["v"] == VERSION:
            topics, begins = _parsed(given["history"]), _parsed(given["begins"])
            return Offset(topics, dict(given["created"]), begins, given["first"])
    except (TypeError, KeyError, ValueError, AttributeError):
        pass
    raise ConfigurationError(
        f"checkpoint: {str(given)[:100]!r} is not an offset of a stream with consume=false; give "
        f"the query {ANEW}"
    )


class HistoryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the histories of topics as a stream. Spark's offsets have all state of the query."""

    def __init__(self, options: HistoryOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._logged = LoggedOffset()
        self._last: dict[str, Position] | None = None  # with Trigger.AvailableNow: where it ends
        self._newest: Offset | None = None
        # The last batch: its start, its end, its end as text, and its parts with their messages.
        self._batch: tuple[Offset, Offset, dict[str, Any], list[tuple[Span, int]]] | None = None

    # --- on the driver -------------------------------------------------------------------------

    def _spans(self) -> Spans:
        return Spans(client_of_task(self._options.at), self._options)

    def _offset(self, at: str | int | Positions) -> Offset:
        client = client_of_task(self._options.at)
        topics = [client.topic(name) for name in self._options.topics]
        positions = {topic.name: resolved(topic, at) for topic in topics}
        return Offset(positions, {topic.name: stamp_of(topic) for topic in topics}, {})

    def initialOffset(self) -> dict[str, Any]:
        """Return the position that startingOffsets or startingTimestamp describes."""
        start = self._offset(self._options.start)
        return replace(start, begins=start.topics, is_first=True).spell()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the default limit of a batch."""
        return ReadMaxRows(self._options.most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit this run to the messages that were acked until now."""
        self._last = self._offset("latest").topics

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next batch. Spark 4.0 and 4.1 pass no arguments."""
        if start is None:
            start = self._logged.start(self.initialOffset)
        limit = limit or self.getDefaultReadLimit()
        known = read_offset(start)
        self._check_topics(known)
        newest = self._newest = self._offset("latest")
        after = {topic: self._after(known, newest, topic) for topic in newest.topics}
        upto = newest.topics
        if self._last is not None:
            upto = {topic: earlier(upto[topic], self._last[topic]) for topic in upto}
        if not any(is_behind(after[topic], upto[topic]) for topic in upto):
            if self._last is None and not isinstance(limit, ReadAllAvailable):
                time.sleep(self._options.poll_s)  # Spark calls again without a pause
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        spans = [Span(topic, newest.created[topic], after[topic], upto[topic]) for topic in upto]
        ends, parts = self._counted(spans, most)
        begins = {
            topic: after[topic] for topic in ends if known.is_first or topic not in known.topics
        }
        end = Offset(ends, newest.created, begins)
        self._batch = known, end, end.spell(), parts
        return self._batch[2]

    def _check_topics(self, known: Offset) -> None:
        for topic in known.topics:
            if topic not in self._options.topics:
                raise not_subscribed(topic, self._options.at.topic)

    def _after(self, known: Offset, newest: Offset, topic: str) -> Position:
        """Return the position up to which the query has read a topic.

        If the topic has more slots (parts) since then, the query reads the new slots from the
        beginning.

        Raises:
            HistoryLost: The topic was created again, and failOnDataLoss is true.
        """
        if topic not in known.topics:
            return resolved(client_of_task(self._options.at).topic(topic), "earliest")
        position = known.topics[topic]
        if known.created[topic] != newest.created[topic]:
            self._spans().lose(created_again(topic))
            position = {}
        return {slot: position.get(slot, OLDEST) for slot in newest.topics[topic]}

    def _counted(
        self, spans: Sequence[Span], most: int | None
    ) -> tuple[dict[str, Position], list[tuple[Span, int]]]:
        """Choose the end of the next batch. The argument `most` limits the number of messages.

        One ack can settle up to 100 messages. The method must read the entry of the ack to know how
        many. An entry with more than `most` messages is a batch of its own. Each topic gets an
        equal part of the limit. Later topics also get what earlier topics did not use.

        Returns:
            The end of the batch for each topic, and the parts of the batch with their numbers of
            messages.
        """
        reader, parts, total = self._spans(), list[tuple[Span, int]](), 0
        ends = {}
        for number, span in enumerate(spans):
            left = None if most is None else -(-max(0, most - total) // (len(spans) - number))
            position, count = span.after, 0
            while is_behind(position, span.upto) and (left is None or count < left):
                limit = COUNTED if left is None else min(COUNTED, left - count)
                rest = replace(span, after=position)
                messages, end, is_last = next(reader.pages(rest, limit, stored=True))
                if is_last:
                    end = later(position, span.upto)
                for slot, held in sorted(Counter(one.slot for one in messages).items()):
                    one = replace(rest, after={slot: position[slot]}, upto={slot: end[slot]})
                    parts.append((one, held))
                position, count = end, count + len(messages)
                if messages and limit < COUNTED:
                    break  # the next ack does not fit
            ends[span.topic] = position
            total += count
        return ends, parts

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest position. Spark shows it in the progress of the query."""
        return self._newest.spell() if self._newest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[HistoryPart]:
        """Plan the tasks of a batch. An earlier run may have begun this batch."""
        self._logged.note_planned(start, end)
        known, since = read_offset(end), read_offset(start)
        if known.is_first or start == end:
            return []
        after = {topic: since.start(topic, known) for topic in known.topics}
        rows = self._options.rows
        if self._batch is not None and self._batch[1] == known:
            parts = self._batch[3]
        else:
            parts = [
                (Span(topic, known.created[topic], {slot: first}, {slot: last}), 1)
                for topic, position in known.topics.items()
                for slot, last in position.items()
                for first in [after[topic].get(slot, OLDEST)]
                if parse_entry(first) < parse_entry(last)
            ]
            rows = 1
        parts = sorted(parts, key=lambda part: (part[0].topic, *part[0].after))
        total = sum(held for _, held in parts)
        count = planning.wanted(total, self._options.tasks, rows, planning.cores_of_cluster())
        tasks: list[list[Span]] = [[] for _ in range(count)]
        done = 0
        for span, held in parts:
            tasks[done * count // total].append(span)
            done += held
        return [HistoryPart(_joined(task)) for task in tasks if task]

    def commit(self, end: dict[str, Any]) -> None:
        """Record that Spark has logged the batch that begins at `end`.

        Spark 4.0 and 4.1 need this.
        """
        if self._batch is not None and self._batch[0] == read_offset(end):
            self._logged.note(self._batch[2])

    # --- in a task -----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part of a batch. Spark may call this again, because reading changes nothing."""
        return read_part(partition, self._options, self._schema)


def _joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    joined: dict[str, Span] = {}
    for span in spans:
        whole = joined.get(span.topic, span)
        joined[span.topic] = replace(
            whole, after=span.after | whole.after, upto=whole.upto | span.upto
        )
    return tuple(joined.values())
