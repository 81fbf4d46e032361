"""Console pages of groups: held messages, and the reasons why groups are stopped."""

from __future__ import annotations

from rmq.features.groups import http
from rmq.http_framework.page import PageRequest, Pages, Redirect, View
from rmq.http_framework.problems import ApiError
from rmq.kernel.core.access import Role

PAGES = Pages()

ROWS = 50
SORTS = {
    "held": "most held",
    "oldest": "oldest held",
    "out": "most out",
    "stopped": "stopped",
    "name": "name",
}
DONE = {"pause": "Paused", "resume": "Resumed", "release": "Released"}


@PAGES.get("/topics/{topic}/groups")
async def groups(request: PageRequest) -> View:
    """List the groups of a topic, sorted, in pages."""
    sort, skip = request.word("sort", SORTS, "held"), request.number("skip", 0, 100_000, 0)
    admin, found = request.context.admin, None
    if (await admin.settings(request.topic)).groups is not None:
        found = await admin.groups(
            request.topic,
            sort=sort,  # type: ignore[arg-type]
            limit=ROWS,
            skip=skip,
            scan=http.SCAN,
        )
    values = {
        "topic": request.topic, "found": found, "sort": sort, "sorts": SORTS, "skip": skip,
        "rows": ROWS,
    }  # fmt: skip
    return View("groups.html", values, f"{request.topic}: groups")


@PAGES.get("/topics/{topic}/groups/purge", Role.ADMIN)
async def ask_purge(request: PageRequest) -> View:
    """Count the waiting messages of a group, and ask the user for the name of the topic."""
    group = request.query.get("group", "")
    count = await request.context.admin.group_purge(request.topic, group, dry_run=True)
    values = {"topic": request.topic, "group": group, "count": count}
    return View("purge_group.html", values, f"{request.topic}: purge a group")


@PAGES.post("/topics/{topic}/groups/purge", Role.ADMIN)
async def purge(request: PageRequest) -> Redirect:
    """Delete the waiting messages of a group."""
    request.confirm(request.topic)
    count = await request.context.admin.group_purge(request.topic, request.query.get("group", ""))
    return _back(request, f"Deleted {count} messages")


@PAGES.post("/topics/{topic}/groups/{verb}")
async def change(request: PageRequest) -> Redirect:
    """Pause, resume or release a group."""
    verb, group, admin = request.path["verb"], request.query.get("group", ""), request.context.admin
    if verb not in DONE:
        raise ApiError("not-found", "no such page")
    verbs = {
        "pause": admin.group_pause, "resume": admin.group_resume, "release": admin.group_release,
    }  # fmt: skip
    done = await verbs[verb](request.topic, group)
    return _back(request, f"{DONE[verb]} {group}" if done else f"{group}: nothing to do")


def _back(request: PageRequest, notice: str) -> Redirect:
    return Redirect(request.url("topics", request.topic, "groups"), notice)
