"""The findings of an audit: totals, lists of messages, a timeline, and the verdict."""

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
    """A message in a list of the findings. Times are epoch ms."""

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
    """A range of a producer's sequence numbers that are missing in the ledger of sent messages.

    `at_ms` is the time of the next message after the range, in epoch ms. If a producer numbers its
    messages across all topics, `topic` is None. If it numbers its messages across all slots, `slot`
    is None.
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
    """A step of the timeline. It starts at `at_ms`, and lasts a minute or longer."""

    at_ms: int
    sent: int
    delivered: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The findings of an audit.

    Attributes:
        horizon_ms: The audit does not report messages as lost if they were sent after this time.
        ledger: Number of readable rows of the ledger (or of the outbox).
        settled: Number of readable rows of the ledger that are not later than `horizon_ms`.
        deliveries: Number of readable rows of the delivery log.
        snapshot: Number of readable rows of the snapshot, or None if the audit had no snapshot.
        unreadable: Number of rows without an id, a topic or a time, for each input.
        totals: Number of messages with each status.
        redelivered: Number of messages that were delivered more than once and acked once.
        topics: Number of messages with each status, for each topic.
        gaps: Number of gaps, or None if the ledger has no sequence numbers.
        gap_numbers: Number of missing sequence numbers in all gaps.
        listed: Oldest messages with each status.
        gap_list: Widest gaps.
        limit: Maximum number of entries in a list.
        step_ms: Length of a step of the timeline.
        timeline: Steps of the timeline.
        faults: Names of the statuses and other findings that count as faults.
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
        """Return each fault that the audit found, with the number of its messages."""
        counts = {
            **self.totals,
            words.GAPS: self.gaps or 0,
            words.REDELIVERED: self.redelivered,
        }
        return {name: counts.get(name, 0) for name in self.faults if counts.get(name, 0)}

    def doubts(self) -> list[str]:
        """Return the reasons why the audit has no verdict.

        The list is empty if there is a verdict.
        """
        reasons = []
        if not self.ledger:
            reasons.append("the ledger is empty")
        elif not self.settled:
            reasons.append(
                f"nothing in the ledger is older than the horizon, {utc(self.horizon_ms)}"
            )
        if not self.deliveries:
            reasons.append("the delivery log is empty")
        reasons += [
            f"{count} {'row' if count == 1 else 'rows'} of the {name} cannot be read"
            for name, count in self.unreadable.items()
            if count
        ]
        return reasons

    @property
    def code(self) -> int:
        """Exit code of the command.

        If the ledger or the delivery log is empty, the audit has no verdict, because no message or
        every message looks lost. If some rows are unreadable, the audit can still find faults in
        the other rows. But if it finds no fault there, it has no verdict.
        """
        if not self.settled or not self.deliveries:
            return UNDECIDED
        if self.found():
            return FAULTY
        return UNDECIDED if self.doubts() else CLEAN

    def verdict(self) -> str:
        """Return the verdict as a sentence."""
        if self.code == UNDECIDED:
            return "No verdict: " + "; ".join(self.doubts()) + "."
        if self.code == CLEAN:
            return f"Clean: every message up to {utc(self.horizon_ms)} is accounted for."
        counts = [f"{count:,} {spoken(name, count)}" for name, count in self.found().items()]
        return f"Found: {', '.join(counts)}."

    def document(self) -> dict[str, Any]:
        """Return the totals for a JSON document, without the lists of messages."""
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


def spoken(word: str, count: int = 0) -> str:
    """Return the name of a status for the report."""
    return "gap" if word == words.GAPS and count == 1 else word.replace("_", " ")


def utc(ms: int) -> str:
    """Return a time in epoch ms as text in UTC, without fractions of a second."""
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
