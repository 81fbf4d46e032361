"""`rmq top`: show all topics and their problems on the whole screen, every second."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

import rmq
from rmq.cli_framework import output
from rmq.cli_framework.app import Command, redact
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import DURATION
from rmq.cli_framework.tables import terminal_width
from rmq.cli_framework.text import neutral, number, plural, span
from rmq.client.client import DEFAULT_URL
from rmq.features.topic_admin.cli.listing import read_topics, waiting
from rmq.features.topic_admin.cli.stats import per_second
from rmq.kernel.core import process
from rmq.kernel.topic.overview import TopicOverview

SHARE = 10  # reading takes at most one tenth of the time, however many topics there are
RESIZE_S = 1.0  # a new size of the terminal is noticed within this time
NO_CONSUMER_MS = 10_000  # a topic has no consumer if messages wait this long and none is received

# Title of each column of figures, and the field of a row with the figure.
FIGURES = {
    "WAITING": "waiting", "LATER": "later", "IN-FLIGHT": "in_flight", "DEAD": "dead",
    "LATE": "late_ms", "IN/S": "accepted_per_s", "OUT/S": "settled_per_s",
}  # fmt: skip
SORTS = ("PROBLEM", "TOPIC", *FIGURES)
AROUND = 3  # lines of the screen other than topics: the title, the column titles and the footer

Row = dict[str, Any]


@click.command(
    cls=Command, examples=("rmq top", "rmq top 'shop.*'", "rmq top --once", "rmq top --once --json")
)
@click.argument("pattern", default="*")
@click.option(
    "--interval", type=DURATION, default="1s", show_default=True, help="Time between reads."
)
@click.option("--once", is_flag=True, help="Read twice, print the table, and end.")
def top(pattern: str, interval: float, once: bool) -> None:
    """Show all topics on the whole screen until q is pressed.

    PATTERN is the name of a topic, in which * and ? are wildcards. The key q quits, and the key s
    sorts by the next column. Topics with a problem are at the top.

    WAITING counts the messages that are due. LATER counts the messages that are not due yet. LATE
    is the time for which the oldest due message has waited. IN/S and OUT/S are the numbers of
    messages accepted and settled per second, since the previous update.

    PROBLEM "no consumer" means that messages have waited for 10 s and no consumer receives them.
    "slo missed" means that the oldest message has waited longer than the topic's setting slo
    allows. "groups held" means that a dead letter has stopped a group. For "cannot be read", `rmq
    stats` gives the reason.
    """
    if interval < 1:
        raise click.UsageError("--interval: give at least 1 second")
    common = common_options()
    console = Console(width=terminal_width()) if once else Console()
    has_keys = sys.stdin.isatty() and sys.stdout.isatty() and not console.is_dumb_terminal
    if not once and (common.json or not has_keys):
        raise click.UsageError("it needs a terminal; give --once to print the table")
    if not once and not process.FORKS:
        raise click.UsageError("it reads keys as POSIX systems do; give --once to print the table")
    with common.client() as client:
        state = Top(redact(common.url_asked or DEFAULT_URL, common.url_asked))
        _read(client, pattern, state)
        if not once:
            _show(client, pattern, state, interval, console)
            return
        time.sleep(interval)
        _read(client, pattern, state)
    if common.json:
        output.document({"topics": state.sorted_rows()}, rows=state.sorted_rows())
    else:
        console.print(Group(state.title(), state.table(state.sorted_rows())))


def _read(client: rmq.Client, pattern: str, state: Top) -> None:
    names = [name for name in client.admin.topics() if fnmatchcase(name, pattern)]
    topics = read_topics(client, names)
    state.update(topics, len(client.admin.workers()), time.monotonic())


def _show(client: rmq.Client, pattern: str, state: Top, interval: float, console: Console) -> None:
    next_at = state.read_at + interval
    with _keys() as fd, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(state.screen(console.height), refresh=True)
            wait_s = min(RESIZE_S, max(0, next_at - time.monotonic()))
            if select.select([fd], [], [], wait_s)[0]:
                keys = os.read(fd, 64).decode(errors="ignore").lower()
                if not keys or "q" in keys:  # no keys mean that the terminal was closed
                    return
                if "s" in keys:
                    state.sort = SORTS[(SORTS.index(state.sort) + 1) % len(SORTS)]
            if time.monotonic() >= next_at:
                begun = time.monotonic()
                pause_s = interval
                try:
                    _read(client, pattern, state)
                    pause_s = max(interval, (state.read_at - begun) * SHARE)
                except rmq.RMQError as error:  # Redis may come back
                    state.error = redact(" ".join(str(error).split()), client.url)
                next_at = time.monotonic() + pause_s


@contextmanager
def _keys() -> Iterator[int]:
    """Yield a file. You can read each key from it as soon as the user presses the key."""
    import termios  # not on Windows
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@dataclass
class Top:
    """The latest counts of the topics, and the screen that shows them.

    Attributes:
        where: URL of Redis.
        rows: Counts of each topic, as `rmq stats --json` prints them, with rates and `problem`.
        workers: Number of worker processes.
        read_at: Monotonic time at which the topics were read.
        sort: Title of the column by which the topics are sorted.
        error: Reason why the last read failed.
    """

    where: str
    rows: list[Row] = field(default_factory=list)
    workers: int = 0
    read_at: float = 0.0
    read_clock: str = ""
    sort: str = SORTS[0]
    error: str = ""

    def update(self, topics: Sequence[TopicOverview], workers: int, at: float) -> None:
        """Store the counts of all topics, the number of workers, and the time of the read."""
        rows: list[Row] = [
            {"topic": topic.name, "error": str(topic.error)}
            if topic.error
            else {"topic": topic.name, "waiting": waiting(topic.total), **topic.total}
            for topic in topics
        ]
        rates = per_second(self.rows, rows, at - self.read_at)
        for topic, row, rate in zip(topics, rows, rates, strict=True):
            row["problem"] = _problem(topic, row, rate)
            row |= {f"{name}_per_s": rate.get(name) for name in ("accepted", "settled")}
        self.rows, self.workers, self.read_at, self.error = rows, workers, at, ""
        self.read_clock = time.strftime("%H:%M:%S")

    def sorted_rows(self) -> list[Row]:
        """Return the rows. They are sorted by name, by problem, or by the largest number."""
        rows = sorted(self.rows, key=lambda row: row["topic"])
        if self.sort == "PROBLEM":
            rows.sort(key=lambda row: not row["problem"])
        elif self.sort != "TOPIC":
            rows.sort(key=lambda row: -(row.get(FIGURES[self.sort]) or 0))
        return rows

    def screen(self, height: int) -> Group:
        """Return the text for a screen with the given number of lines."""
        rows = self.sorted_rows()
        shown = rows[: max(0, height - AROUND)]
        below = len(rows) - len(shown)
        foot = _line(f"q quit  s sort (by {self.sort})" + (f"  {below} below" if below else ""))
        if self.error:
            foot = _line(self.error, "red")
        return Group(self.title(), self.table(shown), foot)

    def title(self) -> Text:
        """Return the line above the table."""
        topics, workers = plural(len(self.rows), "topic"), plural(self.workers, "worker")
        return _line(f"{topics}  {workers}  read at {self.read_clock}  {self.where}", "bold")

    def table(self, rows: Sequence[Row]) -> Table:
        """Return a table of these rows."""
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for head in ("TOPIC", *FIGURES, "PROBLEM"):
            table.add_column(
                head,
                justify="right" if head in FIGURES else "left",
                no_wrap=head in FIGURES,  # a narrow terminal shortens the other columns
                header_style="bold reverse" if head == self.sort else "bold",
            )
        for row in rows:
            figures = [_figure(head, row.get(name)) for head, name in FIGURES.items()]
            table.add_row(_line(row["topic"]), *figures, _line(row["problem"], "red"))
        return table


def _line(text: str, style: str = "") -> Text:
    return Text(neutral(text), style, no_wrap=True, overflow="ellipsis")


def _figure(head: str, value: float | None) -> Text:
    if value is None:
        return Text("-")
    if head == "LATE":
        return Text(span(value) if value else "-")
    return Text(number(round(value)), "red" if value and head == "DEAD" else "")


def _problem(topic: TopicOverview, row: Row, rate: dict[str, float]) -> str:
    if topic.error:
        return "cannot be read"
    is_idle = not row["in_flight"] and rate.get("delivered") == 0
    problems = []
    if row["paused_ms"]:
        problems.append("paused")
    elif row["groups_held"]:
        problems.append("groups held")
    elif row["waiting"] > row["held"] and row["late_ms"] >= NO_CONSUMER_MS and is_idle:
        problems.append("no consumer")
    if row["sends_paused_ms"]:
        problems.append("sends paused")
    objective = topic.settings.objective
    if objective and objective.is_missed(row["late_ms"] / 1000):
        problems.append("slo missed")
    return ", ".join(problems)
