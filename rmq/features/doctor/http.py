"""HTTP routes of the doctor."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from rmq.features.doctor.look import SEVERITIES, Severity, SinceFrom
from rmq.http_framework.operation import RequestContext, Table
from rmq.http_framework.requests import Answer, Request, show

TABLE = Table("audits")


class DoctorQuery(Request):
    """Names of the checks to run, separated by commas. Without names, all checks run."""

    only: Annotated[str, Meta(pattern=r"^[a-z]+(-[a-z]+)*(,[a-z]+(-[a-z]+)*)*$")] | None = None


class Findings(Answer):
    """The findings of the doctor, and their highest severity."""

    worst: Severity
    findings: list[Finding]


@TABLE.get("/doctor")
async def examine(context: RequestContext, query: DoctorQuery) -> Findings:
    """Check Redis and all topics. Change nothing.

    If the server's Redis user lacks a right that a check needs, the check is skipped. Its finding
    gives the reason.
    """
    only = query.only.split(",") if query.only else None
    found = await context.admin.doctor(only)
    worst = max((each.severity for each in found), key=SEVERITIES.index)
    return Findings(worst=worst, findings=[show(each, Finding) for each in found])


class Finding(Answer):
    """A finding of the doctor. `fix` is a command that fixes the problem, or empty.

    `since` is the start of the problem. If `since_from` is "server", `since` is the time at which
    `rmq server` first saw the problem.
    """

    check: str
    severity: Severity
    evidence: str
    fix: str
    topics: list[str]
    subject: str
    since: datetime | None
    since_from: SinceFrom
    title: str
    runbook: str
