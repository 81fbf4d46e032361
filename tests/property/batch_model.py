"""The model of batches: members of a topic, how they have ended, and the callbacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rmq.kernel.batches.scripts import OUTCOMES
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.keys import SlotKeys
from tests.property.model import Msg
from tests.property.outcome_model import OutcomeModel

OPEN, WAITS, LOST = ".", "!", "l"
LETTERS = {name: letter for letter, name in OUTCOMES.items()}
LOST_AFTER_MS = KEPT_MS = 60_000
FORGOTTEN_IDS = "cepo"  # ends of members whose ids a topic does not remember as settled


@dataclass
class Batch:
    """A batch, as its hash in Redis should be.

    Attributes:
        members: For each member, OPEN, WAITS, or the letter of its end.
        touched: Time of the last change, in ms.
        timeout: Time at which a server closes it, in ms; 0: never.
        was_called: Whether its callback was consumed.
    """

    name: str
    dead: str
    timeout: int = 0
    state: str = "open"
    cancelled: bool = False
    members: dict[bytes, str] = field(default_factory=dict)
    touched: int = 0
    was_called: bool = False

    def open_members(self) -> list[bytes]:
        return [id for id, letter in self.members.items() if letter in OPEN + WAITS]

    def counts(self) -> dict[str, int]:
        """Return the number of members by outcome."""
        ended = Counter(self.members.values())
        return {name: ended[letter] for letter, name in OUTCOMES.items()}


class End(NamedTuple):
    """The end of a member, which its slot has stored for the batch."""

    batch: str
    letter: str


@dataclass
class KeptEnd:
    """An end that is kept for a time after its report, so that the member is not sent again."""

    end: End
    until: int
    over: bool = False  # the time has come once, so it may be removed


class BatchModel(OutcomeModel):
    """A topic whose messages may be members of batches."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.batches: dict[str, Batch] = {}
        self.unreported: dict[bytes, End] = {}
        self.kept: dict[bytes, KeptEnd] = {}
        self.moved: dict[int, tuple[bytes, str]] = {}  # by number of the body: first id, batch

    # --- members end

    def note(self, msg: Msg, outcome: str, now: int) -> None:
        super().note(msg, outcome, now)
        self.ended(msg, outcome)

    def purge(self, msg: Msg) -> None:
        super().purge(msg)
        self.ended(msg, "purged")

    def ended(self, msg: Msg, outcome: str) -> None:
        if msg.batch:
            self.unreported[msg.id] = End(msg.batch, LETTERS[outcome])
            self.kept.pop(msg.id, None)  # of another batch

    def move(self, msg: Msg, now: int) -> None:
        """A dead letter moves to another topic, where it stays a member."""
        msg.state, msg.why, msg.failed = "gone", "moved", False
        self.slots[msg.slot].remember(msg.id, now)
        self.results.pop(msg.id, None)
        if msg.batch:
            self.moved[msg.body["n"]] = msg.id, msg.batch

    def report(self, id: bytes, end: End, now: int) -> None:
        """The batch learns how a member has ended. It counts the first end only."""
        batch = self.batches[end.batch]
        if batch.members.get(id, "-") not in OPEN + WAITS:
            return
        waits = end.letter == LETTERS["dead"] and batch.dead == "wait"
        batch.members[id] = WAITS if waits else end.letter
        batch.touched = now
        self.finish(batch)

    def forget(self, id: bytes, now: int) -> None:
        """The slot forgets an end that was reported, perhaps after a time."""
        end = self.unreported.pop(id)
        if end.letter in FORGOTTEN_IDS:
            self.kept[id] = KeptEnd(end, now + KEPT_MS)
        else:
            self.kept.pop(id, None)

    def finish(self, batch: Batch) -> None:
        if batch.state == "closed" and not batch.open_members():
            batch.state = "done"

    # --- what programs and servers do

    def add(
        self, batch: Batch, ids: list[bytes], by: bytes | None, now: int
    ) -> dict[bytes, str] | None:
        """Make messages members. Return their states before, or None if the batch is closed."""
        before = {id: batch.members.get(id, "n") for id in ids}
        new = [id for id in ids if before[id] == "n"]
        if new:
            by_member = by is not None and batch.members.get(by, "-") in OPEN + WAITS
            if batch.cancelled or not (batch.state == "open" or by_member):
                return None
            batch.members |= dict.fromkeys(new, OPEN)
        if new or OPEN in before.values():
            batch.touched = now
        return before

    def is_member_message(self, id: bytes, name: str) -> bool:
        """Whether a message in the topic, or an end that is not reported, is of this batch."""
        msg, end = self.msgs.get(id), self.unreported.get(id)
        lives = msg is not None and msg.state != "gone" and msg.batch == name
        return lives or (end is not None and end.batch == name)

    def remove(self, batch: Batch, ids: Iterable[bytes], now: int) -> None:
        """Messages with these ids were sent outside of the batch."""
        for id in ids:
            if batch.members.get(id, "-") in OPEN + WAITS:
                del batch.members[id]
                batch.touched = now
        self.finish(batch)

    def close(self, batch: Batch, now: int, cancels: bool = False) -> None:
        if batch.state == "done" or (batch.state == "closed" and (not cancels or batch.cancelled)):
            return
        batch.state, batch.touched = "closed", now
        batch.cancelled = batch.cancelled or cancels
        self.finish(batch)

    def lose(self, batch: Batch, now: int) -> int:
        """End the members that are in no queue. A dead letter may be in another topic."""
        lost = [
            id
            for id in batch.open_members()
            if self.where(id) == "gone"
            and id not in self.unreported
            and (batch.members[id] == OPEN or batch.cancelled)
        ]
        for id in lost:
            self.report(id, End(batch.name, LOST), now)
        return len(lost)


class FoundBatch(NamedTuple):
    """What Redis has of a batch."""

    members: dict[bytes, str]
    fields: dict[str, str]

    @property
    def callback(self) -> bytes:
        """The member of the callback."""
        return self.fields["#callback"].encode("latin-1")[:13]


def batch_of(reply: dict[bytes, bytes]) -> FoundBatch:
    fields = {name.decode(): value.decode("latin-1") for name, value in reply.items()}
    members = {
        bytes(MessageId.parse(name)): value[0] for name, value in fields.items() if name[0] != "#"
    }
    return FoundBatch(members, fields)


class FoundEnds(NamedTuple):
    """The ends of members that a slot has stored, by id: letter and batch.

    Attributes:
        unreported: Ends that no batch knows yet.
        kept: Ends that are kept after their report, and the time until then, in ms.
    """

    unreported: dict[bytes, tuple[str, str]]
    kept: dict[bytes, tuple[str, str, int]]


def ends_of(keys: SlotKeys, results: dict[bytes, bytes], keeping: Any) -> FoundEnds:
    scores, found = dict(keeping), FoundEnds({}, {})
    for name, value in results.items():
        if len(name) != 14:  # `b`, and a member
            continue
        id, letter, batch = bytes(keys.id_of(name[1:])), value[:1].decode(), value[1:].decode()
        until = scores.get(name, 0)
        if until == float("inf"):
            found.unreported[id] = letter, batch
        else:
            found.kept[id] = letter, batch, int(until)
    return found
