"""A replay: read acked messages from the history of a topic, and send them as new messages.

The id of a new message is derived from the job, the acked message and its entry in the history. The
script `redrive_send` records each new message that it stores. Redis keeps this record after the
message is settled. So a process that repeats a batch stores no message twice. When the job has
stored the outcomes of the batch, Redis may forget these records.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from rmq.errors import DecodeError, HistoryLost, InvalidValue
from rmq.features.dead_letters import redrive_to
from rmq.features.dead_letters.flows import Filter
from rmq.features.dead_letters.jobs import job as jobs_core
from rmq.features.dead_letters.jobs.scripts import Batch
from rmq.features.dead_letters.scripts import TOKEN_BYTES, Arrival
from rmq.features.history import flows as history
from rmq.features.history.flows import AckedMessage
from rmq.kernel.core import ids as core_ids, object_store, record as core_record, sequence
from rmq.kernel.core.codec import reference_of
from rmq.kernel.core.groups import GROUP_MARK, group_in
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.object_store import Reference
from rmq.kernel.core.record import Record
from rmq.kernel.core.results import BATCH_MARK, KEEP_MARK
from rmq.kernel.core.score import moment
from rmq.kernel.core.validation import check_epoch_ms
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.filter_terms import conditions as conditions_of
from rmq.kernel.topic.scripts import QueueMember
from rmq.kernel.topic.slot_choice import slot_of
from rmq.kernel.transport.flow.steps import Flow, InThread, server_ms

FROM_MARK = "rmq-replayed-from"  # id of the acked message
# Headers that belong to the acked message: who waits for it, and where it came from.
_OF_MESSAGE = (
    sequence.HEADER, KEEP_MARK, BATCH_MARK, redrive_to.FROM_MARK, redrive_to.ID_MARK,
)  # fmt: skip
# Fields of filters that a message of the history does not have.
_OF_LETTERS = {"error", "reason", "age", "died", "attempts", "fingerprint"}
PAGE = 400  # messages of a read
SEND = 100  # messages of a send
EXAMINED_MAX = 5000  # messages that are examined between two reads of the job


def check_conditions(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Check the conditions of a replay and convert them to JSON values.

    Raises:
        InvalidValue, InvalidType: A condition is not valid.
    """
    given = dict(conditions)
    if unknown := set(given) - {"since", "until", "type", "filter"}:
        raise InvalidValue(f"{min(unknown)}: not for a replay; give since, until, type or filter")
    for name in {"since", "until"} & set(given):
        at_ms = check_epoch_ms(given[name], name, allow_past=True)
        given[name] = moment(at_ms).isoformat(timespec="milliseconds")
    wanted = Filter(type=given.get("type"), filter=given.get("filter")).filter
    if wanted is not None:
        named = {each.where.name for each in conditions_of(wanted.term)} & _OF_LETTERS
        if named:
            raise InvalidValue(f"filter: {min(named)} needs dead letters; a replay has none")
        given["filter"] = wanted.text
    return given


def bounds(context: TopicContext, conditions: Mapping[str, Any]) -> Flow[list[str]]:
    """Return the part of each slot's history that a replay reads, as `<after>/<last>`.

    Raises:
        ConfigurationError: The topic keeps no history.
    """
    since = conditions.get("since")
    after = yield from history.position(
        context, "oldest" if since is None else jobs_core.time_of(since), None
    )
    last = yield from history.position(context, "newest", after)
    return [f"{after[slot]}/{last[slot]}" for slot in sorted(after)]


class _Cursor(NamedTuple):
    """The position of a replay: an entry of the history, and how many of its messages are examined.

    Attributes:
        lost_ms: Time of the last ack that the job could not read, or 0.
        slot: Index of the slot.
        after: Last entry of the slot whose messages were all examined. Empty at the start.
        skip: Number of messages of the next entry that were already examined.
        entries: History entry of each message in the recorded batch.
    """

    lost_ms: int = 0
    slot: int = 0
    after: str = ""
    skip: int = 0
    entries: tuple[str, ...] = ()

    def pack(self) -> str:
        runs = [f"{entry}*{len(list(same))}" for entry, same in groupby(self.entries)]
        return " ".join([str(self.lost_ms), str(self.slot), self.after, str(self.skip), *runs])

    @classmethod
    def unpack(cls, text: str) -> _Cursor:
        if not text:
            return cls()
        lost_ms, slot, after, skip, *runs = text.split(" ")
        entries = [
            entry for run in runs for entry, _, n in [run.partition("*")] for _ in range(int(n))
        ]
        return cls(int(lost_ms), int(slot), after, int(skip), tuple(entries))


def entries_in(cursor: str) -> tuple[str, ...]:
    """Return the history entries of the messages in a recorded batch. They are in the cursor."""
    return _Cursor.unpack(cursor).entries


class ReplaySearch:
    """Finds the messages of a replay, starting at a cursor.

    Args:
        context: Topic of the history.
        conditions: Conditions that the messages must meet.
        between: For each slot, the first and the last entry of its history to read.
        cursor: Position at which the search starts.
        examined: Number of messages that were examined before this search.
    """

    def __init__(
        self,
        context: TopicContext,
        conditions: Mapping[str, Any],
        between: Sequence[str],
        cursor: str,
        examined: int,
    ) -> None:
        self._context = context
        self._wanted = Filter(type=conditions.get("type"), filter=conditions.get("filter"))
        until = conditions.get("until")
        self._until = None if until is None else jobs_core.time_of(until)
        self._between = [each.split("/") for each in between]
        self._cursor, self.examined = _Cursor.unpack(cursor), examined
        self._page: deque[AckedMessage] = deque()

    def next(self, most: int) -> Flow[Batch]:
        """Return the next batch. The batch may be empty after a long search."""
        found: list[AckedMessage] = []
        until = self.examined + EXAMINED_MAX
        while self._cursor.slot < len(self._between):
            if len(found) >= most or self.examined >= until:
                break
            if not self._page and not (yield from self._read()):
                if found:
                    break  # a batch belongs to a single slot
                self._cursor = _Cursor(self._cursor.lost_ms, self._cursor.slot + 1)
                continue
            message = self._page.popleft()
            self.examined += 1
            if self._page and self._page[0].entry == message.entry:
                self._cursor = self._cursor._replace(skip=self._cursor.skip + 1)
            else:
                self._cursor = self._cursor._replace(after=message.entry, skip=0)
            if self._wanted.fits(_member_of(message), 0):
                found.append(message)
        slot = found[0].slot if found else 0
        cursor = self._cursor._replace(entries=tuple(message.entry for message in found))
        is_last = self._cursor.slot >= len(self._between)
        ids: list[bytes] = [message.id for message in found]
        return Batch(slot, ids, cursor.pack(), self.examined, is_last)

    def _read(self) -> Flow[bool]:
        cursor = self._cursor
        begin, last = self._between[cursor.slot]
        wanted = self._wanted.filter
        stored = wanted is None or not wanted.needs_body
        while True:
            after = {cursor.slot: self._cursor.after or begin}
            try:
                page = yield from history.read(
                    self._context, None, self._until, after, {cursor.slot: last}, [cursor.slot],
                    PAGE, stored,
                )  # fmt: skip
            except HistoryLost as error:
                self._lose(error.removed_to, last)
            else:
                self._page.extend(page.messages[self._cursor.skip :])
                return bool(self._page)

    def _lose(self, removed_to: str, last: str) -> None:
        """Continue after messages that the history removed before the search read them."""
        ends_ms = [history.parse_entry(entry)[0] for entry in (removed_to, last)]
        if self._until is not None:
            ends_ms.append(check_epoch_ms(self._until, "until", allow_past=True) - 1)
        lost_ms = max(self._cursor.lost_ms, min(ends_ms))
        self._cursor = _Cursor(lost_ms, self._cursor.slot, removed_to)


def _member_of(message: AckedMessage) -> QueueMember:
    return QueueMember("history", message.id, 0.0, message.record, b"", 0)


def matches(context: TopicContext, conditions: Mapping[str, Any], most: int) -> Flow[int]:
    """Count the messages that a replay would send again now."""
    between = yield from bounds(context, conditions)
    search, count = ReplaySearch(context, conditions, between, "", 0), 0
    while True:
        batch = yield from search.next(most)
        count += len(batch.ids)
        if batch.is_last:
            return count


class Replay:
    """Stores acked messages again, as new messages of the same topic or of another topic.

    Args:
        source: Topic of the history.
        target: Topic of the new messages. The topic must be open.
        job: Id of the job.

    Attributes:
        topic: Name of the topic of the new messages.
    """

    def __init__(self, source: TopicContext, target: TopicContext, job: str) -> None:
        self._source, self._target, self._job = source, target, job
        code = b"replay-" + jobs_core.code_of(job).encode()
        self._token = hashlib.blake2b(code, digest_size=TOKEN_BYTES).digest()
        self.topic = target.name
        # By key and time: members and tokens of messages that were stored.
        self._stored: dict[tuple[bytes, int], list[bytes]] = defaultdict(list)

    def send(self, keys: SlotKeys, ids: Sequence[bytes], entries: Sequence[str]) -> Flow[str]:
        """Store up to SEND messages. Return one character of `LETTERS` for each message.

        `jobs/job.py` defines `LETTERS`.
        """
        yield from opening.ensure_open(self._target, create=False)
        records = yield from history.records(self._source, keys.index, set(entries))
        letters = ["0"] * len(ids)
        messages: list[tuple[int, Record]] = []
        for place, (id, entry) in enumerate(zip(ids, entries, strict=True)):
            data = records.get((entry, id))
            if data is None:
                continue
            try:
                fields = core_record.read(data)
                core_record.check_body(fields.flags)
                messages.append((place, fields))
            except DecodeError:
                letters[place] = "x"
        now_ms = yield from server_ms("replay")
        copies = yield from self._copy_objects(messages, now_ms)
        by_slot: dict[int, list[tuple[int, Arrival]]] = defaultdict(list)
        for place, fields in messages:
            copied = copies.get(place)
            slot = self._slot_of(keys.index, fields)
            new = self._new_member(ids[place], entries[place]) + self._token
            by_slot[slot].append((place, self._arrival(new, ids[place], fields, copied, now_ms)))
        for slot, group in by_slot.items():
            arrivals = [arrival for _, arrival in group]
            answer = yield from redrive_to.send(self._target, slot, arrivals, notes_refusals=False)
            key = redrive_to.keys_of(self._target, slot).arrivals
            for (place, arrival), letter in zip(group, answer.codes, strict=True):
                letters[place] = "1" if letter == "s" else letter
                if letter == "s":
                    self._stored[key, answer.now_ms].append(arrival.entry)
        unused = [
            copied for place, copied in copies.items()
            if isinstance(copied, Reference) and letters[place] not in "1n"
        ]  # fmt: skip
        if unused:
            yield InThread(partial(object_store.remove_all, unused))
        yield from self._find_earlier(ids, entries, letters)
        return "".join(letters)

    def forget(self) -> Flow[None]:
        """Let Redis forget the records of stored messages, because the job has their outcomes."""
        stored, self._stored = self._stored, defaultdict(list)
        for (key, now_ms), members in stored.items():
            yield from redrive_to.forget_arrivals("replay", key, now_ms, members)

    def _find_earlier(
        self, ids: Sequence[bytes], entries: Sequence[str], letters: list[str]
    ) -> Flow[None]:
        """Count a message as sent if an earlier run stored it and the history no longer has it."""
        gone = [place for place, letter in enumerate(letters) if letter == "0"]
        names = [self._new_member(ids[place], entries[place]) + self._token for place in gone]
        for index in (yield from redrive_to.find_arrivals("replay", self._target.slots, names)):
            letters[gone[index]] = "1"

    def _new_member(self, id: bytes, entry: str) -> bytes:
        text = b"%b %b %b" % (self._job.encode(), id, entry.encode())
        return core_ids.derive_member(text, b"rmq-replay")

    def _slot_of(self, slot: int, fields: Record) -> int:
        group, slots = group_in(fields.headers.get(GROUP_MARK)), self._target.settings.slots
        return slot % slots if group is None else slot_of(group, slots)

    def _copy_objects(
        self, messages: Sequence[tuple[int, Record]], now_ms: int
    ) -> Flow[dict[int, Reference | None]]:
        """Copy offloaded bodies. Return their new references by index.

        A missing object has None instead of a reference.
        """
        packed = {place: reference_of(fields.codec, fields.body) for place, fields in messages}
        found = {place: Reference.read(each) for place, each in packed.items() if each is not None}
        if not found:
            return {}
        topic, stamp = self._target.name, self._target.identity
        copied = yield InThread(
            partial(object_store.copy_all, list(found.values()), topic, stamp, now_ms)
        )
        return dict(zip(found, copied, strict=True))

    def _arrival(
        self, entry: bytes, id: bytes, fields: Record, copied: Reference | None, now_ms: int
    ) -> Arrival:
        if copied is not None:
            fields = fields._replace(body=object_store.FIRST + copied.packed)
        elif reference_of(fields.codec, fields.body) is not None:
            return Arrival(entry, b"x", b"")
        if len(fields.body) > self._target.settings.max_body:
            return Arrival(entry, b"t", b"")
        headers = {k: text for k, text in fields.headers.items() if k not in _OF_MESSAGE}
        headers[FROM_MARK] = str(MessageId(id))
        try:
            expires_ms = max(0, fields.expires_ms - now_ms)
            return Arrival(entry, *core_record.moved(fields, headers, expires_ms))
        except DecodeError:
            return Arrival(entry, b"x", b"")
