"""The commands `rmq peek`, `rmq get` and `rmq result`, which show messages."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal

import click

import rmq
from rmq.cli_framework import output, text
from rmq.cli_framework.app import ERROR, PARTLY, Command, NotFound
from rmq.cli_framework.message import (
    QUEUES,
    detail,
    held_text,
    no_message,
    outcome_pairs,
    tabulate,
)
from rmq.cli_framework.options import common_options, filter_argument
from rmq.cli_framework.param_types import DURATION, MESSAGE_ID, MESSAGE_TYPE, QUEUE
from rmq.features.messages.flows import LIMIT_MAX, PEEK_MAX, SCAN, PeekPage
from rmq.kernel.topic.filter import DeadLetterFilter

Queue = Literal["store", "prepare", "dead"]
_WITHOUT_RESULT = {
    "waiting": "waits, and keeps no result",
    "in_flight": "is in flight, and keeps no result",
    "dead": "is a dead letter, and keeps no result",
    "gone": "is unknown, or it ended and its result is not kept",
}


@click.command(
    cls=Command,
    examples=(
        "rmq peek orders --limit 5",
        "rmq peek orders --queue in-flight --json | jq .id",
        "rmq peek orders 'type=refund and body contains \"Smith\"'",
        "rmq peek orders --limit 100 --cursor CURSOR",
    ),
    watch=True,
)
@click.argument("topic")
@filter_argument
@click.option(
    "--queue",
    type=QUEUE,
    default="store",
    show_default=True,
    metavar="QUEUE",
    help="store (or waiting), prepare (or in-flight), or dead.",
)
@click.option("--limit", type=int, default=10, show_default=True, help="Maximum number to show.")
@click.option("--slot", type=int, help="Only this slot.")
@click.option("--type", "of_type", type=MESSAGE_TYPE, help="Only messages of this type.")
@click.option("--group", "of_group", metavar="NAME", help="Only messages of this group.")
@click.option(
    "--scan", type=click.IntRange(min=1), default=PEEK_MAX, show_default=True, metavar="N",
    help="Stop after about N messages were examined.",
)  # fmt: skip
@click.option("--cursor", metavar="CURSOR", help="Continue with the cursor of the previous page.")
def peek(
    topic: str, wanted: DeadLetterFilter | None, queue: Queue, limit: int, slot: int | None,
    of_type: str | None, of_group: str | None, scan: int, cursor: str | None,
) -> None:  # fmt: skip
    """Show messages of TOPIC without receiving them.

    Waiting messages of a slot (part of the topic) are in the order of delivery. Messages of
    different slots have no order. A FILTER searches, for example 'body contains "Smith"'.
    docs/dead-letters.md describes filters. --json prints NDJSON with complete bodies. Each line has
    a field `cursor`. To continue after a line, pass this field to --cursor. The field is null on
    the last line.
    """
    if limit < 1:
        raise click.UsageError("--limit: give 1 or more")
    common = common_options()
    with common.client() as client:
        marks = {"type": of_type, "group": of_group}
        page = read_pages(
            client, topic, queue, limit, slot=slot, cursor=cursor, marks=marks, wanted=wanted,
            scan=scan,
        )  # fmt: skip
        messages = page.messages
        if queue == "store" and not common.json:
            figures = client.admin.stats(topic)
            if figures["held"]:
                common.note(f"{topic}: {held_text(figures)}")
    if common.json:
        output.lines(text.message_fields(m) | {"cursor": page.cursor} for m in messages)
    elif messages:
        tabulate([messages], queue)
    else:
        such = "".join(f" of {name} {text}" for name, text in marks.items() if text is not None)
        such += "" if wanted is None else " that matches the filter"
        such += "" if page.cursor is None else f" among about {scan} messages"
        more = "" if cursor is None else " more"
        common.note(f"{topic}: nothing{more}{such} is {QUEUES[queue]}")
    if page.cursor is not None:
        such = "the first" if cursor is None else "the next"
        common.note(f"{such} {text.number(len(messages))}; more: --cursor {page.cursor}")


def read_pages(
    client: rmq.Client,
    topic: str,
    queue: Queue,
    limit: int,
    *,
    slot: int | None = None,
    cursor: str | None = None,
    marks: dict[str, str | None],
    wanted: DeadLetterFilter | None,
    scan: int,
) -> PeekPage:
    """Return up to `limit` matching messages after the cursor.

    The function examines approximately `scan` messages.
    """
    messages: list[rmq.Message] = []
    examined = 0
    while True:
        page = client.admin.peek_page(
            topic, queue, slot=slot, cursor=cursor, type=marks["type"], group=marks["group"],
            filter=wanted, limit=min(LIMIT_MAX, limit - len(messages)), scan=min(SCAN, scan),
        )  # fmt: skip
        messages += page.messages
        examined += SCAN
        if page.cursor is None or len(messages) == limit or examined >= scan:
            return PeekPage(sorted(messages, key=lambda message: message.slot), page.cursor)
        cursor = page.cursor


@click.command(cls=Command, examples=("rmq get orders 34qdd3l8pc001f8d2kpl0v9r4c",))
@click.argument("topic")
@click.argument("id", type=MESSAGE_ID)
def get(topic: str, id: rmq.MessageId) -> None:
    """Show the message ID of TOPIC in full, from any queue.

    If the message has ended and RMQ keeps its result, show the result (see rmq result).
    """
    common = common_options()
    with common.client() as client:
        message = client.admin.get(topic, id)
        state = client.topic(topic).result(id).read()
        if message is None and state.outcome is None:
            raise no_message(topic, id)
        group = None
        if message and message.held and message.group and not common.json:
            group = client.admin.group(topic, message.group, id=id)
    if message is None:
        _show_result(state)
    else:
        detail(message, common.json, group.message_waits_for if group else "", state.progress)


@click.command(
    cls=Command,
    examples=(
        "rmq result imports 34qdd3l8pc001f8d2kpl0v9r4c",
        "rmq result imports 34qdd3l8pc001f8d2kpl0v9r4c --wait 1m",
        "rmq result imports 34qdd3l8pc001f8d2kpl0v9r4c --json | jq .outcome.value",
    ),
    watch=True,
)
@click.argument("topic")
@click.argument("id", type=MESSAGE_ID)
@click.option("--wait", type=DURATION, help="Longest wait for the end of the message.")
def result(topic: str, id: rmq.MessageId, wait: float | None) -> int:
    """Show the progress and the result of the message ID of TOPIC.

    RMQ keeps results only of messages that were sent with keep_result. Exit code 0 means that the
    message succeeded. Exit code 1 means that the message ended in another way. Exit code 4 means
    that the message has not ended. Exit code 3 means that the id is unknown, or that RMQ keeps no
    result of the message.
    """
    common = common_options()
    with common.client() as client:
        handle = client.topic(topic).result(id)
        if wait:
            with suppress(rmq.NotFinished, rmq.ResultNotFound):
                handle.wait(wait)
        state = handle.read()
    if state.outcome is None and (state.place == "gone" or not state.keeps):
        raise NotFound(f"message {id} of topic {topic!r} {_WITHOUT_RESULT[state.place]}")
    _show_result(state)
    if state.outcome is None:
        return ERROR if state.place == "dead" else PARTLY
    return 0 if state.outcome.outcome in ("succeeded", "handed_over") else ERROR


def _show_result(state: rmq.ResultState) -> None:
    if common_options().json:
        output.document(_result_fields(state))
        return
    output.details([("id", str(state.id)), *outcome_pairs(state)])
    if state.outcome and state.outcome.failure and state.outcome.failure.traceback:
        output.block("traceback", state.outcome.failure.traceback)


def _result_fields(state: rmq.ResultState) -> dict[str, Any]:
    outcome = None
    if state.outcome is not None:
        outcome = text.fields(state.outcome) | {"error": state.outcome.error}
        del outcome["value"]
        outcome |= {
            name.replace("body", "value", 1): value
            for name, value in text.body_fields(state.outcome.value).items()
        }
    progress = None if state.progress is None else text.fields(state.progress)
    return text.fields(state) | {"progress": progress, "outcome": outcome}
