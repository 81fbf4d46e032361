"""Health: what the doctor finds, and how the services of this server do."""

from __future__ import annotations

from rmq.core.finding import SEVERITIES, Finding
from rmq.server.console.page import Ask, Pages, View
from rmq.server.console.readings import LongReading
from rmq.server.http.api import about as api_about

PAGES = Pages()

DOCTOR_S = 60.0  # it looks again after so long, at most


@PAGES.get("/health")
async def health(ask: Ask) -> View:
    """Show the findings of the doctor, the gravest first, and the services of the server."""

    async def examine(reading: LongReading) -> list[Finding]:
        return await ask.at.admin.doctor()

    about = await ask.readings.get("info", lambda: api_about.get_info(ask.at), 5.0)
    reading = ask.readings.start("doctor", examine, DOCTOR_S)
    found: list[Finding] = sorted(
        reading.found or (), key=lambda finding: -SEVERITIES.index(finding.severity)
    )
    return View(
        "health.html",
        {
            "reading": reading,
            "findings": [each for each in found if each.severity not in ("ok", "skipped")],
            "fine": [each for each in found if each.severity in ("ok", "skipped")],
            "services": ask.at.services(), "about": about,
        },
        "Health",
    )  # fmt: skip
