"""Audit a topic: find accepted messages that are lost.

A number is "open" until RMQ removes the message that has the number. The script that removes the
message also closes the number.

An audit reads the open numbers of a topic, then all messages, then the open numbers again. A
message is missing if RMQ accepted it, its number was open both times, and no queue has it. So the
result is exact even while programs use the topic.
"""

from __future__ import annotations

from array import array

from rmq.features.audit import scripts
from rmq.features.audit.audit import RANGES_MAX, AuditResult, Missing
from rmq.kernel.core import validation
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.sequence import NUMBERS_MAX
from rmq.kernel.core.validation import Ranges, difference, intersection, union
from rmq.kernel.producer import scripts as producer_scripts
from rmq.kernel.topic import opening, scripts as topic_scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, Progress, pipeline

PAGE = 1000


class _OpenNumbers:
    """Numbers of one producer's messages that RMQ has not removed yet, in one slot."""

    def __init__(self) -> None:
        self.sent = 0
        self.ranges: list[tuple[int, int, int]] = []  # first, last, open since

    def accepted(self, before_ms: float) -> Ranges:
        return union(
            (first, min(last, self.sent))
            for first, last, since in self.ranges
            if first <= self.sent and since <= before_ms
        )


class _Account:
    """Message counts of a slot, and the numbers of the messages that RMQ has not removed yet."""

    def __init__(self) -> None:
        self.now_ms = self.numbered = self.seen = self.accounted = 0
        self.producers: dict[str, _OpenNumbers] = {}

    def add(self, page: scripts.AuditOpenPage) -> None:
        self.now_ms, self.numbered, self.seen, self.accounted = page[:4]
        for member in page.members:
            producer, last, first, since, *sent = member.decode().split(":")
            numbers = self.producers.setdefault(producer, _OpenNumbers())
            if sent:
                numbers.sent = int(sent[0])
            else:
                numbers.ranges.append((int(first), int(last), int(since)))


def _read_account(keys: SlotKeys, page: scripts.AuditOpenPage | None = None) -> Flow[_Account]:
    account = _Account()
    if page is None:
        page = yield scripts.audit_open(keys)
    while page:
        account.add(page)
        if len(page.members) < PAGE:
            break
        page = yield scripts.audit_open(keys, page.members[-1])
    return account


class _LivingNumbers:
    def __init__(self) -> None:
        self.numbers: dict[str, array[int]] = {}
        self.counts = dict.fromkeys("spd", 0)  # messages by the first letter of their queue

    def add(self, members: list[bytes]) -> None:
        for member in members:
            producer, number = member[1:11].decode(), int(member[12:])
            self.numbers.setdefault(producer, array("Q")).append(number)
            self.counts[chr(member[0])] += 1

    def of(self, producer: str) -> Ranges:
        return validation.from_numbers(sorted(self.numbers.get(producer, ())))


def audit(
    context: TopicContext,
    older_ms: int,
    forget: bool = False,
    every_ms: int = 0,
    progress: Progress | None = None,
) -> Flow[AuditResult | None]:
    """Find the missing messages of a topic.

    Args:
        context: Context of the topic.
        older_ms: Minimum time since a message was accepted, in ms.
        forget: Whether to forget missing messages, so that later audits do not report them.
        every_ms: Interval between audits, in ms. If an audit began within this time, return None.
        progress: Function that is called as `progress(read, all)` during the audit, with two
            numbers of records.
    """
    yield from opening.ensure_open(context, create=False)
    first_page = None
    if every_ms:
        first_page = yield scripts.audit_open(context.slots[0], every_ms=every_ms)
        if first_page is None:
            return None
    records = done = 0
    if progress:
        stats = yield from pipeline([topic_scripts.stats(keys) for keys in context.slots])
        records = sum(slot["records"] for slot in stats)
    producers: set[str] = set()
    numbered = seen = accounted = 0
    counts = dict.fromkeys("spd", 0)
    all_missing: list[Missing] = []
    for keys in context.slots:
        before = yield from _read_account(keys, first_page if keys.index == 0 else None)
        living, cursor = _LivingNumbers(), b"0"
        while True:
            page = yield scripts.audit_scan(keys, cursor, PAGE)
            if page.is_first:
                living = _LivingNumbers()
            living.add(page.living)
            cursor, done = page.cursor, done + page.looked
            if progress:
                progress(done, max(done, records))
            if cursor == b"0":
                break
        after = yield from _read_account(keys)
        missing = _find_missing(keys, before, after, living, older_ms)
        if forget:
            yield from _forget(keys, missing)
        all_missing += missing
        producers |= after.producers.keys()
        numbered, seen = numbered + after.numbered, seen + after.seen
        accounted += after.accounted
        for letter, count in living.counts.items():
            counts[letter] += count
    total = validation.count((missing.first, missing.last) for missing in all_missing)
    return AuditResult(
        context.name, len(producers), numbered, seen, accounted, counts["s"], counts["p"],
        counts["d"], total, all_missing[:RANGES_MAX],
    )  # fmt: skip


def _find_missing(
    keys: SlotKeys, before: _Account, after: _Account, living: _LivingNumbers, older_ms: int
) -> list[Missing]:
    missing = []
    latest = before.now_ms - older_ms
    for producer, open_before in before.producers.items():
        open_after = after.producers.get(producer)
        if open_after is None:
            continue
        still_open = open_after.accepted(float("inf"))
        open_all_along = intersection(open_before.accepted(latest), still_open)
        gone = difference(open_all_along, living.of(producer)) if open_all_along else []
        missing += [Missing(producer, keys.index, first, last) for first, last in gone]
    return missing


def _forget(keys: SlotKeys, missing: list[Missing]) -> Flow[None]:
    for gap in missing:
        for first in range(gap.first, gap.last + 1, NUMBERS_MAX):
            last = min(gap.last, first + NUMBERS_MAX - 1)
            yield producer_scripts.audit_report(keys, gap.producer, 0, 0, [(first, last)])
