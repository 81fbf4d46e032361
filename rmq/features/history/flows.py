"""Read acked messages from the history of a topic, and find positions in the history.

`lua/lib/history/history.lua` describes how a slot keeps acked messages. Plain commands read the
acked messages, so a reader does not slow down workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from random import randrange
from typing import Any, Literal, NamedTuple

from rmq.errors import ConfigurationError, HistoryLost, InvalidValue, TopicVanished
from rmq.kernel.core import object_store, record
from rmq.kernel.core.body_limits import CALL_BYTES
from rmq.kernel.core.codec import Offloaded, reference_of
from rmq.kernel.core.groups import GROUP_MARK, group_in
from rmq.kernel.core.ids import MEMBER_SIZE, MessageId
from rmq.kernel.core.keys import SLOTS_MAX
from rmq.kernel.core.object_store import Reference
from rmq.kernel.core.record import Record
from rmq.kernel.core.score import moment
from rmq.kernel.core.validation import Moment, check_epoch_ms, check_int
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.reading import body_of
from rmq.kernel.transport.flow.steps import Command, Flow, InThread, pipeline
from rmq.kernel.transport.lua import script_loader

READ_MAX = 10_000  # messages of one call
FIRST_READ = 50  # entries of a slot in the first command, before their size is known
ENTRY_MAX = 100  # messages of an entry
PAGE_BYTES = 16 * 1024 * 1024  # a page ends after about as many bytes
LAST_SEQ = 2**64 - 1
SLOTS_AT_ONCE = 64

# The last entry that was read in each slot: `<ms of the ack>-<number>` by the slot's index.
Position = dict[int, str]
Entry = tuple[int, int]  # an entry of a slot: time of the ack, epoch ms, and its number in that ms
START: Entry = (0, 0)


@dataclass(frozen=True)
class AckedMessage:
    """A message in the history of a topic. Body and headers are decoded when you first read them.

    Attributes:
        id: Message id.
        slot: Index of the message's slot.
        entry: Position of the message in the history of the slot.
        record: The message as Redis stores it.
    """

    id: MessageId
    slot: int
    entry: str
    record: bytes = field(repr=False)

    @cached_property
    def _fields(self) -> Record:
        return record.read(self.record)

    @property
    def acked_at(self) -> datetime:
        """Time of the ack, by the clock of Redis."""
        return moment(parse_entry(self.entry)[0])

    @cached_property
    def body(self) -> Any:
        """The decoded body, or a list of bodies if the message is a merge of several messages.

        Raises:
            DecodeError: The body cannot be decoded, or its object cannot be read from the store.
        """
        return body_of(self._fields)

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """The message's headers."""
        return record.shown_headers(self._fields.headers)

    @property
    def type(self) -> str | None:
        """Message type, or None."""
        return self._fields.headers.get(record.TYPE_MARK)

    @property
    def group(self) -> str | None:
        """Name of the group, or None."""
        return group_in(self._fields.headers.get(GROUP_MARK))

    @property
    def priority(self) -> int | None:
        """Priority. None for a message with a due time and no priority."""
        return self._fields.priority or None


class HistoryPage(NamedTuple):
    """A page of the history of a topic.

    Attributes:
        messages: The messages. The messages of each slot are in the order of their acks.
        position: Position after this page. Pass it as `after` to the next call.
        is_last: Whether the history has no further message in the requested range now.
    """

    messages: list[AckedMessage]
    position: Position
    is_last: bool


class HistoryState(NamedTuple):
    """The size of a topic's history.

    Attributes:
        entries: Number of acks. One ack of a batch contains up to 100 messages.
        bytes: Approximate memory that the history uses in Redis.
        oldest: Time of the oldest ack in the history, or None if the history is empty.
    """

    entries: int
    bytes: int
    oldest: datetime | None


class _SlotState(NamedTuple):
    created: bytes | None
    newest: Entry
    size: int
    gone: Entry  # newest entry that was removed


def parse_entry(text: object, name: str = "position") -> Entry:
    """Convert the name of an ack in the history of a topic to two numbers.

    The name is "<ms of the ack>-<number>". A later ack of the same slot (part of the topic) has
    larger numbers. If the text is wrong, the error calls it `name`.

    Raises:
        InvalidValue: The text is not the name of an ack.
    """
    ms, dash, seq = text.partition("-") if isinstance(text, str) else ("", "", "")
    if dash and ms.isdecimal() and seq.isdecimal() and len(text) < 42:  # type: ignore[arg-type]
        entry = int(ms), int(seq)
        if max(entry) <= LAST_SEQ:
            return entry
    raise InvalidValue(f"{name}: {text!r:.60}; give the position of a page unchanged")


def _text(entry: Entry) -> str:
    return f"{entry[0]}-{entry[1]}"


def _state_command(context: TopicContext, index: int) -> Command[_SlotState]:
    def parse(reply: list[bytes | None]) -> _SlotState:
        newest, size, _ = (reply[1] or b"0-0 0 0").decode().split()
        gone = (reply[2] or b"0-0").decode()
        return _SlotState(reply[0], parse_entry(newest), int(size), parse_entry(gone))

    keys = context.slots[index]
    fields = [b"created", b"acked", b"acked_gone"]
    return Command(script_loader.plain("HMGET"), (keys.slot,), fields, parse)


def _entries_command(
    context: TopicContext, index: int, after: Entry, upto: str, count: int
) -> Command[list[list[AckedMessage]]]:
    keys = context.slots[index]

    def parse(reply: Any) -> list[list[AckedMessage]]:
        return [
            [
                AckedMessage(keys.id_of(member), index, entry.decode(), stored)
                for member, stored in _unpacked(fields[1])
            ]
            for entry, fields in reply
        ]

    args = [f"({_text(after)}", upto, b"COUNT", count]
    return Command(script_loader.plain("XRANGE"), (keys.acked,), args, parse)


def records(
    context: TopicContext, index: int, entries: Iterable[str]
) -> Flow[dict[tuple[str, bytes], bytes]]:
    """Read entries of a slot. Return the records of their messages, without removed entries."""
    commands = []
    for entry in entries:
        ms, seq = parse_entry(entry)
        before = (ms, seq - 1) if seq else (ms - 1, LAST_SEQ)
        commands.append(_entries_command(context, index, before, entry, 1))
    replies = yield from pipeline(commands)
    return {
        (message.entry, message.id): message.record
        for found in replies
        for messages in found
        for message in messages
    }


def _unpacked(packed: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(packed):
        begin = at + MEMBER_SIZE + 4
        end = begin + int.from_bytes(packed[begin - 4 : begin])
        yield packed[at : begin - 4], packed[begin:end]
        at = end


def _states(context: TopicContext, indexes: Sequence[int]) -> Flow[dict[int, _SlotState]]:
    states: list[_SlotState] = []
    for at in range(0, len(indexes), SLOTS_AT_ONCE):
        page = indexes[at : at + SLOTS_AT_ONCE]
        states += yield from pipeline([_state_command(context, index) for index in page])
    return dict(zip(indexes, states, strict=True))


def _open(context: TopicContext, slots: Iterable[int] | None = None) -> Flow[dict[int, _SlotState]]:
    # Read the settings only if they are unknown or old, or if they do not fit to the slots.
    given = dict.fromkeys(() if slots is None else slots)
    indexes: Sequence[int] = [check_int(slot, "slot", 0, SLOTS_MAX - 1) for slot in given]
    for is_last in (False, True):
        try:
            yield from opening.ensure_open(context, create=False)
        except TopicVanished:  # a reader continues in a topic that was created again
            context.forget()
            yield from opening.ensure_open(context, create=False)
        if indexes and not (yield from opening.has_slot(context, max(indexes))):
            count = len(context.slots)
            raise InvalidValue(f"slot: {max(indexes)}; topic {context.name!r} has {count} slots")
        every = range(len(context.slots))
        states = yield from _states(context, every if slots is None else indexes)
        has_history = context.settings.history or any(each.newest[0] for each in states.values())
        if has_history and all(each.created == context.created for each in states.values()):
            return states
        if not is_last:
            context.keep_settings(0)  # another program has resized, changed or deleted the topic
    if any(each.created is None for each in states.values()):
        raise TopicVanished(f"topic {context.name!r} was deleted meanwhile; nothing was read")
    if not has_history:
        raise ConfigurationError(
            f"topic {context.name!r} keeps no history; turn it on: rmq topic set {context.name} "
            "--history keep=7d,max_bytes=1GiB"
        )
    return states


def _before(value: Moment, name: str) -> Entry:
    """Return the name of the last possible history entry before this time."""
    return check_epoch_ms(value, name, allow_past=True) - 1, LAST_SEQ


def read(
    context: TopicContext,
    since: Moment | None,
    until: Moment | None,
    after: Mapping[int, str] | None,
    upto: Mapping[int, str] | None,
    slots: Iterable[int] | None,
    limit: int,
    stored: bool,
) -> Flow[HistoryPage]:
    """Read a page of the history after a position.

    `AsyncTopicHistory.read` describes the arguments.
    """
    check_int(limit, "limit", 1, READ_MAX)
    given = {slot: parse_entry(text, "after") for slot, text in (after or {}).items()}
    ends = {slot: parse_entry(text, "upto") for slot, text in (upto or {}).items()}
    first = START if since is None else _before(since, "since")
    last = (2**63, 0) if until is None else _before(until, "until")
    states = yield from _open(context, slots)
    position: dict[int, Entry] = {}
    strict = set()  # slots of which no entry may be missing
    for index, state in states.items():
        if index in given or (after and since is None):  # other slots are newer than the position
            strict.add(index)
            position[index] = given.get(index, START)
        else:
            position[index] = max(first, state.gone)
        _check_kept(context, index, position[index], state)
    active = [index for index in states if position[index] < ends.get(index, last)]
    turn = randrange(len(active)) if active else 0  # so that no slot is always the last
    active = active[turn:] + active[:turn]
    messages: list[AckedMessage] = []
    sizes = _EntrySizes()
    while active and len(messages) < limit and sizes.bytes < PAGE_BYTES:
        page = active[: min(SLOTS_AT_ONCE, limit - len(messages))]
        count = sizes.count(max(1, (limit - len(messages)) // len(page)))
        commands: list[Command[Any]] = []
        for index in page:
            end = _text(min(last, ends.get(index, last)))
            commands += [
                _entries_command(context, index, position[index], end, count),
                _state_command(context, index),
            ]
        replies = yield from pipeline(commands)
        ended = set()
        for index, entries, state in zip(page, replies[::2], replies[1::2], strict=True):
            if index in strict or position[index] > first:
                _check_kept(context, index, position[index], state)
            for entry in entries:
                if messages and len(messages) + len(entry) > limit:
                    break
                messages += entry
                position[index] = parse_entry(entry[0].entry)
            else:
                if len(entries) < count:
                    ended.add(index)
            sizes.learn(entries)
        if messages and len(messages) + sizes.messages_each > limit:
            active = active[len(page) :] + page
            break
        active = [index for index in active[len(page) :] + page if index not in ended]
    messages.sort(key=lambda message: parse_entry(message.entry))
    if not stored:
        messages = yield from _with_objects(messages)
    ended_at = {index: _text(entry) for index, entry in position.items()}
    return HistoryPage(messages, ended_at, not active)


class _EntrySizes:
    """Chooses how many history entries the next command reads.

    An entry has the messages of an ack.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._messages, self._entries, self._most = 0, 0, FIRST_READ

    @property
    def messages_each(self) -> int:
        """Average number of messages of a history entry, rounded up."""
        return -(-self._messages // self._entries) if self._entries else ENTRY_MAX

    def count(self, messages: int) -> int:
        """Return how many history entries contain approximately this number of messages."""
        return max(1, min(self._most, messages // self.messages_each))

    def learn(self, entries: list[list[AckedMessage]]) -> None:
        self._entries += len(entries)
        self._messages += sum(map(len, entries))
        self.bytes += sum(len(message.record) for entry in entries for message in entry)
        self._most = max(1, CALL_BYTES * self._entries // (self.bytes + 1))


def _check_kept(context: TopicContext, index: int, read_to: Entry, state: _SlotState) -> None:
    if state.gone > read_to:
        raise HistoryLost(
            f"topic {context.name!r}, slot {index}: acked messages behind position "
            f"{_text(read_to)} were removed, up to {_text(state.gone)}; the history reached its "
            "limit before they were read. Continue at `removed_to` of this error (over HTTP: "
            f"skip_lost=true), or raise the limits: rmq topic set {context.name} "
            "--history keep=...,max_bytes=...",
            slot=index,
            position=_text(read_to),
            removed_to=_text(state.gone),
        )


def _with_objects(messages: list[AckedMessage]) -> Flow[list[AckedMessage]]:
    """Read offloaded bodies from the object store, if this process has access to the store."""
    found = []
    for at, message in enumerate(messages):
        if reference_of(message.record[0] >> 5, b"C") is not None:
            fields = record.read(message.record)
            packed = reference_of(fields.codec, fields.body)
            if packed is not None:
                found.append((at, len(fields.body), Reference.read(packed)))
    if found:
        references = [reference for _, _, reference in found]
        objects = yield InThread(partial(object_store.read_all, references, Offloaded.limit))
        for (at, body_size, _), data in zip(found, objects, strict=True):
            if isinstance(data, bytes):
                head = messages[at].record[:-body_size]
                messages[at] = replace(messages[at], record=head + data)
    return messages


def position(
    context: TopicContext, at: Literal["oldest", "newest"] | Moment, slots: Iterable[int] | None
) -> Flow[Position]:
    """Return a position in each slot: before the oldest message, after the newest, or at a time."""
    moment_given = None if at in ("oldest", "newest") else _before(at, "at")  # type: ignore[arg-type]
    states = yield from _open(context, slots)
    found = {}
    for index, state in states.items():
        if at == "newest":
            entry = max(state.newest, state.gone)
        else:
            entry = max(state.gone, moment_given or START)
        found[index] = _text(entry)
    return found


def state(context: TopicContext) -> Flow[HistoryState | None]:
    """Return the size of a topic's history, or None if the topic keeps no history."""
    try:
        states = yield from _open(context)
    except ConfigurationError:
        return None
    lengths: list[int] = []
    oldest: list[list[AckedMessage]] = []
    indexes = list(states)
    for at in range(0, len(indexes), SLOTS_AT_ONCE):
        page = indexes[at : at + SLOTS_AT_ONCE]
        commands: list[Command[Any]] = [
            Command(script_loader.plain("XLEN"), (context.slots[index].acked,), [], int)
            for index in page
        ]
        commands += [_entries_command(context, index, START, "+", 1) for index in page]
        replies = yield from pipeline(commands)
        lengths += replies[: len(page)]
        oldest += [entry for entries in replies[len(page) :] for entry in entries]
    first = min((parse_entry(entry[0].entry)[0] for entry in oldest), default=None)
    size = sum(each.size for each in states.values())
    return HistoryState(sum(lengths), size, None if first is None else moment(first))
