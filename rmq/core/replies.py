"""What scripts answer, as typed values; `rmq.commands` reads replies into them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Sent(NamedTuple):
    """The reply to send: `offset` of the last one stored, and a letter for each message."""

    offset: int
    letters: str  # '' : all stored; 'F': refused as full


class Merged(NamedTuple):
    """The reply to merge."""

    offset: int
    letter: str  # s stored, m merged, d duplicate, F full
    into: bytes


LAPSED, UNHELD = 1, 2  # leases have run out; those of queries have


class Batch(NamedTuple):
    """The reply to prepare."""

    wait_us: int
    lapsed: int  # LAPSED and UNHELD, added up
    deadline_s: int
    first_delivery: int
    newest: int
    lefts: bytes
    ids: list[bytes]
    records: list[bytes]


class RolledBack(NamedTuple):
    """The reply to rollback."""

    retried: int
    dead: int
    more: bool


class Extended(NamedTuple):
    """The reply to extend: the new deadline and, for each, whether it was extended."""

    deadline_s: int
    letters: str


class Found(NamedTuple):
    """One member of a queue, as get and peek see it."""

    place: str
    id: bytes
    score: float
    record: bytes
    failure: bytes
    newest: int


class Where(NamedTuple):
    """The reply to where: what the slot holds, and a letter for each message asked for."""

    newest: int  # acceptance number
    waiting: int
    in_flight: int
    letters: str  # s waiting, p in flight, d dead, g gone


class Opened(NamedTuple):
    """The reply to topic."""

    state: int  # 1 created, 0 was there, -1 is missing
    kept: dict[str, str]


class OpenPage(NamedTuple):
    """The reply to audit: the slot's account, and a page of what is not accounted for."""

    now_ms: int
    numbered: int
    seen: int
    accounted: int
    members: list[bytes]


class Census(NamedTuple):
    """The reply to census: where to go on (b"0" at the end), records looked at, who lives."""

    cursor: bytes
    looked: int
    living: list[bytes]


_CLAIMED = {"f": "first", "d": "done", "b": "busy"}


def claimed(reply: list[Any]) -> list[tuple[str, int, int]]:
    """The reply to claim: for each its state, and of a busy one its age and what it has left."""
    times = list(zip(reply[1::2], reply[2::2], strict=True))[::-1]
    return [
        (_CLAIMED[letter], *(times.pop() if letter == "b" else (0, 0)))
        for letter in reply[0].decode()
    ]


STATS = (
    "retries", "priority", "due", "later", "in_flight", "dead", "records", "merge_windows",
    "remembered", "late_ms", "accepted", "merged", "delivered", "settled", "returned",
    "rolled_back", "buried", "redriven", "cancelled", "expired", "dropped", "purged",
    "dead_dropped", "now_ms",
)  # fmt: skip
