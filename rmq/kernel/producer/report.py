"""Report to Redis which audit numbers a producer has given to accepted messages.

An audit finds lost messages. It compares these numbers with stored and settled messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from rmq.errors import AccessDenied, StorageError
from rmq.kernel.core.message import SendResult
from rmq.kernel.core.sequence import REPORT_S, ProducerSequence, Report, SlotSequence
from rmq.kernel.producer import scripts
from rmq.kernel.producer.batches import SendBatch
from rmq.kernel.transport.flow.steps import Command, Flow, InBackground, Pipeline, pipeline

log = logging.getLogger("rmq")

CALLS_MAX = 100  # calls in one round trip


def register(sequences: Iterable[SlotSequence]) -> Flow[None]:
    """Register a producer's new sequences of audit numbers in Redis, before their first message."""
    new = [sequence for sequence in sequences if sequence.must_register]
    if new:
        yield from pipeline(
            [scripts.audit_report(s.keys, s.producer, s.reported, s.reported) for s in new]
        )
        for sequence in new:
            sequence.confirm(Report(sequence.reported, sequence.reported, [], []))


def record_numbers(batches: list[SendBatch], results: Sequence[SendResult | None]) -> None:
    """Record which audit numbers accepted messages have, and which numbers are unused."""
    for batch in batches:
        void = []
        for position, number in enumerate(batch.numbers):
            index = batch.indexes[position]
            status = getattr(results[index], "status", "") if index < len(results) else ""
            # A duplicate of an id that we made is this very message, whose reply was lost. A
            # duplicate of a dedup key may be another message with its own number. A merging message
            # may have merged, which the reply does not show.
            made_here = position not in batch.given_ids and batch.merging is None
            if status != "stored" and not (made_here and status == "duplicate"):
                void.append(number)
        if batch.sequence is not None:
            batch.sequence.finish(batch.numbers, void)


def schedule(producer: ProducerSequence) -> Flow[None]:
    """Schedule a report of audit numbers. It runs in the background within a second."""
    if producer.schedule_report():
        yield InBackground(REPORT_S, lambda: report(producer))


def report(producer: ProducerSequence, again: bool = True) -> Flow[None]:
    """Report all audit numbers that were not reported yet.

    If Redis cannot be reached and `again` is True, the report is repeated after a second.
    """
    producer.report_started()
    while True:
        reports = [
            (sequence, report)
            for sequence in producer.slot_sequences()
            if (report := sequence.next_report())
        ]
        if not reports:
            return
        failed = False
        for at in range(0, len(reports), CALLS_MAX):
            part = reports[at : at + CALLS_MAX]
            calls: list[Command[Any]] = [
                scripts.audit_report(s.keys, s.producer, report.old, report.sent, report.ranges)
                for s, report in part
            ]
            try:
                replies = yield Pipeline(calls)
            except StorageError as error:
                log.debug("the numbers of sent messages cannot be reported just now: %s", error)
                replies = [error] * len(calls)
            for (sequence, report), reply in zip(part, replies, strict=True):
                if isinstance(reply, Exception):
                    failed = True
                    if isinstance(reply, AccessDenied) and not producer.is_denied:
                        producer.is_denied = True
                        log.warning("the audit cannot account for sent messages: %s", reply)
                else:
                    sequence.confirm(report)
        if failed:
            if again:
                yield from schedule(producer)
            return
