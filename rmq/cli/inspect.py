"""`rmq peek`, `rmq get`: show messages without receiving them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, Literal

import click

import rmq
from rmq.cli import output
from rmq.cli.app import Command, NotFound, common_options
from rmq.cli.output import Column
from rmq.cli.param_types import MESSAGE_ID, MESSAGE_TYPE, QUEUE
from rmq.cli.tables import WINDOW
from rmq.cli.topic_list import held_text
from rmq.core.fingerprint import fingerprint
from rmq.protocol.flows.peek_pages import LIMIT_MAX, PeekPage

QUEUES = {"store": "waiting", "prepare": "in flight", "dead": "dead"}
HELD = "held by a query"
PATIENCE_S = 0.3  # a table waits so long for the rows that decide on its widths
Queue = Literal["store", "prepare", "dead"]
ID, SLOT = Column("ID", style="cyan"), Column("SLOT", right=True)
TRIES, BODY = Column("TRIES", right=True), Column("BODY", cut=True)
INDENT = 2  # of a block
ERROR = Column("ERROR", cut=True, style="red")


def age(since: datetime | None) -> str:
    """Return how long ago, by this machine's clock; `dlq show` has the exact time."""
    if since is None:
        return "-"
    return output.span(max(0, (datetime.now(UTC) - since) / timedelta(milliseconds=1)))


def _body(message: rmq.Message) -> str:
    text = output.body_text(message.body)
    return f"{text}  ({message.unreadable})" if message.unreadable else text


def _error(message: rmq.Message) -> str:
    return message.failure.error if message.failure else ""


def _row(m: rmq.Message) -> list[str]:
    """Return the cells of a message, without its type."""
    if m.queue == "dead":
        reason = m.failure.reason if m.failure else "-"
        return [str(m.id), age(m.died), reason, str(m.deliveries), _error(m), _body(m)]
    if m.queue == "prepare":
        until = HELD if m.held_by_query else output.clock(m.deadline)
        return [str(m.id), str(m.slot), until, str(m.deliveries), _body(m)]
    priority = "-" if m.priority is None else str(m.priority)
    return [str(m.id), str(m.slot), priority, output.clock(m.due), str(m.deliveries), _body(m)]


_COLUMNS = {
    "dead": [ID, Column("DEAD-FOR", right=True), Column("REASON"), TRIES, ERROR, BODY],
    "prepare": [ID, SLOT, Column("LEASED-UNTIL"), TRIES, BODY],
    "store": [ID, SLOT, Column("PRIORITY", right=True), Column("DUE"), TRIES, BODY],
}


def tabulate(pages: Iterable[Sequence[rmq.Message]], queue: str) -> None:
    """Print messages of one queue as a table, page by page as they are read.

    The pages that were read by PATIENCE_S decide which columns there are, and how wide.
    """
    left, first = iter(pages), list[rmq.Message]()
    until = time.monotonic() + PATIENCE_S
    for page in left:
        first += page
        if len(first) >= WINDOW or (first and time.monotonic() > until):
            break
    if not first:
        return
    messages, columns = chain(first, chain.from_iterable(left)), _COLUMNS[queue]
    if any(m.type for m in first):
        typed = [ID, Column("TYPE"), *columns[1:]]
        rows = ([str(m.id), m.type or "-", *_row(m)[1:]] for m in messages)
        output.table(typed, rows, len(first))
    else:
        output.table(columns, map(_row, messages), len(first))


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
@click.option(
    "--limit", type=int, default=10, show_default=True, help="The largest number to show."
)
@click.option("--slot", type=int, help="Only this slot.")
@click.option("--type", "of_type", type=MESSAGE_TYPE, help="Only messages of this type.")
@click.option("--cursor", metavar="CURSOR", help="Go on where the page before ended, as it told.")
def peek(
    topic: str,
    queue: Queue,
    limit: int,
    slot: int | None,
    of_type: str | None,
    cursor: str | None,
) -> None:
    """Show messages of TOPIC without receiving them.

    Waiting messages are listed in the order in which their slot would deliver them; order is
    promised inside a slot, not across slots. With --json: NDJSON, with whole bodies and the
    cursor for --cursor, null at the end.
    """
    if limit < 1:
        raise click.UsageError("--limit: give 1 or more")
    common = common_options()
    with common.client() as client:
        page = read_pages(client, topic, queue, limit, slot=slot, cursor=cursor, of_type=of_type)
        messages = page.messages
        if queue == "store" and not common.json:
            figures = client.admin.stats(topic)
            if figures["held"]:
                common.note(f"{topic}: {held_text(figures)}")
    if common.json:
        output.lines(output.message_fields(m) | {"cursor": page.cursor} for m in messages)
    elif messages:
        tabulate([messages], queue)
    else:
        such = "" if of_type is None else f" of type {of_type}"
        more = "" if cursor is None else " more"
        common.note(f"{topic}: nothing{more}{such} is {QUEUES[queue]}")
    if page.cursor is not None:
        such = "the first" if cursor is None else "the next"
        common.note(f"{such} {output.number(len(messages))}; more: --cursor {page.cursor}")


def read_pages(
    client: rmq.Client,
    topic: str,
    queue: Queue,
    limit: int,
    *,
    slot: int | None = None,
    cursor: str | None = None,
    of_type: str | None = None,
) -> PeekPage:
    """Return up to `limit` messages of a queue, however far they stand behind the cursor."""
    messages: list[rmq.Message] = []
    while True:
        page = client.admin.peek_page(
            topic, queue, slot=slot, cursor=cursor, type=of_type,
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
    """Show the message ID of TOPIC in full, in whichever queue it is."""
    detail(find_message(topic, id), common_options().json)


def find_message(topic: str, id: rmq.MessageId) -> rmq.Message:
    """Return a message, in whichever queue it is.

    Raises:
        NotFound: the topic does not have it.
    """
    with common_options().client() as client:
        message = client.admin.get(topic, id)
    if message is None:
        raise NotFound(f"topic {topic!r} has no message {id}: it is settled, or never existed")
    return message


def detail(message: rmq.Message, as_json: bool) -> None:
    """Print one message in full."""
    if as_json:
        fields = output.message_fields(message)
        output.document(fields | {"attempts": output.attempt_fields(message)})
        return
    pairs: list[tuple[str, str]] = [
        ("id", str(message.id)),
        (
            "queue",
            message.queue + ("" if message.queue == "dead" else f" ({QUEUES[message.queue]})"),
        ),
        ("slot", str(message.slot)),
        ("offset", str(message.offset)),
        ("made", output.fine_clock(message.id.made_at)),
        ("priority", "-" if message.priority is None else str(message.priority)),
        ("due", output.fine_clock(message.due)),
        ("expires", output.fine_clock(message.expires)),
        ("merge key", message.merge_key or "-"),
        ("type", message.type or "-"),
        ("deliveries", str(message.deliveries)),
    ]
    if message.deadline:
        pairs.append(("leased until", output.fine_clock(message.deadline)))
    if message.held_by_query:
        pairs.append(("leased", HELD))
    if message.died:
        pairs.append(("died", output.fine_clock(message.died)))
    pairs.append(("score", f"{message.score:.17g}"))
    if message.failure:
        pairs.append(("reason", message.failure.reason))
        pairs.append(("error", message.failure.error or "-"))
        pairs.append(("fingerprint", fingerprint(message.failure)))
    if message.unreadable:
        pairs.append(("unreadable", message.unreadable))
    pairs += [(f"header {name}", value) for name, value in message.headers.items()]
    output.details([(output.neutral(name), value) for name, value in pairs])
    if message.failure and message.failure.traceback:
        output.block("traceback", message.failure.traceback)
    if message.attempts:
        _list_attempts(message.attempts)
    output.block("body", _whole(message.body))


def _list_attempts(attempts: Sequence[rmq.Attempt]) -> None:
    """Print attempts, each on a line; below it its error, unless it is that of the line above."""
    lines: list[str] = []
    error, last, width = "", 1, output.terminal_width() - INDENT
    for attempt in attempts:
        number = "" if attempt.number is None else f"#{attempt.number}"
        cells = (f"{number:<4}", f"{output.fine_clock(attempt.at):<24}", f"{attempt.reason:<13}")
        lines.append(
            output.shorten("  ".join((*cells, output.neutral(attempt.worker))).rstrip(), width)
        )
        if attempt.error and attempt.error != error:
            first_line = output.neutral(attempt.error.partition("\n")[0])
            lines.append(" " * 6 + output.shorten(first_line, width - 6))
        error, last = attempt.error, attempt.number or last
    if last > 1:
        lines.append(f"{output.plural(last - 1, 'earlier one')}: not kept")
    output.block("attempts", "\n".join(lines))


def _whole(body: Any) -> str:
    if isinstance(body, bytes):
        fields = output.body_fields(body)
        text = fields.get("body_text")
        return text if text is not None else f"0x{fields['body_hex']}"
    try:
        return output.dumps(body, 2)
    except RecursionError:
        return "(it nests too deeply to be shown)"
