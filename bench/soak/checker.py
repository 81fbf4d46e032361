"""The check of a history: the conditions that must hold, and whether the run proves anything.

With A = sent ids, E = ids whose send was answered, D = delivered, K = acked, X = dead:

    lost              E - D - X after the drain, and messages acked but never handled
    stuck             E - K - X after the drain: delivered, and never settled
    unexpected        delivered and never sent, or with another body
    copies            one message of a producer under several ids
    returned          received after its ack
    unexplained       delivered again without a nack, and before its lease had ended
    double acks       acks of two deliveries of an id were both accepted
    overlaps          two deliveries of an id at the same time, both inside their leases
    early             delivered before it was due
    overrun           more deliveries than the topic allows, or dead with fewer
    inversions        a lower priority was taken while a higher one waited in the same slot
    gaps              a number of a producer is missing: must agree with `lost`
    not linearizable  no order of the operations of an id is possible (`per_id`)

It counts the events of the programs, independently of RMQ's counts. After Jepsen's total-queue.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bench.soak import deliveries, per_id
from bench.soak.deliveries import Message
from bench.soak.figures import Fault, faults, percentile
from bench.soak.history import Event

MUST = (
    "lost", "stuck", "unexpected", "copies", "returned", "unexplained", "double acks", "overlaps",
    "early", "overrun", "inversions", "gaps", "not linearizable",
)  # fmt: skip
LEAST_SENDS = 100  # answered sends; fewer prove nothing
RETRIES_SPENT = ("failed", "lease ran out")  # reasons of a dead letter that used up its retries


@dataclass
class Report:
    """The outcome of a check.

    Attributes:
        state: "pass", "fail" or "unknown".
        doubts: Reasons why it cannot be "pass".
        counts: Numbers of ids and events.
        findings: Faults found by each check, one line each.
        causes: Causes of repeated deliveries.
        late_ms: p50, p99 and max of the time from due to delivery; empty without timed messages.
        faults: Faults that happened.
        controls: Whether each broken variant was caught, by name.
        settings: Settings of the run.
    """

    state: str = "unknown"
    doubts: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    findings: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in MUST})
    causes: Counter[str] = field(default_factory=Counter)
    late_ms: dict[str, float] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    controls: dict[str, bool] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


def check(history: Iterable[Event], *, least_sends: int = LEAST_SENDS) -> Report:
    """Check a history.

    Args:
        history: Events in any order.
        least_sends: Number of answered sends below which the verdict is "unknown".
    """
    events = sorted(history, key=lambda event: event.t)
    report = Report()
    messages: dict[str, Message] = {}
    drained = False
    for event in events:
        if event.id:
            messages.setdefault(event.id, Message(event.id)).add(event)
        elif event.op == "drain" and event.type != "invoke":
            drained = event.type == "ok"
        elif event.op == "start":
            report.settings |= event.settings or {}
        elif event.op == "control" and event.type in ("ok", "fail"):
            report.controls[event.name] = event.type == "ok"
    every = list(messages.values())
    _count(report, every)
    _check_losses(report, every, drained, any(event.op == "handle" for event in events))
    _check_deliveries(report, every)
    report.faults = faults(events)
    report.doubts = _doubts(report, drained, least_sends)
    wrong = any(report.findings.values())
    report.state = "fail" if wrong else "unknown" if report.doubts else "pass"
    return report


def _count(report: Report, messages: list[Message]) -> None:
    report.counts = {
        "attempted": sum(1 for one in messages if one.sends),
        "answered": sum(1 for one in messages if one.answers),
        "delivered": sum(1 for one in messages if one.deliveries),
        "acked": sum(1 for one in messages if one.acks()),
        "dead": sum(1 for one in messages if one.dead),
        "recovered": sum(1 for one in messages if one.deliveries and not one.answers),
        "redelivered": sum(max(0, len(one.deliveries) - 1) for one in messages),
        "refused": sum(1 for one in messages for event in one.settling if event.type == "fail"),
    }


def _check_losses(
    report: Report, messages: list[Message], drained: bool, records_work: bool
) -> None:
    findings = report.findings
    missing = 0
    seen: set[tuple[str, int]] = set()
    ids_by_number: dict[tuple[str, int], set[str]] = defaultdict(set)
    for message in messages:
        gone = message.dead is not None
        for delivery in message.deliveries:
            if delivery.number >= 0:
                ids_by_number[delivery.producer, delivery.number].add(message.id)
                seen.add((delivery.producer, delivery.number))
        if gone and message.sends:
            seen.add((message.sends[0].producer, message.sends[0].number))
        if records_work and message.acks() and not message.handled:
            findings["lost"].append(f"{message.id}: acked, and never handled")
        if drained and message.answers and not gone:
            if not message.deliveries:
                missing += 1
                findings["lost"].append(f"{message.id}: answered, and never delivered")
            elif not message.may_be_acked():
                findings["stuck"].append(f"{message.id}: delivered, and never settled")
        _check_body(report, message)
    for (producer, number), ids in ids_by_number.items():
        if len(ids) > 1:
            findings["copies"].append(f"{producer} {number}: {', '.join(sorted(ids))}")
    if drained:
        numbers = {
            (one.sends[0].producer, one.sends[0].number)
            for one in messages
            if one.answers and one.sends and one.sends[0].number >= 0
        }
        _check_gaps(report, numbers - seen, missing, bool(numbers))


def _check_body(report: Report, message: Message) -> None:
    digests = {one.digest for one in message.sends}
    for delivery in message.deliveries:
        if not message.sends:
            report.findings["unexpected"].append(f"{message.id}: delivered, and never sent")
            return
        if delivery.digest not in digests:
            report.findings["unexpected"].append(f"{message.id}: delivered with another body")


def _check_gaps(
    report: Report, gaps: set[tuple[str, int]], missing: int, are_numbered: bool
) -> None:
    if are_numbered and len(gaps) != missing:
        shown = ", ".join(f"{producer} {number}" for producer, number in sorted(gaps)[:5])
        report.findings["gaps"].append(
            f"{len(gaps)} numbers are missing ({shown or '-'}), and {missing} ids"
        )


def _check_deliveries(report: Report, messages: list[Message]) -> None:
    findings = report.findings
    allowed = report.settings.get("max_deliveries")
    lateness: list[float] = []
    for message in messages:
        if len(message.deliveries) > 1:
            causes, wrong = deliveries.repeated(message)
            report.causes += causes
            findings["unexplained"] += wrong
            findings["overlaps"] += deliveries.overlaps(message)
        if len({one.receipt for one in message.acks()}) > 1:
            findings["double acks"].append(f"{message.id}: two acks were accepted")
        if deliveries.returned(message):
            findings["returned"].append(f"{message.id}: received after its ack")
        if (early_ms := deliveries.early(message)) > 0:
            findings["early"].append(f"{message.id}: {early_ms} ms before it was due")
        if (late_ms := deliveries.lateness(message)) is not None:
            lateness.append(late_ms)
        if isinstance(allowed, int):
            findings["overrun"] += _overrun(message, allowed)
        operations = per_id.operations(message.events)
        if not per_id.is_linearizable(operations):
            findings["not linearizable"].append(f"{message.id}: {per_id.explain(operations)}")
    findings["inversions"] += deliveries.inversions(messages)
    if lateness:
        lateness.sort()
        report.late_ms = {
            "p50": percentile(lateness, 0.5), "p99": percentile(lateness, 0.99),
            "max": lateness[-1],
        }  # fmt: skip


def _overrun(message: Message, allowed: int) -> list[str]:
    made = max((one.attempt for one in message.deliveries), default=0)
    if made > allowed:
        return [f"{message.id}: attempt {made} of at most {allowed}"]
    dead = message.dead
    if dead and dead.reason in RETRIES_SPENT and dead.attempt and dead.attempt < allowed:
        return [f"{message.id}: dead ({dead.reason}) after {dead.attempt} of {allowed} deliveries"]
    return []


def _doubts(report: Report, drained: bool, least_sends: int) -> list[str]:
    doubts = []
    if not report.faults:
        doubts.append("no fault fired")
    if report.counts["answered"] < least_sends:
        doubts.append(f"{report.counts['answered']} sends were answered, fewer than {least_sends}")
    if not drained:
        doubts.append("the drain is not complete")
    if not report.controls:
        doubts.append("no negative control was run")
    doubts += [
        f"the control {name} was not caught"
        for name, caught in report.controls.items()
        if not caught
    ]
    return doubts
