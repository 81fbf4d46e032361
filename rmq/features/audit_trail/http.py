"""The audit trail: who did what."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from rmq.kernel.core.score import TIMED_MIN, moment
from rmq.web.operation import RequestContext, Table, read_cursor, write_cursor
from rmq.web.requests import Answer, CursorText, Limit, Request, show

TABLE = Table("audits")


class Place(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Where the audit trail continues: after so many lines of a time."""

    at_ms: Annotated[int, msgspec.Meta(ge=TIMED_MIN, lt=2**42)]
    seen: Annotated[int, msgspec.Meta(ge=1, le=9_000)]


class AuditTrailQuery(Request):
    """Which lines of the audit trail are listed."""

    limit: Limit = 100
    cursor: CursorText | None = None


class AuditTrail(Answer):
    """Lines of the audit trail, the newest first.

    Attributes:
        cursor: for the next ones; null: these were the last.
    """

    lines: list[AuditLine]
    cursor: str | None


@TABLE.get("/audit-trail")
async def list_audit_trail(context: RequestContext, query: AuditTrailQuery) -> AuditTrail:
    """List who did what, the newest first; the newest 10 000 lines are kept."""
    place = read_cursor(query.cursor, Place) if query.cursor else None
    seen, until = (place.seen, moment(place.at_ms)) if place else (0, None)
    found = (await context.admin.audit_trail(query.limit + seen + 1, until=until))[seen:]
    page, cursor = found[: query.limit], None
    if len(found) > query.limit:
        last_ms = page[-1].at_ms
        before = seen if place and place.at_ms == last_ms else 0
        cursor = write_cursor(Place(last_ms, before + [r.at_ms for r in page].count(last_ms)))
    lines = [show(line, AuditLine, at=moment(line.at_ms)) for line in page]
    return AuditTrail(lines=lines, cursor=cursor)


class AuditLine(Answer):
    """A line of the audit trail: who did what, of what, and the rest."""

    at: datetime
    by: str
    what: str
    subject: str
    text: str
