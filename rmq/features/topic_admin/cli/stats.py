"""The command `rmq stats`, which shows the message counts of topics."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import click

import rmq
from rmq.cli_framework import output, text
from rmq.cli_framework.app import Command
from rmq.cli_framework.options import common_options
from rmq.cli_framework.tables import Column
from rmq.features.topic_admin.cli.listing import note_held, overview, waiting
from rmq.kernel.core.score import moment
from rmq.kernel.core.validation import format_duration
from rmq.kernel.topic.stats import COUNTERS, GAUGES

ROW_FIGURES = ("waiting", "later", "in_flight", "dead", "late_ms", "accepted", "settled")
ROW_TITLES = ("WAITING", "LATER", "IN-FLIGHT", "DEAD", "LATE", "ACCEPTED", "SETTLED")
BAR = 48  # cells of the longest bar; a count of 13 digits next to it still fits 80 columns
RATE_TITLES = {"accepted": "IN/S", "settled": "OUT/S"}

Counts = dict[str, Any]
Columns = list[Column]
Rows = list[list[str]]


@click.command(
    cls=Command,
    examples=("rmq stats", "rmq stats orders --slots --watch 2", "rmq stats orders --due"),
    watch=True,
)
@click.argument("topic", required=False)
@click.option("--slots", is_flag=True, help="Show a row for each slot of TOPIC.")
@click.option("--due", is_flag=True, help="Show when delayed messages of TOPIC become due.")
def stats(topic: str | None, slots: bool, due: bool) -> None:
    """Show the message counts of all topics, or all counts of one TOPIC.

    LATER counts the messages that are not due yet. LATE is the time for which the oldest due
    message has waited. Totals count from the creation of the topic. With --watch, IN/S and OUT/S
    are the numbers of messages accepted and settled per second, since the previous update.
    """
    if (slots or due) and topic is None:
        raise click.UsageError(f"--{'slots' if slots else 'due'}: name the TOPIC")
    if slots and due:
        raise click.UsageError("--due: counts include all slots; omit --slots")
    common = common_options()
    if due and topic is not None:
        with common.client() as client:
            _show_due(topic, client.admin.due_counts(topic))
        return
    with common.client() as client:
        rows, read_at = _read(client, topic, slots), time.monotonic()
    if common.json:
        output.document(_document(topic, slots, rows), rows)
    elif not rows:
        common.note("no topics yet; create one: rmq topic create NAME")
    else:
        before = common.seen.get("stats")
        rates = None if before is None else per_second(before[0], rows, read_at - before[1])
        _print(topic, slots, rows, rates)
    common.seen["stats"] = rows, read_at


def _show_due(topic: str, counts: list[rmq.DueCount]) -> None:
    records = [count._asdict() for count in counts]
    if common_options().json:
        output.document({"topic": topic, "due": records}, records)
        return
    most = max(count.messages for count in counts)
    rows = [
        [_part(before, count), text.number(count.messages), _bar(count.messages, most)]
        for before, count in pairwise((None, *counts))
        if count is not None
    ]
    columns = [Column("DUE", right=True), Column("MESSAGES", right=True), Column("HISTOGRAM")]
    output.table(columns, rows)


def _part(before: rmq.DueCount | None, count: rmq.DueCount) -> str:
    begin = "" if before is None or before.within_s is None else format_duration(before.within_s)
    if count.within_s is None:
        return f"after {begin}"
    if count.within_s == 0:
        return "now"
    end = format_duration(count.within_s)
    return f"within {end}" if begin in ("", "0s") else f"{begin} to {end}"


def _bar(messages: int, most: int) -> str:
    return "█" * -(-messages * BAR // most) if messages else ""


def _read(client: rmq.Client, topic: str | None, slots: bool) -> list[Counts]:
    if topic is None:
        return overview(client)
    if slots:
        by_slot = client.admin.stats_by_slot(topic)
        return [
            {"slot": n, "waiting": waiting(slot_counts), **slot_counts}
            for n, slot_counts in enumerate(by_slot)
        ]
    counts = client.admin.stats(topic)
    return [{"topic": topic, "waiting": waiting(counts), **counts}]


def _document(topic: str | None, slots: bool, counts: list[Counts]) -> Any:
    if topic is None:
        return counts
    return {"topic": topic, "slots": counts} if slots else counts[0]


def _cell(name: str, counts: Counts) -> str:
    if name not in counts:
        return "?"
    if name in ("paused_ms", "sends_paused_ms"):
        return text.clock(moment(counts[name])) if counts[name] else "-"
    if name.endswith("_ms"):
        return text.span(counts[name]) if counts[name] else "-"
    return text.number(counts[name])


def _rows_table(counts: list[Counts], rates: list[Counts] | None = None) -> tuple[Columns, Rows]:
    key_column = "slot" if "slot" in counts[0] else "topic"
    columns = [Column(key_column.upper(), right=key_column == "slot")]
    columns += [Column(title, right=True) for title in ROW_TITLES]
    rows = [
        [str(row_counts[key_column]), *(_cell(name, row_counts) for name in ROW_FIGURES)]
        for row_counts in counts
    ]
    if rates is not None:
        columns += [Column(title, right=True) for title in RATE_TITLES.values()]
        for row, rate in zip(rows, rates, strict=True):
            row += [text.number(round(rate[name])) if name in rate else "-" for name in RATE_TITLES]
    return columns, rows


def _topic_table(counts: Counts, rate: Counts | None = None) -> tuple[Columns, Rows]:
    columns = [Column(counts["topic"]), Column("NOW", right=True)]
    rows = [[label, _cell(name, counts)] for name, label in GAUGES.items()]
    rows += [["", ""], ["since it was created", ""]]
    rows += [[label, _cell(name, counts)] for name, label in COUNTERS.items()]
    if rate is not None:
        columns.append(Column("PER SECOND", right=True))
        for row, name in zip(rows, (*GAUGES, "", "", *COUNTERS), strict=True):
            row.append(text.number(round(rate[name])) if name in COUNTERS and name in rate else "")
    return columns, rows


def _print(
    topic: str | None, slots: bool, counts: list[Counts], rates: list[Counts] | None
) -> None:
    if topic is None or slots:
        output.table(*_rows_table(counts, rates))
    else:
        output.table(*_topic_table(counts[0], None if rates is None else rates[0]))
    for row_counts in counts:
        if "error" in row_counts:
            common_options().note(f"{row_counts['topic']}: {row_counts['error']}")
        elif topic is None:
            note_held(row_counts)


def per_second(before: list[Counts], now: list[Counts], seconds: float) -> list[Counts]:
    """Return the events per second of each row.

    If a topic was deleted and created again, its counts start at 0.
    """
    previous_by_key = {
        row_counts.get("topic", row_counts.get("slot")): row_counts for row_counts in before
    }
    rates = []
    for row_counts in now:
        previous = previous_by_key.get(row_counts.get("topic", row_counts.get("slot")), {})
        names = [name for name in COUNTERS if name in row_counts and name in previous]
        rates.append(
            {name: max(0.0, (row_counts[name] - previous[name]) / seconds) for name in names}
        )
    return rates
