"""Schedules of a topic, and the queries and sinks that Spark has on it."""

from __future__ import annotations

import asyncio

from rmq.server.console.page import Ask, Pages, Redirect, View
from rmq.server.http.api import views
from rmq.server.http.api.problems import ApiError
from rmq.server.http.principal import Role

PAGES = Pages()

ROWS = 500


@PAGES.get("/topics/{topic}/schedules")
async def schedules(ask: Ask) -> View:
    """List the schedules of a topic; those that are due first come first."""
    found = await ask.at.admin.schedules(ask.topic)
    shown = ask.shown([views.schedule_of(state) for state in found[:ROWS]])
    return View(
        "schedules.html",
        {"topic": ask.topic, "found": shown, "count": len(found)},
        f"{ask.topic}: schedules",
    )


@PAGES.post("/topics/{topic}/schedules/{name}/{verb}", Role.OPERATOR)
async def change(ask: Ask) -> Redirect:
    """Pause, resume or run a schedule."""
    name, verb = ask.path["name"], ask.path["verb"]
    admin = ask.at.admin
    if verb == "pause":
        done = await admin.schedule_pause(ask.topic, name)
    elif verb == "resume":
        done = await admin.schedule_resume(ask.topic, name)
    elif verb == "run":
        await admin.schedule_run(ask.topic, name)
        done = True
    else:
        raise ApiError("not-found", "no such page")
    notice = f"{name}: {verb}" if done else f"{name}: nothing to do"
    return Redirect(ask.url("topics", ask.topic, "schedules"), notice)


@PAGES.get("/topics/{topic}/queries")
async def queries(ask: Ask) -> View:
    """Show the queries that hold messages of a topic, and those that publish to it."""
    held, sinks = await asyncio.gather(
        ask.at.admin.queries(ask.topic), ask.at.admin.sinks(ask.topic)
    )
    return View(
        "queries.html",
        {"topic": ask.topic, "held": held[:ROWS], "sinks": sinks[:ROWS]},
        f"{ask.topic}: queries",
    )
