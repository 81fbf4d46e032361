"""The audit trail: actions of users and programs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from rmq.http_framework.operation import RequestContext, Table, read_cursor, write_cursor
from rmq.http_framework.requests import Answer, CursorText, Limit, Request, show
from rmq.kernel.core.score import TIMED_MIN, moment

TABLE = Table("audits")


class Position(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A position in the list of records, encoded in a cursor.

    The position has a time, and the number of records with this time that were already listed.
    """

    at_ms: Annotated[int, msgspec.Meta(ge=TIMED_MIN, lt=2**42)]
    seen: Annotated[int, msgspec.Meta(ge=1, le=9_000)]


class AuditTrailQuery(Request):
    """Selects records of the audit trail."""

    limit: Limit = 100
    cursor: CursorText | None = None


class AuditTrail(Answer):
    """Records of the audit trail, newest first."""

    lines: list[AuditLine]
    cursor: str | None


@TABLE.get("/audit-trail")
async def list_audit_trail(context: RequestContext, query: AuditTrailQuery) -> AuditTrail:
    """List actions of users and programs, newest first. Redis keeps the newest 10 000 actions."""
    place = read_cursor(query.cursor, Position) if query.cursor else None
    seen, until = (place.seen, moment(place.at_ms)) if place else (0, None)
    found = (await context.admin.audit_trail(query.limit + seen + 1, until=until))[seen:]
    page, cursor = found[: query.limit], None
    if len(found) > query.limit:
        last_ms = page[-1].at_ms
        before = seen if place and place.at_ms == last_ms else 0
        cursor = write_cursor(Position(last_ms, before + [r.at_ms for r in page].count(last_ms)))
    lines = [show(line, AuditLine, at=moment(line.at_ms)) for line in page]
    return AuditTrail(lines=lines, cursor=cursor)


class AuditLine(Answer):
    """A record of the audit trail: the user, the action, what the action changed, and details."""

    at: datetime
    by: str
    what: str
    subject: str
    text: str
