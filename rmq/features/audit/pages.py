"""The loss audit of a topic: what a server or a person has found missing."""

from __future__ import annotations

from rmq.features.audit.audit import Audited
from rmq.kernel.core.access import Role
from rmq.web.page import Ask, Pages, Redirect, View
from rmq.web.readings import LongReading

PAGES = Pages()

RANGES = 100  # of missing numbers that are listed
OLDER_S = 60.0  # messages that were accepted later are not looked for yet
AGAIN_S = 10.0  # an audit is not made anew before
COLUMNS = {
    "producers": "producers that number their messages", "numbered": "numbered messages accepted",
    "seen": "settled by consumers", "accounted": "merged, refused, cancelled, purged or dropped",
    "waiting": "waiting", "in_flight": "in flight", "dead": "dead letters",
}  # fmt: skip


@PAGES.get("/topics/{topic}/audit")
async def audit(ask: Ask) -> View:
    """Show how far an audit is, and what it found; none is begun by looking."""
    await ask.at.admin.settings(ask.topic)  # there is such a topic
    reading = ask.readings.known(_key(ask))
    found: Audited | None = reading.found if reading else None
    return View(
        "audit.html",
        {
            "topic": ask.topic, "reading": reading, "found": found, "columns": COLUMNS,
            "ranges": found.lost[:RANGES] if found else [], "older_s": OLDER_S,
            "leads": ask.at.leads(), "server_missing": ask.at.missing().get(ask.topic),
        },
        f"{ask.topic}: loss audit",
    )  # fmt: skip


@PAGES.post("/topics/{topic}/audit", Role.OPERATOR)
async def start_audit(ask: Ask) -> Redirect:
    """Begin an audit that goes on after the answer."""
    topic = ask.topic
    await ask.at.admin.settings(topic)

    async def read(reading: LongReading) -> Audited:
        return await ask.at.admin.audit(topic, older_than=OLDER_S, progress=reading.progress)

    ask.readings.start(_key(ask), read, AGAIN_S)
    return Redirect(ask.url("topics", topic, "audit"))


def _key(ask: Ask) -> str:
    return f"audit {ask.topic}"
