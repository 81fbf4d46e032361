"""Audit a topic: tell Redis what was sent, and look for numbers that are nowhere.

A number is missing when it was open before a look at all that lives and is open after it, and
nobody who lived all the while has it. The scripts that remove a message account for its number in
the same step, so this is exact, however busy the topic is.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable
from typing import Any

from rmq.core import ranges, sequence
from rmq.core.audit import RANGES_MAX, Audited, Missing
from rmq.core.keys import SlotKeys
from rmq.core.ranges import Ranges, difference, intersection, union
from rmq.core.sequence import NUMBERS_MAX, REPORT_S, ProducerSequence, SlotSequence
from rmq.core.topic_context import TopicContext
from rmq.errors import StorageError
from rmq.protocol import commands
from rmq.protocol.flows import open_topic
from rmq.protocol.steps import Command, Flow, InBackground, Pipeline, pipeline

log = logging.getLogger("rmq")

PAGE = 1000
TOLD_TOGETHER = 100  # calls in one round trip
Progress = Callable[[int, int], None]


# --- the producer's side -----------------------------------------------------------------------


def begin(lines: Iterable[SlotSequence]) -> Flow[None]:
    """Before the first message: where the numbers of these lines begin."""
    new = [one for one in lines if one.must_register]
    if new:
        calls = [
            commands.audit_report(one.keys, one.producer, one.reported, one.reported) for one in new
        ]
        yield from pipeline(calls)
        for one in new:
            one.confirm(sequence.Report(one.reported, one.reported, [], []))


def soon(numbers: ProducerSequence) -> Flow[None]:
    """See to it that Redis is told a second from now at the latest."""
    if numbers.schedule_report():
        yield InBackground(REPORT_S, lambda: tell(numbers))


def tell(numbers: ProducerSequence, again: bool = True) -> Flow[None]:
    """Tell Redis what it does not know yet; where it cannot be told now, `again` in a second."""
    numbers.report_started()
    while True:
        untold = [(one, told) for one in numbers.slot_sequences() if (told := one.next_report())]
        if not untold:
            return
        failed = False
        for at in range(0, len(untold), TOLD_TOGETHER):
            some = untold[at : at + TOLD_TOGETHER]
            calls: list[Command[Any]] = [
                commands.audit_report(one.keys, one.producer, told.old, told.sent, told.ranges)
                for one, told in some
            ]
            try:
                replies = yield Pipeline(calls)
            except StorageError as error:
                log.debug("what was sent cannot be told to the audit just now: %s", error)
                replies = [error] * len(calls)
            for (one, told), reply in zip(some, replies, strict=True):
                if isinstance(reply, Exception):
                    failed = True
                else:
                    one.confirm(told)
        if failed:
            if again:
                yield from soon(numbers)
            return


# --- the audit ---------------------------------------------------------------------------------


class _Open:
    """The open numbers of one producer in one slot."""

    def __init__(self) -> None:
        self.sent = 0
        self.ranges: list[tuple[int, int, int]] = []  # first, last, since when

    def promised(self, before_ms: float) -> Ranges:
        """Those that were told as accepted, and are known since before then."""
        return union(
            (first, min(last, self.sent))
            for first, last, since in self.ranges
            if first <= self.sent and since <= before_ms
        )


class _Account:
    """What one reading of the open numbers of a slot gave."""

    def __init__(self) -> None:
        self.now_ms = self.numbered = self.seen = self.accounted = 0
        self.producers: dict[str, _Open] = {}

    def add(self, page: commands.AuditOpenPage) -> None:
        self.now_ms, self.numbered, self.seen, self.accounted = page[:4]
        for member in page.members:
            producer, last, first, since, *sent = member.decode().split(":")
            one = self.producers.setdefault(producer, _Open())
            if sent:
                one.sent = int(sent[0])
            else:
                one.ranges.append((int(first), int(last), int(since)))


def _read(keys: SlotKeys, page: commands.AuditOpenPage | None = None) -> Flow[_Account]:
    """All open numbers of a slot; `page`: the first page where it is read already."""
    account = _Account()
    if page is None:
        page = yield commands.audit_open(keys)
    while page:
        account.add(page)
        if len(page.members) < PAGE:
            break
        page = yield commands.audit_open(keys, page.members[-1])
    return account


class _Living:
    """The numbers of messages that live in a slot."""

    def __init__(self) -> None:
        self.numbers: dict[str, array[int]] = {}
        self.places = dict.fromkeys("spd", 0)

    def add(self, found: list[bytes]) -> None:
        for one in found:
            producer, number = one[1:11].decode(), int(one[12:])
            self.numbers.setdefault(producer, array("Q")).append(number)
            self.places[chr(one[0])] += 1

    def of(self, producer: str) -> Ranges:
        return ranges.from_numbers(sorted(self.numbers.get(producer, ())))


def audit(
    context: TopicContext,
    older_ms: int,
    forget: bool = False,
    every_ms: int = 0,
    progress: Progress | None = None,
) -> Flow[Audited | None]:
    """Look for numbers of a topic that are nowhere.

    Args:
        context: of the topic.
        older_ms: only those that were told as accepted so long ago.
        forget: account for those that are missing, so that they are not reported again.
        every_ms: only where nobody has asked so for this long; else None is returned.
        progress: called with (records looked at, records there were) as it goes.
    """
    yield from open_topic.ensure_open(context, create=False)
    first = None
    if (
        every_ms
        and (first := (yield commands.audit_open(context.slots[0], every_ms=every_ms))) is None
    ):
        return None
    whole = done = 0
    if progress:
        counts = yield from pipeline([commands.stats(keys) for keys in context.slots])
        whole = sum(one["records"] for one in counts)
    producers: set[str] = set()
    numbered = seen = accounted = 0
    places = dict.fromkeys("spd", 0)
    lost: list[Missing] = []
    for keys in context.slots:
        before = yield from _read(keys, first if keys.index == 0 else None)
        living, cursor = _Living(), b"0"
        while True:
            page = yield commands.audit_scan(keys, cursor, PAGE)
            living.add(page.living)
            cursor, done = page.cursor, done + page.looked
            if progress:
                progress(done, max(done, whole))
            if cursor == b"0":
                break
        after = yield from _read(keys)
        missing = _missing(keys, before, after, living, older_ms)
        if forget:
            yield from _forget(keys, missing)
        lost += missing
        producers |= after.producers.keys()
        numbered, seen = numbered + after.numbered, seen + after.seen
        accounted += after.accounted
        for place, count in living.places.items():
            places[place] += count
    return Audited(
        context.name, len(producers), numbered, seen, accounted, places["s"], places["p"],
        places["d"], ranges.count((one.first, one.last) for one in lost), lost[:RANGES_MAX],
    )  # fmt: skip


def _missing(
    keys: SlotKeys, before: _Account, after: _Account, living: _Living, older_ms: int
) -> list[Missing]:
    found = []
    latest = before.now_ms - older_ms
    for producer, one in before.producers.items():
        still = after.producers.get(producer)
        if still is None:
            continue
        open_all_along = intersection(one.promised(latest), still.promised(float("inf")))
        gone = difference(open_all_along, living.of(producer)) if open_all_along else []
        found += [Missing(producer, keys.index, first, last) for first, last in gone]
    return found


def _forget(keys: SlotKeys, missing: list[Missing]) -> Flow[None]:
    """Account for numbers that are missing."""
    for one in missing:
        for first in range(one.first, one.last + 1, NUMBERS_MAX):
            last = min(one.last, first + NUMBERS_MAX - 1)
            yield commands.audit_report(keys, one.producer, 0, 0, [(first, last)])
