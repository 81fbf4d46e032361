"""The command `rmq topic ls`, and the message counts of all topics for other lists."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

import rmq
from rmq.cli_framework import output, text
from rmq.cli_framework.app import Command, Failed
from rmq.cli_framework.message import held_text
from rmq.cli_framework.options import common_options
from rmq.cli_framework.tables import Column
from rmq.errors import TopicNotFound, TopicVanished
from rmq.kernel.core.score import moment

if TYPE_CHECKING:
    from rmq.kernel.topic.overview import TopicOverview


_GONE = (TopicNotFound, TopicVanished)  # errors of a deleted topic
_ORDERS: dict[str, str] = {"waiting": "waiting", "dead": "dead", "late": "late_ms"}


@click.command(
    "ls",
    cls=Command,
    examples=(
        "rmq topic ls",
        "rmq topic ls 'shop.*' --sort waiting --limit 10",
        "rmq topic ls --limit 100 --cursor shop.orders",
    ),
)
@click.argument("pattern", default="*")
@click.option(
    "--sort", type=click.Choice(["name", *_ORDERS]), default="name", show_default=True,
    help="By name, or by most waiting messages, most dead letters, or longest delay.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), help="Maximum number of topics.")
@click.option("--cursor", metavar="NAME", help="Only topics after this one, by name.")
def list_topics(pattern: str, sort: str, limit: int | None, cursor: str | None) -> None:
    """List topics with their message counts. PATTERN is a name in which * and ? are wildcards."""
    if cursor is not None and sort != "name":
        raise click.UsageError("--cursor works by name; omit --sort")
    common = common_options()
    with common.client() as client:
        names = [
            name
            for name in client.admin.topics()
            if fnmatchcase(name, pattern) and (cursor is None or name > cursor)
        ]
        page = names if limit is None or sort != "name" else names[:limit]
        rows = overview(client, page)
    if sort in _ORDERS:
        rows.sort(key=lambda row: -row.get(_ORDERS[sort], 0))
        rows = rows[:limit]
    if common.json:
        output.document(rows)
        return
    if not rows:
        is_filtered = pattern != "*" or cursor is not None
        common.note(
            "no topic matches; all of them: rmq topic ls"
            if is_filtered
            else "no topics yet; create one: rmq topic create NAME"
        )
        return
    if limit is not None and limit < len(names):
        go_on = f"; go on: --cursor {rows[-1]['topic']}" if sort == "name" else ""
        common.note(f"{len(rows)} of {len(names)} topics{go_on}")
    columns = [Column("TOPIC", cut=True), Column("SLOTS", right=True)] + [
        Column(title, right=True) for title in ("WAITING", "LATER", "IN-FLIGHT", "DEAD")
    ]
    output.table(
        columns,
        [
            [
                row["topic"],
                *(
                    text.number(row[key]) if key in row else "?"
                    for key in ("slots", "waiting", "later", "in_flight", "dead")
                ),
            ]
            for row in rows
        ],
    )
    for row in rows:
        note_held(row)
    broken = [row for row in rows if "error" in row]
    if broken:
        raise Failed(f"{broken[0]['topic']}: {broken[0]['error']}")


def overview(client: rmq.Client, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the message counts of topics. If a topic cannot be read, it has an `error` instead."""
    return [
        {"topic": topic.name, "error": str(topic.error)}
        if topic.error is not None
        else {"topic": topic.name, "slots": topic.settings.slots}
        | {"waiting": waiting(topic.total)}
        | topic.total
        for topic in read_topics(client, names)
    ]


def read_topics(client: rmq.Client, names: Sequence[str] | None = None) -> list[TopicOverview]:
    """Read some topics, or all topics, in few round trips.

    If a topic cannot be read, it has an error. If a topic is deleted during the call, it is
    omitted.
    """
    from rmq.kernel.topic import overview as topics  # a large import that completion does not need

    listed = client.admin.topics() if names is None else names
    found = client._transport.run(topics.overview(client._prefix, listed))
    if any(isinstance(each.error, _GONE) for each in found):
        left = set(client.admin.topics())
        found = [each for each in found if each.name in left or not isinstance(each.error, _GONE)]
    return found


def waiting(figures: dict[str, int]) -> int:
    """Return the number of messages that consumers may receive now."""
    return figures["retries"] + figures["priority"] + figures["due"]


def note_held(row: dict[str, Any]) -> None:
    """Tell the user if messages wait because the topic is paused or being resized."""
    if row.get("paused_ms") or row.get("held"):
        common_options().note(f"{row['topic']}: {held_text(row)}")
    if row.get("sends_paused_ms"):
        since = text.clock(moment(row["sends_paused_ms"]))
        common_options().note(f"{row['topic']}: sends paused since {since}")
