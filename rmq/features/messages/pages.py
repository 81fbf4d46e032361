"""Console pages of messages: a list of a queue, and a page for a single message."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmq.errors import InvalidFilter
from rmq.http_framework import message as web_message, requests
from rmq.http_framework.page import PageRequest, Pages, Redirect, View, duration, whole_number
from rmq.http_framework.problems import ApiError
from rmq.kernel.results.outcome import NOT_STORED

if TYPE_CHECKING:
    from rmq.client.topic import AsyncTopic


PAGES = Pages()

ROWS = 50
SCAN = 5_000  # messages that a search examines in one call of Admin.peek_page
SEARCH_S = 2.0  # longest search for the first match of a page
QUEUES = {"store": "waiting", "prepare": "in flight", "dead": "dead", "trash": "in the trash"}
BODY_VIEWS = {"": "decoded", "text": "text", "hex": "hex"}
LISTED = ("store", "prepare")  # queues that this page lists; dead letters have another page


@dataclass(frozen=True, slots=True)
class ShownAttempt:
    """An attempt, as a row of a list.

    Attributes:
        key: Name of the row. It stays the same when rows are added.
        attempt: The attempt.
        is_same_error: Whether the row above has the same error.
        traceback: Traceback that the user can unfold. Empty if there is none, if the row above
            shows it, or if the user may not see it.
    """

    key: str
    attempt: web_message.Attempt
    is_same_error: bool
    traceback: str


@PAGES.get("/topics/{topic}/messages")
async def messages(request: PageRequest) -> View:
    """List a queue of a topic, slot by slot."""
    queue = request.word("queue", LISTED, "store")
    slots = (await request.context.admin.settings(request.topic)).slots
    slot = request.number("slot", 0, slots - 1, 0) if request.query.get("slot") else None
    text, after = request.query.get("filter", "").strip(), request.query.get("cursor") or None
    found, mistake, examined = web_message.MessageList(messages=[], cursor=None), "", 0
    if text:
        try:
            found, examined = await _search(request, queue, slot, text, after)
        except InvalidFilter as error:
            mistake = str(error)
    else:
        query = requests.MessagesQuery(queue=queue, slot=slot, limit=ROWS, cursor=after)  # type: ignore[arg-type]
        found = await web_message.walk(request.context, request.topic, query, query.queue)
    return View(
        "messages.html",
        {
            "topic": request.topic, "queue": queue,
            "queues": {name: QUEUES[name] for name in LISTED},
            "found": request.shown(found.messages), "cursor": found.cursor, "slot": slot,
            "slots": slots, "is_first": after is None, "filter": text, "mistake": mistake,
            "examined": examined, "command": _command(request.topic, queue, text),
        },
        f"{request.topic}: messages",
        status=400 if mistake else 200,
    )  # fmt: skip


def _command(topic: str, queue: str, text: str) -> str:
    words = ["rmq", "peek", topic, *([shlex.quote(text)] if text else [])]
    return " ".join([*words, *(["--queue in-flight"] if queue == "prepare" else [])])


async def _search(
    request: PageRequest, queue: str, slot: int | None, text: str, cursor: str | None
) -> tuple[web_message.MessageList, int]:
    """Return the first matching messages after a cursor, and how many messages were examined.

    The search stops after some seconds. To continue the search, use the cursor of the result.
    """
    request.disclosure.check_filter(request.context.principal, text)
    until, examined = time.monotonic() + SEARCH_S, 0
    while True:
        page = await request.context.admin.peek_page(
            request.topic, queue, slot=slot, cursor=cursor, limit=ROWS, filter=text, scan=SCAN,  # type: ignore[arg-type]
            raw=True,
        )  # fmt: skip
        cursor, examined = page.cursor, examined + SCAN
        if page.messages or cursor is None or time.monotonic() > until:
            break
    messages = [web_message.shown(request.context, each) for each in page.messages]
    return web_message.MessageList(messages=messages, cursor=cursor), examined


@PAGES.get("/topics/{topic}/find")
async def find(request: PageRequest) -> Redirect:
    """Redirect to the page of the message whose id the user typed."""
    return Redirect(
        request.url("topics", request.topic, "messages", _id(request.query.get("id", "").strip()))
    )


@PAGES.get("/topics/{topic}/messages/{id}")
async def message(request: PageRequest) -> View:
    """Show a message: its state, its body, its headers and its failures."""
    id = _id(request.path["id"])
    found = await request.context.admin.get(request.topic, id, raw=True)
    result = await request.context.client.topic(request.topic).result(id).read()
    shown_result = request.shown(web_message.shown_result(request.context, result))
    if found is None:
        if shown_result.outcome is None:
            raise ApiError("not-found", f"the message {id} is settled or unknown", "id")
        return View(
            "result.html",
            {"topic": request.topic, "message": shown_result, "not_stored": NOT_STORED},
            f"{request.topic}: {id}",
        )
    state = None
    if found.held and found.group:
        state = await request.context.admin.group(request.topic, found.group, id=found.id)
    shown = request.shown(web_message.shown(request.context, found))
    return View(
        "message.html",
        {
            "topic": request.topic, "message": shown, "group": state, "state": QUEUES[shown.queue],
            "how": request.word("as", BODY_VIEWS, ""), "body_views": BODY_VIEWS,
            "attempts": shown_attempts(shown.attempts), "not_kept": _not_kept(shown.attempts),
            "progress": shown_result.progress,
        },
        f"{request.topic}: {id}",
    )  # fmt: skip


def shown_attempts(attempts: Sequence[web_message.Attempt]) -> list[ShownAttempt]:
    """Convert attempts to rows, newest first. Mark a row if the row above has the same error."""
    rows: list[ShownAttempt] = []
    error = traceback = ""
    for place, each in enumerate(attempts):
        is_same_error = bool(each.error) and each.error == error
        is_hidden = each.traceback == web_message.HIDDEN or (
            is_same_error and each.traceback == traceback
        )
        shown = "" if is_hidden else each.traceback
        rows.append(ShownAttempt(str(len(attempts) - place), each, is_same_error, shown))
        error, traceback = each.error, each.traceback
    return rows


def _not_kept(attempts: Sequence[web_message.Attempt]) -> int:
    numbers = [each.number for each in attempts if each.number is not None]
    return max(0, numbers[-1] - 1) if numbers else 0


@PAGES.post("/topics/{topic}/messages/{id}/cancel")
async def cancel(request: PageRequest) -> Redirect:
    """Cancel a waiting message, or request the cancellation of a message in flight."""
    topic = await _opened(request)
    status = await topic.cancel(_id(request.path["id"]), running=True)
    if status == "requested":
        return _back(request, "Its cancellation is requested")
    if status == "already_requested":
        return _back(request, "Its cancellation was requested before")
    if status == "cancelled":
        return Redirect(
            request.url("topics", request.topic, "messages"), f"Cancelled {request.path['id']}"
        )
    return _back(request, f"Not cancelled: it is {status}")


@PAGES.post("/topics/{topic}/messages/{id}/reschedule")
async def reschedule(request: PageRequest) -> Redirect:
    """Give a waiting message another due time."""
    delay = duration(request.form.get("delay", ""), "delay")
    topic = await _opened(request)
    return _back(request, f"Time: {await topic.reschedule(_id(request.path['id']), delay=delay)}")


@PAGES.post("/topics/{topic}/messages/{id}/priority")
async def priority(request: PageRequest) -> Redirect:
    """Give a waiting message another priority."""
    number = whole_number(request.form.get("priority", ""))
    if number is None:
        raise ApiError("invalid", "priority: enter a number, 17 or more", "priority")
    topic = await _opened(request)
    return _back(request, f"Priority: {await topic.set_priority(_id(request.path['id']), number)}")


async def _opened(request: PageRequest) -> AsyncTopic:
    topic = request.context.client.topic(request.topic)
    await topic.open(create=False)
    return topic


def _id(text: str) -> str:
    if len(text) != 26 or not set(text) <= set("0123456789abcdefghijklmnopqrstuv"):
        raise ApiError("not-found", "a message id has 26 characters, 0 to 9 and a to v", "id")
    return text


def _back(request: PageRequest, notice: str) -> Redirect:
    return Redirect(request.url("topics", request.topic, "messages", request.path["id"]), notice)
