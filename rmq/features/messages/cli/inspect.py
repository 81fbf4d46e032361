"""`rmq peek`, `rmq get`: show messages without receiving them."""

from __future__ import annotations

from typing import Literal

import click

import rmq
from rmq.cli_framework import output, text
from rmq.cli_framework.app import Command
from rmq.cli_framework.message import QUEUES, detail, find_message, held_text, tabulate
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import MESSAGE_ID, MESSAGE_TYPE, QUEUE
from rmq.features.messages.flows import LIMIT_MAX, PeekPage

Queue = Literal["store", "prepare", "dead"]


@click.command(
    cls=Command,
    examples=(
        "rmq peek orders --limit 5",
        "rmq peek orders --queue in-flight --json | jq .id",
        "rmq peek orders --limit 100 --cursor CURSOR",
    ),
    watch=True,
)
@click.argument("topic")
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
@click.option("--cursor", metavar="CURSOR", help="Continue with the cursor of the previous page.")
def peek(
    topic: str, queue: Queue, limit: int, slot: int | None, of_type: str | None,
    of_group: str | None, cursor: str | None,
) -> None:  # fmt: skip
    """Show messages of TOPIC without receiving them.

    Waiting messages of a slot are in the order of delivery. Messages of different slots have no
    order. --json prints NDJSON with complete bodies. Its field `cursor` is the value for --cursor
    that continues after this line (null at the end).
    """
    if limit < 1:
        raise click.UsageError("--limit: give 1 or more")
    common = common_options()
    with common.client() as client:
        wanted = {"type": of_type, "group": of_group}
        page = read_pages(client, topic, queue, limit, slot=slot, cursor=cursor, wanted=wanted)
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
        such = "".join(f" of {name} {text}" for name, text in wanted.items() if text is not None)
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
    wanted: dict[str, str | None],
) -> PeekPage:
    """Return up to `limit` matching messages after the cursor, from any number of pages."""
    messages: list[rmq.Message] = []
    while True:
        page = client.admin.peek_page(
            topic, queue, slot=slot, cursor=cursor, type=wanted["type"], group=wanted["group"],
            limit=min(LIMIT_MAX, limit - len(messages)),
        )  # fmt: skip
        messages += page.messages
        if page.cursor is None or len(messages) == limit:
            return PeekPage(sorted(messages, key=lambda message: message.slot), page.cursor)
        cursor = page.cursor


@click.command(cls=Command, examples=("rmq get orders 34qdd3l8pc001f8d2kpl0v9r4c",))
@click.argument("topic")
@click.argument("id", type=MESSAGE_ID)
def get(topic: str, id: rmq.MessageId) -> None:
    """Show the message ID of TOPIC in full, from any queue."""
    message, common = find_message(topic, id), common_options()
    state = None
    if message.held and message.group and not common.json:
        with common.client() as client:
            state = client.admin.group(topic, message.group, id=id)
    detail(message, common.json, state.message_waits_for if state else "")
