"""Console pages of schedules, and of the queries and sinks of Spark."""

from __future__ import annotations

import asyncio

from rmq.features.schedules import http
from rmq.http_framework.figures import topic_figures
from rmq.http_framework.page import PageRequest, Pages, Redirect, View
from rmq.http_framework.problems import ApiError
from rmq.kernel.core.access import Role

PAGES = Pages()

ROWS = 500
# Sinks are cached for this time, because finding them reads all keys of the database.
SINKS_S = 10.0


@PAGES.get("/topics/{topic}/schedules")
async def schedules(request: PageRequest) -> View:
    """List the schedules of a topic. The schedule that is due next is first."""
    found = await request.context.admin.schedules(request.topic)
    shown = request.shown([http.schedule_of(state) for state in found[:ROWS]])
    values = {"topic": request.topic, "found": shown, "count": len(found)}
    return View("schedules.html", values, f"{request.topic}: schedules")


@PAGES.post("/topics/{topic}/schedules/{name}/{verb}", Role.OPERATOR)
async def change(request: PageRequest) -> Redirect:
    """Pause, resume or run a schedule."""
    name, verb = request.path["name"], request.path["verb"]
    admin = request.context.admin
    act = {
        "pause": admin.schedule_pause, "resume": admin.schedule_resume, "run": admin.schedule_run,
    }.get(verb)  # fmt: skip
    if act is None:
        raise ApiError("not-found", "no such page")
    notice = f"{name}: {verb}" if await act(request.topic, name) else f"{name}: nothing to do"
    return Redirect(request.url("topics", request.topic, "schedules"), notice)


@PAGES.get("/topics/{topic}/queries")
async def queries(request: PageRequest) -> View:
    """Show which queries have messages of a topic in flight, and which queries publish to it."""
    topic, admin = request.topic, request.context.admin
    held, sinks, figures = await asyncio.gather(
        admin.queries(topic),
        request.readings.get(f"sinks {topic}", lambda: admin.sinks(topic), SINKS_S),
        topic_figures(request, topic),
    )
    values = {"topic": topic, "held": held[:ROWS], "sinks": sinks[:ROWS], "figures": figures}
    return View("queries.html", values, f"{topic}: queries")


@PAGES.get("/topics/{topic}/queries/{run}/release", Role.ADMIN)
async def ask_release(request: PageRequest) -> View:
    """Show the messages that a query has in flight, and ask the user for the name of the topic."""
    run = request.path["run"]
    count = await request.context.admin.release_query(request.topic, run, force=True, dry_run=True)
    held = [each for each in await request.context.admin.queries(request.topic) if each.run == run]
    found = held[0] if held else None
    values = {"topic": request.topic, "run": run, "count": count, "held": found}
    return View("release_query.html", values, f"{request.topic}: release a query")


@PAGES.post("/topics/{topic}/queries/{run}/release", Role.ADMIN)
async def release_query(request: PageRequest) -> Redirect:
    """Give back all messages of a query."""
    request.confirm(request.topic)
    run, force = request.path["run"], request.form.get("force") == "on"
    count = await request.context.admin.release_query(request.topic, run, force=force)
    return Redirect(request.url("topics", request.topic, "queries"), f"Released {count} messages")
