"""Schedules of a topic, and the queries and sinks that Spark has on it."""

from __future__ import annotations

import asyncio

from rmq.features.schedules import http
from rmq.kernel.core.access import Role
from rmq.web.figures import topic_figures
from rmq.web.page import Ask, Pages, Redirect, View
from rmq.web.problems import ApiError

PAGES = Pages()

ROWS = 500
SINKS_S = 10.0  # finding them walks all keys of the database


@PAGES.get("/topics/{topic}/schedules")
async def schedules(ask: Ask) -> View:
    """List the schedules of a topic; those that are due first come first."""
    found = await ask.at.admin.schedules(ask.topic)
    shown = ask.shown([http.schedule_of(state) for state in found[:ROWS]])
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
    held, sinks, figures = await asyncio.gather(
        ask.at.admin.queries(ask.topic),
        ask.readings.get(f"sinks {ask.topic}", lambda: ask.at.admin.sinks(ask.topic), SINKS_S),
        topic_figures(ask, ask.topic),
    )
    return View(
        "queries.html",
        {"topic": ask.topic, "held": held[:ROWS], "sinks": sinks[:ROWS], "figures": figures},
        f"{ask.topic}: queries",
    )


@PAGES.get("/topics/{topic}/queries/{run}/release", Role.ADMIN)
async def ask_release(ask: Ask) -> View:
    """Show what a query holds, and ask for the name of the topic."""
    run = ask.path["run"]
    count = await ask.at.admin.release_query(ask.topic, run, force=True, dry_run=True)
    held = [each for each in await ask.at.admin.queries(ask.topic) if each.run == run]
    return View(
        "release_query.html",
        {"topic": ask.topic, "run": run, "count": count, "held": held[0] if held else None},
        f"{ask.topic}: release a query",
    )


@PAGES.post("/topics/{topic}/queries/{run}/release", Role.ADMIN)
async def release_query(ask: Ask) -> Redirect:
    """Give back all that a query holds."""
    ask.confirm(ask.topic)
    force = ask.form.get("force") == "on"
    count = await ask.at.admin.release_query(ask.topic, ask.path["run"], force=force)
    return Redirect(ask.url("topics", ask.topic, "queries"), f"Released {count} messages")
