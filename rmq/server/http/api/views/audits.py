"""The audit trail, audits of topics, and findings of the doctor as they are shown."""

from __future__ import annotations

from datetime import datetime

from rmq.core import audit, finding, job
from rmq.core.finding import Severity
from rmq.core.message import moment
from rmq.server.http.api.views.answer import Answer


class AuditLine(Answer):
    """A line of the audit trail: who did what, of what, and the rest."""

    at: datetime
    by: str
    what: str
    subject: str
    text: str


class AuditTrail(Answer):
    """Lines of the audit trail, the newest first.

    Attributes:
        cursor: for the next ones; null: these were the last.
    """

    lines: list[AuditLine]
    cursor: str | None


class Missing(Answer):
    """A range of numbers whose messages are missing; fields as of `rmq audit`."""

    producer: str
    slot: int
    first: int
    last: int


class Audited(Answer):
    """The audit of a topic; fields as of `rmq audit`.

    Attributes:
        missing: numbers that were accepted, are not accounted for, and that no message has.
        lost: the missing numbers, in at most 1000 ranges.
    """

    topic: str
    producers: int
    numbered: int
    seen: int
    accounted: int
    waiting: int
    in_flight: int
    dead: int
    missing: int
    lost: list[Missing]


class Finding(Answer):
    """A finding of the doctor; `mend`: the command that mends it, or nothing."""

    check: str
    severity: Severity
    evidence: str
    mend: str


class Findings(Answer):
    """The findings of the doctor, and the gravest severity of them."""

    worst: Severity
    findings: list[Finding]


def audit_line_of(line: job.AuditLine) -> AuditLine:
    """Return a line of the audit trail as it is shown."""
    return AuditLine(
        at=moment(line.at_ms), by=line.by, what=line.what, subject=line.subject, text=line.text
    )


def audited_of(found: audit.Audited) -> Audited:
    """Return an audit as it is shown."""
    lost = [Missing(**missing._asdict()) for missing in found.lost]
    return Audited(**found._asdict() | {"lost": lost})


def findings_of(found: list[finding.Finding]) -> Findings:
    """Return findings as they are shown."""
    worst = max((each.severity for each in found), key=finding.SEVERITIES.index)
    return Findings(worst=worst, findings=[Finding(**each._asdict()) for each in found])
