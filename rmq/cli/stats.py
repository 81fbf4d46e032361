"""`rmq stats`: counts of topics, once or repeatedly."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import click
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

import rmq
from rmq.cli import output
from rmq.cli.app import Command, common_options
from rmq.cli.output import Column
from rmq.cli.param_types import DURATION
from rmq.cli.topics import note_held, overview, waiting
from rmq.core.message import moment

GAUGES = {
    "priority": "waiting by priority",
    "due": "waiting, timed and due",
    "retries": "waiting to be retried at once",
    "later": "not due yet",
    "in_flight": "in flight",
    "dead": "dead letters",
    "merge_windows": "open merge windows",
    "records": "message records",
    "remembered": "settled ids remembered",
    "late_ms": "first due message is late by",
    "held": "held back by a pause or limit",
    "paused_ms": "paused since",
}
COUNTERS = {
    "accepted": "accepted",
    "merged": "merged into another",
    "delivered": "delivered",
    "settled": "settled",
    "returned": "failed and went back at once",
    "rolled_back": "leases expired",
    "buried": "became dead letters",
    "redriven": "redriven",
    "cancelled": "cancelled",
    "expired": "expired",
    "dropped": "dropped as overflow",
    "purged": "purged",
    "dead_dropped": "dead letters past retention",
}
ROW_FIGURES = ("waiting", "later", "in_flight", "dead", "late_ms", "accepted", "settled")
ROW_TITLES = ("WAITING", "LATER", "IN-FLIGHT", "DEAD", "LATE", "ACCEPTED", "SETTLED")
RATE_TITLES = {"accepted": "IN/S", "settled": "OUT/S"}

Counts = dict[str, Any]
Columns = list[Column]
Rows = list[list[str]]


@click.command(
    cls=Command,
    examples=(
        "rmq stats",
        "rmq stats orders --slots --watch 2",
    ),
)
@click.argument("topic", required=False)
@click.option("--slots", is_flag=True, help="A row for each slot of TOPIC.")
@click.option("--watch", type=DURATION, metavar="N", help="Repeat every N seconds, until Ctrl-C.")
def stats(topic: str | None, slots: bool, watch: float | None) -> None:
    """Show the counts of all topics, or all counts of one TOPIC.

    LATER: not due yet. LATE: how long the first due message has waited past its due time. Counters
    start when the topic is created. With --json and --watch: one document per line.
    """
    if slots and topic is None:
        raise click.UsageError("--slots: name the TOPIC")
    if watch is not None and watch <= 0:
        raise click.UsageError("--watch: give more than 0 seconds")
    common = common_options()
    with common.client() as client:
        if watch is None:
            rows = _read(client, topic, slots)
            if common.json:
                output.document(_document(topic, slots, rows))
            elif not rows:
                common.note("no topics yet; create one: rmq topic create NAME")
            else:
                _print(topic, slots, rows)
        else:
            _watch(lambda: _read(client, topic, slots), topic, slots, watch)


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
    if name == "paused_ms":
        return output.clock(moment(counts[name])) if counts[name] else "-"
    if name == "late_ms":
        return output.span(counts[name]) if counts[name] else "-"
    return output.number(counts[name])


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
            row += [
                output.number(round(rate[name])) if name in rate else "-" for name in RATE_TITLES
            ]
    return columns, rows


def _topic_table(counts: Counts, rate: Counts | None = None) -> tuple[Columns, Rows]:
    columns = [Column(counts["topic"]), Column("NOW", right=True)]
    rows = [[label, _cell(name, counts)] for name, label in GAUGES.items()]
    rows += [["", ""], ["since it was created", ""]]
    rows += [[label, _cell(name, counts)] for name, label in COUNTERS.items()]
    if rate is not None:
        columns.append(Column("PER SECOND", right=True))
        for row, name in zip(rows, (*GAUGES, "", "", *COUNTERS), strict=True):
            row.append(
                output.number(round(rate[name])) if name in COUNTERS and name in rate else ""
            )
    return columns, rows


def _table(topic: str | None, slots: bool, counts: list[Counts]) -> tuple[Columns, Rows]:
    return _rows_table(counts) if topic is None or slots else _topic_table(counts[0])


def _print(topic: str | None, slots: bool, counts: list[Counts]) -> None:
    output.table(*_table(topic, slots, counts))
    for row_counts in counts:
        if "error" in row_counts:
            common_options().note(f"{row_counts['topic']}: {row_counts['error']}")
        elif topic is None:
            note_held(row_counts)


def _rates(before: list[Counts], now: list[Counts], seconds: float) -> list[Counts]:
    """Return the rates per second, for each row."""
    previous_by_key = {
        row_counts.get("topic", row_counts.get("slot")): row_counts for row_counts in before
    }
    rates = []
    for row_counts in now:
        previous = previous_by_key.get(row_counts.get("topic", row_counts.get("slot")), {})
        names = [name for name in COUNTERS if name in row_counts and name in previous]
        rates.append({name: (row_counts[name] - previous[name]) / seconds for name in names})
    return rates


def _watch(
    read: Callable[[], list[Counts]], topic: str | None, slots: bool, interval: float
) -> None:
    as_json, on_terminal = common_options().json, sys.stdout.isatty()
    counts, read_at = read(), time.monotonic()
    if as_json:
        _emit(topic, slots, counts)

    def draw() -> tuple[Columns, Rows] | None:
        nonlocal counts, read_at
        time.sleep(interval)
        new_counts, previous_at = read(), read_at
        read_at = time.monotonic()
        rates = _rates(counts, new_counts, read_at - previous_at)
        counts = new_counts
        if not new_counts:
            return None
        return (
            _rows_table(new_counts, rates)
            if topic is None or slots
            else _topic_table(new_counts[0], rates[0])
        )

    if as_json or not on_terminal:
        if not as_json:
            _print(topic, slots, counts)
        while True:
            table = draw()
            if as_json:
                _emit(topic, slots, counts)
            elif table:
                click.echo()
                output.table(*table)
            sys.stdout.flush()
    renderable: RenderableType = Text("reading ...")
    if counts:
        renderable = output.build(*_table(topic, slots, counts))[0]
    with Live(
        renderable, console=output.console(), auto_refresh=False, vertical_overflow="crop"
    ) as live:
        live.refresh()
        while True:
            table = draw()
            footer = Text(
                f"{time.strftime('%H:%M:%S')}, every {interval:g} s; Ctrl-C ends", style="dim"
            )
            body = output.build(*table)[0] if table else Text("no topics yet")
            live.update(output.group(body, footer), refresh=True)


def _emit(topic: str | None, slots: bool, counts: list[Counts]) -> None:
    output.line(_document(topic, slots, counts))
    sys.stdout.flush()
