"""The model of a topic whose messages keep results, and of its follow-ups."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.results.entry import OUTCOMES
from tests.property.model import Model, Msg


@dataclass
class Result:
    """How a message has ended, as a sender is told."""

    outcome: str
    at: int
    until: int
    attempts: int = 0
    value: Any = None
    over: bool = False  # the end of keeping has come once, so it may be removed


class OutcomeModel(Model):
    """A topic whose messages may keep their results."""

    keep = 0  # of messages that are sent now, ms
    drops_expired = False
    values: dict[bytes, Any]  # what the next acks give

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.results: dict[bytes, Result] = {}
        self.deaths: Counter[bytes] = Counter()
        self.values = {}

    def send(
        self, id: bytes, slot: int, body: Any, priority: int | None, due: int | None, now: int
    ) -> str:
        status = super().send(id, slot, body, priority, due, now)
        if status == "stored":
            self.msgs[id].keep = self.keep
        return status

    def merge(self, *args: Any) -> tuple[str, bytes | None]:
        status, into = super().merge(*args)
        if into is not None:
            self.msgs[into].keep = self.msgs[into].keep or self.keep
        elif status == "stored":
            self.msgs[args[0]].keep = self.keep
        return status, into

    def note(self, msg: Msg, outcome: str, now: int) -> None:
        if msg.keep:
            made = self.max_retries - msg.left + 1
            value = self.values.get(msg.id) if outcome == "succeeded" else None
            self.results[msg.id] = Result(outcome, now, now + msg.keep, made, value)

    def settle(self, msg: Msg, why: str, now: int) -> None:
        super().settle(msg, why, now)
        outcomes = {"acked": "succeeded", "popped": "handed_over", "cancelled": "cancelled"}
        self.note(msg, outcomes[why], now)

    def bury(self, msg: Msg, now: int) -> None:
        if self.drops_expired and msg.state == "store":
            msg.state, msg.why, msg.failed = "gone", "expired", False
            self.note(msg, "expired", now)
            return
        super().bury(msg, now)
        if msg.state == "dead":
            self.deaths[msg.id] += 1
            self.note(msg, "dead", now)

    def redrive(self, msg: Msg, now: int) -> None:
        super().redrive(msg, now)
        self.results.pop(msg.id, None)

    def purge_waiting(self, now: int) -> int:
        waiting = [msg for msg in self.msgs.values() if msg.state == "store"]
        for msg in waiting:
            self._leave(msg)
            self.purge(msg)
            self.note(msg, "purged", now)
        return len(waiting)


@dataclass
class FollowUp:
    """A follow-up of a delivery."""

    id: MessageId
    topic: str
    body: Any
    options: dict[str, Any]
    keep: int
    source: int = 0  # slot of the delivery
    names_id: bool = True  # else RMQ makes the id
    state: str = "planned"  # then pending, sent, a dead letter, or gone with its topic


@dataclass
class Entries:
    """The pending entries of a slot, and the results that it has."""

    follow_ups: dict[tuple[bytes, bytes], int]  # by target and member: the number
    copies: list[tuple[bytes, int, bytes]]  # target, number, member of the dead letter
    targets: set[bytes]
    results: dict[bytes, tuple[str, int, int]]  # by id: outcome, its time, the end of keeping
    raw: list[Any] = field(default_factory=list)


def entries_of(keys: SlotKeys, replies: list[Any]) -> Entries:
    pending, targets, results, keeping = replies
    follow_ups, copies, ends = {}, [], dict(keeping)
    for text in pending:
        name, index, entry = text.split(b":", 2)
        target, number = name + b":" + index, int(entry[:16])
        if entry[16:17] == b"!":
            copies.append((target, number, entry[18:31]))
        else:
            follow_ups[target, entry[17:30]] = number
    read = {
        bytes(keys.id_of(member)): (
            OUTCOMES[chr(entry[0])], int.from_bytes(entry[1:7], "big"), int(ends.pop(member, 0)),
        )
        for member, entry in results.items()
    }  # fmt: skip
    read |= {bytes(keys.id_of(member)): ("an end without an entry", 0, 0) for member in ends}
    return Entries(follow_ups, copies, set(targets), read, [pending, targets, results, keeping])
