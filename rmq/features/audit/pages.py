"""The console page on which you audit a topic and see its missing messages."""

from __future__ import annotations

from rmq.features.audit.audit import AuditResult
from rmq.http_framework.page import PageRequest, Pages, Redirect, View
from rmq.http_framework.readings import LongReading
from rmq.kernel.core.access import Role

PAGES = Pages()

RANGES = 100  # maximum number of missing ranges on the page
OLDER_S = 60.0  # minimum age of the audited messages, in seconds
AGAIN_S = 10.0  # minimum time between two audits, in seconds
COLUMNS = {
    "producers": "producers that number their messages", "numbered": "numbered messages accepted",
    "seen": "settled by consumers", "accounted": "merged, refused, cancelled, purged or dropped",
    "waiting": "waiting", "in_flight": "in flight", "dead": "dead letters",
}  # fmt: skip


@PAGES.get("/topics/{topic}/audit")
async def audit(request: PageRequest) -> View:
    """Show the progress and the result of an audit. Opening the page starts no audit."""
    await request.context.admin.settings(request.topic)  # raises if the topic does not exist
    reading = request.readings.known(_key(request))
    found: AuditResult | None = reading.found if reading else None
    state = request.context.state
    values = {
        "topic": request.topic, "reading": reading, "found": found, "columns": COLUMNS,
        "ranges": found.lost[:RANGES] if found else [], "older_s": OLDER_S,
        "leads": state.leads(), "server_missing": state.missing().get(request.topic),
    }  # fmt: skip
    return View("audit.html", values, f"{request.topic}: loss audit")


@PAGES.post("/topics/{topic}/audit", Role.OPERATOR)
async def start_audit(request: PageRequest) -> Redirect:
    """Start an audit that continues in the background."""
    topic = request.topic
    await request.context.admin.settings(topic)

    async def read(reading: LongReading) -> AuditResult:
        return await request.context.admin.audit(
            topic, older_than=OLDER_S, progress=reading.progress
        )

    request.readings.start(_key(request), read, AGAIN_S)
    return Redirect(request.url("topics", topic, "audit"))


def _key(request: PageRequest) -> str:
    return f"audit {request.topic}"
