"""Options of commands that select dead letters, and texts that several commands print."""

from __future__ import annotations

from typing import Any

import click

from rmq.cli_framework import text as terminal_text
from rmq.cli_framework.app import ERROR, PARTLY, Failed, NotFound, with_options
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import DURATION, MESSAGE_ID, MESSAGE_TYPE
from rmq.kernel.core.failure import REASONS
from rmq.kernel.topic.filter import DeadLetterFilter, joined, parse
from rmq.kernel.topic.filter_terms import Operand

OLDER_THAN = click.option(
    "--older-than", type=DURATION, help="Only dead letters that died at least this long ago."
)
CONDITIONS = (
    click.option("--id", "ids", type=MESSAGE_ID, multiple=True, help="Only these."),
    click.option(
        "--reason", type=click.Choice([*REASONS.values()]), help="Only those with this reason."
    ),
    click.option("--error", metavar="TEXT", help="Only dead letters whose error contains TEXT."),
    OLDER_THAN,
    click.option("--type", type=MESSAGE_TYPE, help="Only dead letters of this type."),
)
filter_options = with_options(*CONDITIONS)
# The trash cannot be searched by time of death.
trash_options = with_options(*(option for option in CONDITIONS if option is not OLDER_THAN))


def conditions_given(
    filters: dict[str, Any], wanted: DeadLetterFilter | None = None
) -> dict[str, Any]:
    """Return the conditions that the user gave as options."""
    given = {name: list(v) if name == "ids" else v for name, v in filters.items() if v or v == 0}
    return given if wanted is None else {**given, "filter": wanted}


def filter_of(filters: dict[str, Any], wanted: DeadLetterFilter | None) -> DeadLetterFilter | None:
    """Combine FILTER and all options except --id into one filter.

    Return None if the user gave no condition.
    """
    terms = [
        f"{name}{' contains ' if name == 'error' else '='}{Operand(value)}"
        for name, value in conditions_given(filters).items()
        if name != "older_than"
    ]
    if filters["older_than"] is not None:
        terms.append(f"age>={filters['older_than']}s")
    return joined([*map(parse, terms), *([] if wanted is None else [wanted])])


def describe(count: int, filters: dict[str, Any]) -> str:
    """Describe the selected dead letters to the user: their number and the conditions."""
    conditions = [
        f"{name.replace('_', '-')} {value}" for name, value in filters.items() if name != "ids"
    ]
    text = terminal_text.plural(count, "dead letter")
    return f"{text} ({', '.join(conditions)})" if conditions else text


def require_matches(topic: str, matched: int, given_filters: dict[str, Any]) -> None:
    """End the command with an error if no dead letter matched."""
    if not matched:
        such = "such " if given_filters else ""
        raise NotFound(f"topic {topic!r} has no {such}dead letters; nothing was done")


def print_dry_run(topic: str, matched: int, text: str) -> None:
    """Print how many dead letters matched, and that nothing was changed."""
    record = {"topic": topic, "dry_run": True, "matched": matched}
    common_options().report(record, f"{topic}: {text}; nothing was changed")


def report_skipped(
    given_filters: dict[str, Any], matched: int, done: int, unreadable: int = 0
) -> int | None:
    """Report dead letters that the command did not change. Return the exit code."""
    common = common_options()
    if unreadable:
        message = (
            f"{terminal_text.plural(unreadable, 'dead letter')} cannot be read and stayed; "
            "find them with rmq dlq ls, delete them with rmq dlq purge --id"
        )
        raise Failed(message, PARTLY if done else ERROR)
    asked = len(set(given_filters.get("ids", [])))
    if asked > done:
        common.note(
            f"{terminal_text.number(asked - done)} of "
            f"{terminal_text.plural(asked, 'id')} did not match"
        )
        return PARTLY
    if done < matched:
        common.note(f"{terminal_text.number(matched - done)} were gone before they were reached")
        return PARTLY
    return None
