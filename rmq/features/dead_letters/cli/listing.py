"""The commands `rmq dlq ls` and `rmq dlq groups`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import rmq
from rmq.cli_framework import output, text as terminal_text
from rmq.cli_framework.message import age, tabulate
from rmq.cli_framework.options import common_options
from rmq.cli_framework.tables import Column
from rmq.features.dead_letters.reading import LIMIT_MAX, cursor_of
from rmq.kernel.core.failure import fingerprint
from rmq.kernel.topic.filter import DeadLetterFilter


def read_pages(
    client: rmq.Client,
    topic: str,
    wanted: DeadLetterFilter | None,
    cursor: str | None = None,
    size: int = LIMIT_MAX,
    *,
    raw: bool = False,
) -> Iterator[list[rmq.Message]]:
    """Yield the dead letters that match a filter, oldest first in each slot, page by page.

    Args:
        client: Client that reads the dead letters.
        topic: Name of the topic.
        wanted: Filter, or None.
        cursor: Cursor after which to start.
        size: Number of dead letters to read per page.
        raw: Whether to return records instead of decoded bodies.
    """
    while True:
        page = client.admin.dead_letters(
            topic, filter=wanted, cursor=cursor, limit=max(1, min(size, LIMIT_MAX)), raw=raw
        )
        yield page.messages
        if page.cursor is None:
            return
        cursor = page.cursor


def fields_of(message: rmq.Message) -> dict[str, Any]:
    """Return the JSON fields of a dead letter, with the fields that `--cursor` and filters use."""
    return {
        **terminal_text.message_fields(message),
        "fingerprint": fingerprint(message.failure) or None,
        "cursor": cursor_of(message),
    }


def show(pages: Iterator[list[rmq.Message]]) -> tuple[int, rmq.Message | None]:
    """Print each dead letter as soon as it is read. Return their number and the last letter."""
    count, last = 0, None

    def noted() -> Iterator[list[rmq.Message]]:
        nonlocal count, last
        for page in pages:
            if page:
                count, last = count + len(page), page[-1]
            yield page

    if common_options().json:
        output.lines(map(fields_of, chain.from_iterable(noted())))
    else:
        tabulate(noted(), "dead")
    return count, last


def _group_fields(found: rmq.DeadLetterGroups) -> Iterator[dict[str, Any]]:
    for group in found.groups:
        yield terminal_text.fields(group)
    if found.other:
        yield {"fingerprint": None, "count": found.other}


def _group_text(group: rmq.DeadLetterGroup) -> str:
    error = group.error.partition("\n")[0]
    reason = group.reason if group.reason != "failed" or not error else ""
    return ": ".join(part for part in (reason, error) if part)


def _topics_text(group: rmq.DeadLetterGroup) -> str:
    first, more = next(iter(group.topics)), len(group.topics) - 1
    return f"{first} +{more}" if more else first


def show_groups(topic: str | None, found: rmq.DeadLetterGroups) -> None:
    """Print groups of dead letters. `topic` is None for the dead letters of all topics."""
    common = common_options()
    if common.json:
        output.lines(_group_fields(found))
        return
    columns = [
        Column("FINGERPRINT"), Column("COUNT", right=True), Column("FIRST", right=True),
        Column("LAST", right=True),
        Column("EXAMPLE", wide=True) if topic else Column("TOPICS", cut=True),
        Column("ERROR", cut=True, style="red"),
    ]  # fmt: skip
    rows = [
        [
            group.fingerprint or "-", terminal_text.number(group.count), age(group.first),
            age(group.last), str(group.example) if topic else _topics_text(group),
            _group_text(group),
        ]
        for group in found.groups
    ]  # fmt: skip
    output.table(columns, rows)
    letters = terminal_text.plural(found.total, "dead letter")
    groups = terminal_text.plural(len(found.groups), "group")
    where = topic or "all topics"
    common.note(f"{where}: {letters} in {groups}; FIRST and LAST are how long ago they died")
    if found.other:
        common.note(f"{terminal_text.plural(found.other, 'dead letter')} of further groups")
    if found.unread:
        common.note(f"{terminal_text.plural(found.unread, 'dead letter')} not read: give --scan N")
