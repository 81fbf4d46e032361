"""Console pages that list dead letters and the trash, and pages for actions on dead letters.

An action needs two pages. The first page shows the number of matching dead letters, a few examples,
and the equivalent command. The second page does the action. Both pages have a condition on the time
of death. So the action changes only messages that were dead when the first page was shown.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rmq.errors import InvalidValue, SendError
from rmq.features.dead_letters.reading import DeadLetterGroups
from rmq.http_framework import message as web_message, requests
from rmq.http_framework.figures import all_figures, topic_figures
from rmq.http_framework.page import PageRequest, Pages, Redirect, View, whole_number
from rmq.http_framework.principal import sees_bodies
from rmq.http_framework.problems import ApiError
from rmq.http_framework.readings import LongReading
from rmq.http_framework.render import seen
from rmq.kernel.core import failure
from rmq.kernel.core.access import Role
from rmq.kernel.core.message import Message
from rmq.kernel.topic.filter_terms import FIELDS

PAGES = Pages()

ROWS = 50
SCAN = 5_000  # dead letters that a filtered page examines in one read
SEARCH_S = 2.0  # longest search for the first match of a page
GROUPS_S = 30.0  # after this time, groups are counted again
GROUPS_SHOWN_S = 1.0  # longest wait for the groups; then the page shows the progress
COUNTED_S = 3.0  # longest count of the letters of an action; then the page says "at least"
SAMPLE = 5
WORD_CHARS = 60  # maximum length of a suggested value
TOPICS_MAX = 500  # limit of the list of topics; with more topics, the user types the name
VERBS = ("redrive", "purge", "restore")
KEEPS = {"1 hour": 3600, "1 day": 86_400, "7 days": 604_800}
RESTORE_S = 10.0


@PAGES.get("/dead-letters")
async def topics_with_dead_letters(request: PageRequest) -> View:
    """List the topics that have dead letters. The topic with the most dead letters is first."""
    every = await all_figures(request)
    found = [each for each in every if each.get("dead") or each.get("trash")]
    found.sort(key=lambda each: (-each.get("dead"), each.name))
    return View("dead_topics.html", {"found": found[:500], "count": len(found)}, "Dead letters")


@PAGES.get("/dead-letters/causes")
async def causes(request: PageRequest) -> View:
    """Show the dead letters of all topics by cause.

    If the count takes long, it continues in the background.
    """

    async def count(reading: LongReading) -> DeadLetterGroups:
        return await request.context.admin.dead_letter_causes(progress=reading.progress)

    reading = request.readings.start("causes", count, GROUPS_S)
    await reading.wait(GROUPS_SHOWN_S)
    return View("dead_causes.html", {"reading": reading}, "Dead letters by cause")


@PAGES.get("/topics/{topic}/dead-letters")
async def dead_letters(request: PageRequest) -> View:
    """List dead letters that match a filter, oldest first in each slot."""
    text, after = request.query.get("filter", "").strip(), request.query.get("cursor") or None
    found: list[web_message.StoredMessage] = []
    cursor, mistake = None, ""
    try:
        if text:
            request.disclosure.check_filter(request.context.principal, text)
        cursor, until = after, time.monotonic() + SEARCH_S
        while True:
            page = await request.context.admin.dead_letters(
                request.topic, filter=text or None, cursor=cursor, limit=ROWS, scan=SCAN, raw=True
            )
            cursor = page.cursor
            if page.messages or cursor is None or time.monotonic() > until:
                break
        found = request.shown(
            [web_message.shown(request.context, message) for message in page.messages]
        )
    except InvalidValue as error:
        if not str(error).startswith("filter: "):
            raise
        mistake = str(error)
    figures = await topic_figures(request, request.topic)
    return View(
        "dead_letters.html",
        {
            "topic": request.topic, "found": found, "cursor": cursor, "filter": text,
            "mistake": mistake, "is_first": after is None, "figures": figures, "rows": ROWS,
            "scan": SCAN, "words": _words(found),
        },
        f"{request.topic}: dead letters",
        status=400 if mistake else 200,
    )  # fmt: skip


@PAGES.get("/topics/{topic}/dead-letters/groups")
async def groups(request: PageRequest) -> View:
    """Show dead letters by cause. The page refreshes itself until the count is complete."""

    async def count(reading: LongReading) -> DeadLetterGroups:
        return await request.context.admin.dead_letter_groups(
            request.topic, progress=reading.progress
        )

    figures = await topic_figures(request, request.topic)
    reading = request.readings.start(f"groups {request.topic}", count, GROUPS_S)
    await reading.wait(GROUPS_SHOWN_S)
    return View(
        "dead_groups.html",
        {"topic": request.topic, "figures": figures, "reading": reading},
        f"{request.topic}: dead letters by cause",
    )


@PAGES.get("/topics/{topic}/trash")
async def trash(request: PageRequest) -> View:
    """List the trash, which has purged dead letters that you can restore."""
    query = requests.MessagesQuery(limit=ROWS, cursor=request.query.get("cursor") or None)
    found = await web_message.walk(request.context, request.topic, query, "trash")
    jobs = await request.context.admin.jobs(request.topic)
    return View(
        "trash.html",
        {
            "purges": [job for job in jobs if job.verb == "purge" and job.done],
            "topic": request.topic, "found": request.shown(found.messages), "cursor": found.cursor,
            "is_first": not query.cursor, "figures": await topic_figures(request, request.topic),
        },
        f"{request.topic}: trash",
    )  # fmt: skip


@PAGES.get("/topics/{topic}/dead-letters/{verb}", Role.OPERATOR)
async def ask_act(request: PageRequest) -> View | Redirect:
    """Show what an action will change, before the user confirms the action.

    If the count takes long, it continues in the background.
    """
    verb = _verb(request)
    if verb == "purge":
        request.context.require(Role.ADMIN)
    ids = request.query.getlist("ids")[:ROWS]
    text = request.query.get("filter", "").strip()
    at = request.query.get("at")
    to = request.query.get("to", "").strip() if verb == "redrive" else ""
    job = request.query.get("job", "") if verb == "restore" else ""
    others: list[str] = []  # topics that the letters can be sent to instead
    if verb == "redrive":
        topics = await request.context.admin.topics()
        others = [name for name in topics if name != request.topic]
    if to and to not in others:
        raise ApiError("invalid", f"to: {to!r} is not another topic that exists", "to")
    if at is None and not ids:
        now_ms = (await request.context.admin.stats(request.topic))["now_ms"]
        at = datetime.fromtimestamp(now_ms // 1000 + 1, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        query = {"filter": text, "at": at, "to": to, "job": job}
        return Redirect(request.url("topics", request.topic, "dead-letters", verb, **query))
    moment = _moment(at)
    # A letter in the trash has no time of death.
    chosen = "" if ids else text if verb == "restore" else _bounded(text, moment)
    if chosen:
        request.disclosure.check_filter(request.context.principal, chosen)
    found = await _counted(request, verb, ids, chosen, job)
    return View(
        "dead_act.html",
        {
            "job": job,
            "topic": request.topic, "verb": verb, "ids": ids, "filter": chosen, "typed": text,
            "count": found.count, "is_all": found.is_all,
            "sample": request.shown(
                [web_message.shown(request.context, each) for each in found.sample]
            ),
            "moment": moment, "keeps": KEEPS, "to": to, "others": others[:TOPICS_MAX],
            "is_listed": len(others) <= TOPICS_MAX,
            "command": _command(request.topic, verb, ids, chosen, to, job),
        },
        f"{request.topic}: {verb}",
    )  # fmt: skip


@PAGES.post("/topics/{topic}/dead-letters/{verb}")
async def act(request: PageRequest) -> Redirect:
    """Start a job that redrives or purges the selected dead letters, or restore them."""
    verb = _verb(request)
    conditions = _conditions(request)
    if verb == "restore":
        async with asyncio.timeout(RESTORE_S):
            purge = request.form.get("job") or None
            count = await request.context.admin.restore(request.topic, job=purge, **conditions)
        return Redirect(request.url("topics", request.topic, "dead-letters"), f"Restored {count}")
    options: dict[str, Any] = {}
    if verb == "purge":
        request.context.require(Role.ADMIN)
        request.confirm(request.topic)
        options["keep"] = KEEPS.get(request.form.get("keep", ""), 86_400)
    else:
        if request.form.get("rate", "").strip():
            options["rate"] = read_rate(request.form["rate"].strip())
        options["to"] = request.form.get("to", "").strip() or None  # job_start checks the topic
        options["fresh"] = request.form.get("fresh") == "on"
    expected = whole_number(request.form.get("expected", ""))
    if expected is None:  # the user acted before the count was finished
        ids, text = conditions.get("ids", []), conditions.get("filter", "")
        found = await _counted(request, verb, ids, text)
        expected = found.count if found.is_all else None
    job = await request.context.admin.job_start(
        request.topic, verb, conditions=conditions, by=request.context.principal.name,
        expected=expected, **options,
    )  # fmt: skip
    return Redirect(request.url("jobs", job.id), f"Started the {verb}")


HEADER_LINE = re.compile(r"([^:\r\n]+): ?([^\r\n]*)")


@PAGES.get("/topics/{topic}/dead-letters/edit/{id}", Role.ADMIN)
async def ask_edit(request: PageRequest) -> View:
    """Show the body and the headers of a dead letter in a form."""
    return await _edit_view(request)


@PAGES.post("/topics/{topic}/dead-letters/edit/{id}", Role.ADMIN)
async def edit(request: PageRequest) -> View | Redirect:
    """Send a dead letter back with the body and the headers that the user typed."""
    message = await _letter(request)
    kind, shown = _editable(message)
    changes: dict[str, Any] = {}
    typed = request.form.get("body", "").replace("\r\n", "\n")
    try:
        if typed != shown:
            changes["body"] = json.loads(typed) if kind == "json" else typed.encode()
        headers = _headers(request.form.get("headers", ""))
        if headers != message.headers:
            changes["headers"] = headers
        status = await request.context.admin.dead_letter_edit(
            request.topic, request.path["id"], **changes
        )
    except (SendError, InvalidValue, ValueError) as error:
        return await _edit_view(request, str(error))
    where = request.url("topics", request.topic, "messages", request.path["id"])
    return Redirect(where, "Sent back" if status == "redriven" else f"Not changed: it is {status}")


async def _letter(request: PageRequest) -> Message:
    found = await request.context.admin.get(request.topic, request.path["id"])
    if found is None or found.queue != "dead":
        raise ApiError("not-found", "the message is not a dead letter", "id")
    if not sees_bodies(request.context.principal):
        raise ApiError("forbidden", "you may not see bodies")
    return found


async def _edit_view(request: PageRequest, mistake: str = "") -> View:
    message = await _letter(request)
    kind, text = _editable(message)
    headers = "\n".join(f"{name}: {value}" for name, value in message.headers.items())
    return View(
        "dead_edit.html",
        {
            "topic": request.topic, "id": request.path["id"], "kind": kind, "mistake": mistake,
            "body": request.form.get("body", text), "headers": request.form.get("headers", headers),
            "can_headers": seen(headers) == headers,
            "figures": await topic_figures(request, request.topic),
        },
        f"{request.topic}: edit a dead letter",
        status=400 if mistake else 200,
    )  # fmt: skip


def _editable(message: Message) -> tuple[str, str]:
    """Return how the user can edit a body, and its text.

    The way is "json", "text", or "" if the user cannot edit the body.
    """
    if isinstance(message.body, bytes) and not message.unreadable:
        text = message.body.decode(errors="replace")
        is_plain = text.encode() == message.body and seen(text) == text and "\r" not in text
        return ("text", text) if is_plain else ("", "")
    if message.unreadable:
        return "json", ""
    try:  # ASCII, so that no character is invisible
        return "json", json.dumps(message.body, indent=2, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return "", ""


def _headers(text: str) -> dict[str, str]:
    headers = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        match = HEADER_LINE.fullmatch(line)
        if match is None:
            raise InvalidValue(f"headers: {line[:60]!r}; give a name, a colon and a value")
        headers[match[1].strip()] = match[2].strip()
    return headers


def _verb(request: PageRequest) -> str:
    verb = request.path["verb"]
    if verb not in VERBS:
        raise ApiError("not-found", "no such page")
    return verb


def _bounded(text: str, moment: datetime) -> str:
    """Add a condition to a filter: messages that die after this moment do not match."""
    bound = f"died<{moment.strftime('%Y-%m-%dT%H:%M:%SZ')}"
    return f"({text}) and {bound}" if text else bound


def _conditions(request: PageRequest) -> dict[str, Any]:
    ids = request.form.get("ids", "").split()
    text = request.form.get("filter", "").strip()
    if (
        request.path["verb"] == "restore"
        and request.form.get("all") == "on"
        and not ids
        and not text
    ):
        return {}
    if bool(ids) == bool(text):
        raise ApiError("invalid", "the form has neither letters nor a filter; go back")
    if ids:
        return {"ids": ids[:ROWS]}
    request.disclosure.check_filter(request.context.principal, text)
    return {"filter": text}


@dataclass(frozen=True, slots=True)
class _Counted:
    """The number of matching dead letters, whether the count is complete, and some examples."""

    count: int
    is_all: bool
    sample: list[Message]


async def _counted(
    request: PageRequest, verb: str, ids: list[str], chosen: str, job: str = ""
) -> _Counted:
    queue = "trash" if verb == "restore" else "dead"
    if ids:
        found = [await request.context.admin.get(request.topic, id, raw=True) for id in ids]
        there = [message for message in found if message and message.queue == queue]
        return _Counted(len(there), True, there[:SAMPLE])
    if queue == "trash":
        count = await request.context.admin.restore(
            request.topic, filter=chosen or None, job=job or None, dry_run=True
        )
        return _Counted(count, True, [])

    async def count_all(reading: LongReading) -> list[Message]:
        sample: list[Message] = []
        cursor = None
        while True:
            page = await request.context.admin.dead_letters(
                request.topic, filter=chosen, cursor=cursor, limit=1000, scan=SCAN, raw=True
            )
            sample = reading.found = [*sample, *page.messages][:SAMPLE]
            reading.progress(reading.done + len(page.messages), 0)
            if page.cursor is None:
                return sample
            cursor = page.cursor

    key = f"count {request.topic} {request.context.principal.role} {chosen}"
    reading = request.readings.start(key, count_all, GROUPS_S)
    await reading.wait(COUNTED_S)
    if reading.error:
        raise ApiError("invalid", reading.error)
    return _Counted(reading.done, reading.ended is not None, reading.found or [])


def _moment(text: str | None) -> datetime:
    """Parse the time at which the page was shown. An action ignores messages that died later."""
    try:
        moment = datetime.strptime(text or "", "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return datetime.now(UTC)
    return moment.replace(tzinfo=UTC)


def _command(topic: str, verb: str, ids: list[str], chosen: str, to: str, job: str) -> str:
    words = ["rmq", "dlq", verb, topic]
    if ids:
        words += [f"--id {id}" for id in ids]
    else:
        words.append(shlex.quote(chosen) if chosen else "--all")
    return " ".join([*words, *([f"--to {to}"] if to else []), *([f"--job {job}"] if job else [])])


def read_rate(text: str) -> float:
    """Parse a number of messages per second."""
    try:
        rate = float(text)
    except ValueError:
        raise ApiError(
            "invalid", "rate: enter messages per second, or leave it empty", "rate"
        ) from None
    if not 0 < rate <= 1_000_000:
        raise ApiError("invalid", "rate: enter 1 to 1000000 messages per second", "rate")
    return rate


def _words(found: list[web_message.StoredMessage]) -> str:
    """Return suggestions for a filter: the names of fields, and their values on the page."""
    values: dict[str, set[str]] = {"reason": set(failure.REASONS.values())}

    def add(name: str, value: str) -> None:
        if value == seen(value) and value.isprintable() and name.isprintable():
            values.setdefault(name, set()).add(value)

    for message in found:
        if message.type:
            add("type", message.type)
        if message.group:
            add("group", message.group)
        if message.failure:
            add("error", message.failure.error.partition(":")[0][:WORD_CHARS])
            add("fingerprint", message.failure.fingerprint)
        for name, value in message.headers.items():
            add(f"header.{name}", value[:WORD_CHARS])
    plain = [name for name in FIELDS if name not in values and "." not in name]
    rows = [(name, sorted(known)[:20]) for name, known in sorted(values.items())]
    rows += [(name, []) for name in plain] + [("body.", [])]
    return "\n".join("\t".join([name, *values]) for name, values in rows)
