"""`rmq stats`: what topics hold and have done, once or again and again."""

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
from rmq.cli.app import Leaf, session
from rmq.cli.output import Column
from rmq.cli.param_types import DURATION
from rmq.cli.topics import overview, waiting

HOLDS = {
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
}
HAS_DONE = {
    "accepted": "accepted",
    "merged": "merged into another",
    "delivered": "delivered",
    "settled": "settled",
    "returned": "failed and went back at once",
    "rolled_back": "leases run out",
    "buried": "became dead letters",
    "redriven": "redriven",
    "cancelled": "cancelled",
    "expired": "expired",
    "dropped": "dropped as overflow",
    "purged": "purged",
    "dead_dropped": "dead letters past retention",
}
ROW = ("waiting", "later", "in_flight", "dead", "late_ms", "accepted", "settled")
TITLES = ("WAITING", "LATER", "IN-FLIGHT", "DEAD", "LATE", "ACCEPTED", "SETTLED")
PACES = {"accepted": "IN/S", "settled": "OUT/S"}

Counts = dict[str, Any]
Columns = list[Column]
Rows = list[list[str]]


@click.command(
    cls=Leaf,
    examples=(
        "rmq stats",
        "rmq stats orders --slots --watch 2",
    ),
)
@click.argument("topic", required=False)
@click.option("--slots", is_flag=True, help="A row for each slot of TOPIC.")
@click.option("--watch", type=DURATION, metavar="N", help="Again every N seconds, until Ctrl-C.")
def stats(topic: str | None, slots: bool, watch: float | None) -> None:
    """Show what all topics hold, or all that is counted of one TOPIC.

    LATER is not due yet. LATE is how long the first due message has been waiting past its time;
    counts are since the topic was created. With --json and --watch: a document in a line each time.
    """
    if slots and topic is None:
        raise click.UsageError("--slots: name the TOPIC")
    if watch is not None and watch <= 0:
        raise click.UsageError("--watch: give more than 0 seconds")
    here = session()
    with here.client() as client:
        if watch is None:
            found = _read(client, topic, slots)
            if here.json:
                output.document(_document(topic, slots, found))
            elif not found:
                here.talk("no topics yet; create one: rmq topic create NAME")
            else:
                _print(topic, slots, found)
        else:
            _watch(lambda: _read(client, topic, slots), topic, slots, watch)


def _read(client: rmq.Client, topic: str | None, slots: bool) -> list[Counts]:
    if topic is None:
        return overview(client)
    if slots:
        by_slot = client.admin.stats_by_slot(topic)
        return [{"slot": n, "waiting": waiting(one), **one} for n, one in enumerate(by_slot)]
    counts = client.admin.stats(topic)
    return [{"topic": topic, "waiting": waiting(counts), **counts}]


def _document(topic: str | None, slots: bool, found: list[Counts]) -> Any:
    if topic is None:
        return found
    return {"topic": topic, "slots": found} if slots else found[0]


def _cell(name: str, one: Counts) -> str:
    if name not in one:
        return "?"
    if name == "late_ms":
        return output.span(one[name]) if one[name] else "-"
    return output.number(one[name])


def _listing(found: list[Counts], paces: list[Counts] | None = None) -> tuple[Columns, Rows]:
    first = "slot" if "slot" in found[0] else "topic"
    columns = [Column(first.upper(), right=first == "slot")]
    columns += [Column(title, right=True) for title in TITLES]
    rows = [[str(one[first]), *(_cell(name, one) for name in ROW)] for one in found]
    if paces is not None:
        columns += [Column(title, right=True) for title in PACES.values()]
        for row, pace in zip(rows, paces, strict=True):
            row += [output.number(round(pace[name])) if name in pace else "-" for name in PACES]
    return columns, rows


def _whole(one: Counts, pace: Counts | None = None) -> tuple[Columns, Rows]:
    columns = [Column(one["topic"]), Column("NOW", right=True)]
    rows = [[told, _cell(name, one)] for name, told in HOLDS.items()]
    rows += [["", ""], ["since it was created", ""]]
    rows += [[told, _cell(name, one)] for name, told in HAS_DONE.items()]
    if pace is not None:
        columns.append(Column("PER SECOND", right=True))
        for row, name in zip(rows, (*HOLDS, "", "", *HAS_DONE), strict=True):
            row.append(
                output.number(round(pace[name])) if name in HAS_DONE and name in pace else ""
            )
    return columns, rows


def _table(topic: str | None, slots: bool, found: list[Counts]) -> tuple[Columns, Rows]:
    return _listing(found) if topic is None or slots else _whole(found[0])


def _print(topic: str | None, slots: bool, found: list[Counts]) -> None:
    output.table(*_table(topic, slots, found))
    for one in found:
        if "error" in one:
            session().talk(f"{one['topic']}: {one['error']}")


def _paces(before: list[Counts], now: list[Counts], seconds: float) -> list[Counts]:
    """What was done a second, for each row."""
    last = {one.get("topic", one.get("slot")): one for one in before}
    found = []
    for one in now:
        then = last.get(one.get("topic", one.get("slot")), {})
        names = [name for name in HAS_DONE if name in one and name in then]
        found.append({name: (one[name] - then[name]) / seconds for name in names})
    return found


def _watch(read: Callable[[], list[Counts]], topic: str | None, slots: bool, every: float) -> None:
    as_json, fancy = session().json, sys.stdout.isatty()
    before, at = read(), time.monotonic()
    if as_json:
        _emit(topic, slots, before)

    def draw() -> tuple[Columns, Rows] | None:
        nonlocal before, at
        time.sleep(every)
        now, then = read(), at
        at = time.monotonic()
        paces = _paces(before, now, at - then)
        before = now
        if not now:
            return None
        return _listing(now, paces) if topic is None or slots else _whole(now[0], paces[0])

    if as_json or not fancy:
        if not as_json:
            _print(topic, slots, before)
        while True:
            table = draw()
            if as_json:
                _emit(topic, slots, before)
            elif table:
                click.echo()
                output.table(*table)
            sys.stdout.flush()
    first: RenderableType = Text("reading ...")
    if before:
        first = output.build(*_table(topic, slots, before))[0]
    with Live(
        first, console=output.console(), auto_refresh=False, vertical_overflow="crop"
    ) as live:
        live.refresh()
        while True:
            table = draw()
            told = Text(f"{time.strftime('%H:%M:%S')}, every {every:g} s; Ctrl-C ends", style="dim")
            body = output.build(*table)[0] if table else Text("no topics yet")
            live.update(output.group(body, told), refresh=True)


def _emit(topic: str | None, slots: bool, found: list[Counts]) -> None:
    output.line(_document(topic, slots, found))
    sys.stdout.flush()
