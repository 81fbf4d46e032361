"""The audit trail: who did what, and when."""

from __future__ import annotations

from rmq.web.page import Ask, Pages, View

PAGES = Pages()

ROWS, ROWS_MOST = 100, 10_000


@PAGES.get("/audit-trail")
async def audit_trail(ask: Ask) -> View:
    """List who did what, the newest first."""
    contains = ask.query.get("contains", "")[:128]
    limit = ask.number("limit", ROWS, ROWS_MOST, ROWS)
    lines = await ask.at.admin.audit_trail(ROWS_MOST if contains else limit)
    if contains:
        lines = [line for line in lines if contains in " ".join(map(str, line[1:]))]
    return View(
        "audit_trail.html",
        {
            "lines": lines[:limit], "contains": contains,
            "limit": limit, "is_more": len(lines) >= limit,
        },
        "Audit trail",
    )  # fmt: skip
