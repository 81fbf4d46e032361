"""The findings of an audit as plain values: totals, bounded lists, a timeline, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from spark_connector.audit import words

CLEAN: Final = 0
FAULTY: Final = 1
USAGE: Final = 2
UNDECIDED: Final = 3


class Message(NamedTuple):
    """A message that a person may have to look at. Times are epoch ms."""

    topic: str
    message_id: str
    slot: int | None
    producer: str | None
    seq: int | None
    produced_ms: int | None
    delivered_ms: int | None
    deliveries: int
    acks: int


class Gap(NamedTuple):
    """Numbers in a row that the ledger jumps over; `at_ms`: when the one after them was produced.

    Topic and slot are None where a producer counts across them.
    """

    topic: str | None
    producer: str
    slot: int | None
    epoch: str | None
    first: int
    last: int
    missing: int
    at_ms: int


class Minute(NamedTuple):
    """A step of the timeline, from `at_ms` on."""

    at_ms: int
    sent: int
    delivered: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The findings of an audit.

    Attributes:
        horizon_ms: what was produced later was too young to be called lost.
        ledger: rows of the ledger (or of the outbox) that could be read.
        settled: of them, those that are not younger than the horizon.
        deliveries: rows of the delivery log that could be read.
        snapshot: rows of the snapshot; None: the queues were said to be empty.
        unreadable: by input, rows without an id, a topic or a time.
        totals: messages by status.
        redelivered: messages that were handed over more than once and acked once.
        topics: by topic, messages by status.
        gaps: ranges of missing numbers; None: the ledger has no numbers.
        gap_numbers: how many numbers those are.
        listed: by status, the first messages of it.
        gap_list: the first gaps.
        limit: how many a list has at most.
        step_ms: of the timeline.
        timeline: step by step.
        faults: what counts as a fault.
    """

    horizon_ms: int
    ledger: int
    settled: int
    deliveries: int
    snapshot: int | None
    unreadable: Mapping[str, int]
    totals: Mapping[str, int]
    redelivered: int
    topics: Mapping[str, Mapping[str, int]]
    gaps: int | None
    gap_numbers: int
    listed: Mapping[str, Sequence[Message]] = field(default_factory=dict)
    gap_list: Sequence[Gap] = ()
    limit: int = 0
    step_ms: int = 60_000
    timeline: Sequence[Minute] = ()
    faults: Sequence[str] = words.FAULTS_DEFAULT

    def found(self) -> dict[str, int]:
        """How often there is each of what counts as a fault, without those there is none of."""
        counts = {
            **self.totals,
            words.GAPS: self.gaps or 0,
            words.REDELIVERED: self.redelivered,
        }
        return {name: counts.get(name, 0) for name in self.faults if counts.get(name, 0)}

    def doubts(self) -> list[str]:
        """Why there is no verdict, in sentences; empty where there is one."""
        found = []
        if not self.ledger:
            found.append("the ledger is empty")
        elif not self.settled:
            found.append(f"nothing in the ledger is older than the horizon, {utc(self.horizon_ms)}")
        if not self.deliveries:
            found.append("the delivery log is empty")
        found += [
            f"{count} {'row' if count == 1 else 'rows'} of the {name} cannot be read"
            for name, count in self.unreadable.items()
            if count
        ]
        return found

    @property
    def code(self) -> int:
        """The exit code.

        An input that is empty or cut short makes everything look lost, or nothing: undecided. But
        where only some rows cannot be read, what was found stays found.
        """
        if not self.settled or not self.deliveries:
            return UNDECIDED
        if self.found():
            return FAULTY
        return UNDECIDED if self.doubts() else CLEAN

    def verdict(self) -> str:
        """The verdict in a sentence."""
        if self.code == UNDECIDED:
            return "No verdict: " + "; ".join(self.doubts()) + "."
        if self.code == CLEAN:
            return f"Clean: every message up to {utc(self.horizon_ms)} is accounted for."
        found = self.found().items()
        return (
            "Found: " + ", ".join(f"{count:,} {said(name, count)}" for name, count in found) + "."
        )

    def document(self) -> dict[str, Any]:
        """The totals for JSON, without the lists."""
        return {
            "verdict": ("clean", "faulty", "usage", "undecided")[self.code],
            "found": self.found(),
            "doubts": self.doubts(),
            "horizon": utc(self.horizon_ms),
            "ledger": self.ledger,
            "settled": self.settled,
            "deliveries": self.deliveries,
            "snapshot": self.snapshot,
            "unreadable": dict(self.unreadable),
            "totals": {name: self.totals.get(name, 0) for name in words.STATUSES},
            "redelivered": self.redelivered,
            "gaps": self.gaps,
            "gap_numbers": self.gap_numbers,
            "topics": {name: dict(counts) for name, counts in self.topics.items()},
        }


def said(word: str, count: int = 0) -> str:
    """A status as people say it."""
    return "gap" if word == words.GAPS and count == 1 else word.replace("_", " ")


def utc(ms: int) -> str:
    """Epoch ms as a time in UTC, to the second."""
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
