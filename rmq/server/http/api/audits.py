"""Audits: who did what, which messages are missing, and what the doctor finds."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rmq.core.message import moment
from rmq.core.score import TIMED_MIN
from rmq.server.http.api import bodies, cursors, views
from rmq.server.http.api.operation import At, Table
from rmq.server.http.principal import Role

TABLE = Table("audits")


class Place(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Where the audit trail goes on: after so many lines of a time."""

    at_ms: Annotated[int, msgspec.Meta(ge=TIMED_MIN, lt=2**42)]
    seen: Annotated[int, msgspec.Meta(ge=1, le=9_000)]


@TABLE.get("/audit-trail")
async def list_audit_trail(at: At, query: bodies.AuditTrailQuery) -> views.AuditTrail:
    """List who did what, the newest first; the newest 10 000 lines are kept."""
    place = cursors.read(query.cursor, Place) if query.cursor else None
    seen, until = (place.seen, moment(place.at_ms)) if place else (0, None)
    found = (await at.admin.audit_trail(query.limit + seen + 1, until=until))[seen:]
    page, cursor = found[: query.limit], None
    if len(found) > query.limit:
        last_ms = page[-1].at_ms
        before = seen if place and place.at_ms == last_ms else 0
        cursor = cursors.write(Place(last_ms, before + [r.at_ms for r in page].count(last_ms)))
    return views.AuditTrail(lines=[views.audit_line_of(line) for line in page], cursor=cursor)


@TABLE.get("/doctor")
async def examine(at: At, query: bodies.DoctorQuery) -> views.Findings:
    """Check Redis and all topics; nothing is changed.

    A check that the server's Redis user may not make is skipped, and says why.
    """
    only = query.only.split(",") if query.only else None
    return views.findings_of(await at.admin.doctor(only))


@TABLE.get("/topics/{topic}/audit", "topic-not-found", "conflict")
async def audit(at: At, path: bodies.TopicPath, query: bodies.AuditQuery) -> views.Audited:
    """Report which messages of producers with `rmq.Audit` were lost."""
    return views.audited_of(await at.admin.audit(path.topic, older_than=query.older_than))


@TABLE.post("/topics/{topic}/audit/forget", "topic-not-found", "conflict", role=Role.ADMIN)
async def forget_missing(
    at: At, path: bodies.TopicPath, body: bodies.ForgetMissing
) -> views.Audited:
    """Account for missing messages, so that they are not reported again; return the last report."""
    found = await at.admin.audit(path.topic, older_than=body.older_than, forget=True)
    return views.audited_of(found)
