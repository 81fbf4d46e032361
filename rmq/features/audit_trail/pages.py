"""The page of the audit trail: actions of users and programs."""

from __future__ import annotations

from rmq.http_framework.page import PageRequest, Pages, View

PAGES = Pages()

ROWS, ROWS_MAX = 100, 10_000


@PAGES.get("/audit-trail")
async def audit_trail(request: PageRequest) -> View:
    """List actions of users and programs, newest first."""
    contains = request.query.get("contains", "")[:128]
    limit = request.number("limit", ROWS, ROWS_MAX, ROWS)
    lines = await request.context.admin.audit_trail(ROWS_MAX if contains else limit)
    if contains:
        lines = [line for line in lines if contains in " ".join(map(str, line[1:]))]
    values = {
        "lines": lines[:limit], "contains": contains, "limit": limit,
        "is_more": len(lines) >= limit,
    }  # fmt: skip
    return View("audit_trail.html", values, "Audit trail")
