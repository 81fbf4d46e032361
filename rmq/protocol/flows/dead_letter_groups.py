"""Count the dead letters of a topic by their fingerprint. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from rmq.core import failure
from rmq.core.dead_letter_filter import DeadLetterFilter
from rmq.core.failure import Failure
from rmq.core.fingerprint import fingerprint
from rmq.core.ids import MessageId
from rmq.core.message import moment
from rmq.core.topic_context import TopicContext
from rmq.protocol.flows import inspect, open_topic
from rmq.protocol.flows.dead_letter_pages import Position, Reader, fitting
from rmq.protocol.steps import Flow, Progress

GROUPS_MAX = 1000


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters of one cause.

    Attributes:
        fingerprint: 12 hex digits; '' for dead letters of which no failure is known.
        count: how many.
        first: when the first of them died.
        last: when the last of them died.
        example: the id of the last of them.
        reason: why it died, as `Failure.reason`.
        error: of the example.
    """

    fingerprint: str
    count: int
    first: datetime
    last: datetime
    example: MessageId
    reason: str
    error: str


class DeadLetterGroups(NamedTuple):
    """The dead letters of a topic by cause.

    Attributes:
        groups: the largest first; at most 1000.
        other: dead letters of further groups.
        total: all dead letters that were counted.
    """

    groups: list[DeadLetterGroup]
    other: int
    total: int


@dataclass(slots=True)
class _Tally:
    count: int
    first_ms: int
    last_ms: int
    example: bytes
    failure: Failure | None

    def add(self, id: bytes, died_ms: int, last_failure: Failure | None) -> None:
        self.count += 1
        self.first_ms = min(self.first_ms, died_ms)
        if died_ms >= self.last_ms:
            self.last_ms, self.example, self.failure = died_ms, id, last_failure


def groups(
    context: TopicContext, wanted: DeadLetterFilter | None, progress: Progress | None
) -> Flow[DeadLetterGroups]:
    """Count the dead letters that fit by their fingerprint, in pages."""
    yield from open_topic.ensure_open(context, create=False)
    held = inspect.total((yield from inspect.counts(context)))
    tallies: dict[str, _Tally] = {}
    reader = Reader(context, Position())
    other = total = looked_at = 0
    while read := (yield from reader.read()):
        looked_at += len(read)
        for member in (yield from fitting(context, wanted, read, held["now_ms"])):
            total += 1
            last_failure = failure.decode(member.failure)
            key, died_ms = fingerprint(last_failure), int(member.score)
            tally = tallies.get(key)
            if tally is not None:
                tally.add(member.id, died_ms, last_failure)
            elif len(tallies) < GROUPS_MAX:
                tallies[key] = _Tally(1, died_ms, died_ms, member.id, last_failure)
            else:
                other += 1
        if progress:
            progress(looked_at, max(looked_at, held["dead"]))
    found = [
        DeadLetterGroup(
            key, tally.count, moment(tally.first_ms), moment(tally.last_ms),
            MessageId(tally.example), tally.failure.reason if tally.failure else "",
            tally.failure.error if tally.failure else "",
        )
        for key, tally in tallies.items()
    ]  # fmt: skip
    found.sort(key=lambda group: (-group.count, group.fingerprint))
    return DeadLetterGroups(found, other, total)
