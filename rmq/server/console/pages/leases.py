"""Leases of a topic: which messages are in flight, with whom, and for how long."""

from __future__ import annotations

import asyncio

from rmq.server.console.page import Ask, Pages, View
from rmq.server.http.api import bodies, leases as api_leases

PAGES = Pages()

ROWS = 100


@PAGES.get("/topics/{topic}/leases")
async def leases(ask: Ask) -> View:
    """List leases, and who takes messages of the topic."""
    path = bodies.TopicPath(topic=ask.topic)
    query = bodies.LeasesQuery(limit=ROWS, cursor=ask.query.get("cursor") or None)
    found, consumers = await asyncio.gather(
        api_leases.list_leases(ask.at, path, query), api_leases.list_consumers(ask.at, path)
    )
    return View(
        "leases.html",
        {
            "topic": ask.topic, "found": ask.shown(found.leases), "cursor": found.cursor,
            "is_first": not query.cursor, "workers": consumers.workers[:ROWS],
            "held": consumers.queries[:ROWS], "in_flight": consumers.in_flight,
        },
        f"{ask.topic}: leases",
    )  # fmt: skip
