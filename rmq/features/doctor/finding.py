"""A finding of the doctor: its severity, the evidence, and the command that fixes it."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

Severity = Literal["ok", "skipped", "note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # the gravest one last


class Finding(NamedTuple):
    """A finding of `Admin.doctor`.

    Attributes:
        check: the name of the check.
        severity: ok; skipped: it could not be looked at; note: worth knowing; warning: it will hurt
            some day; error: it hurts now, or breaks a promise.
        evidence: what was seen.
        fix: the command that fixes it; empty: there is none.
    """

    check: str
    severity: Severity
    evidence: str
    fix: str = ""
