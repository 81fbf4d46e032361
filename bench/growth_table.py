"""The table of the part `growth`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench import report
from bench.cost.table import number
from bench.figures import K, size
from bench.growth import VERBS, GrowthRow
from bench.measurement import Measurement

EXPLANATION = (
    f"A plain message in batches of {K}, us of Redis for each, least of the rounds; median: of the "
    "life. CPU: of the server's main thread, with the reading of requests and the writing of "
    "replies; /s: messages a second of one core, 1 000 000 / CPU. bytes: used_memory for each that "
    "waits. keys: SET, GET and DEL of the same bytes in pipelines. ask: us for asking all slots "
    "once, which a busy consumer of several slots does up to 20 times a second."
)


def table(rows: Sequence[GrowthRow]) -> Table:
    """Return a table with a row for each point."""
    grid = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    grid.add_column("grows", no_wrap=True)
    for heading in (
        "waiting", "slots", "body", *VERBS, "median", "CPU", "/s", "bytes", "keys", "CPU", "bytes",
        "ask",
    ):  # fmt: skip
        grid.add_column(heading, justify="right", no_wrap=True)
    before = ""
    for row in rows:
        point, topic, keys = row.point, row.topic, row.keys
        if before and point.grows != before:
            grid.add_section()
        before, cpu = point.grows, topic.least("life", "cpu")
        grid.add_row(
            point.grows, f"{point.depth:,}", str(point.slots), size(point.body),
            *(number(topic.least(verb, "redis")) for verb in VERBS),
            number(statistics.median(row.rounds)), number(cpu),
            f"{1e6 / cpu:,.0f}" if cpu else "", f"{topic.memory:,.0f}",
            number(keys.least("life", "redis")), number(keys.least("life", "cpu")),
            f"{keys.memory:,.0f}", "" if row.ask_us is None else f"{row.ask_us:,.0f}",
        )  # fmt: skip
    return grid


def show(measured: Sequence[Measurement]) -> None:
    """Print the rows, then what is not a row: deep topics beside a shallow one."""
    report.show_table(table([row for row in measured if isinstance(row, GrowthRow)]), EXPLANATION)
    others = [one for one in measured if not isinstance(one, GrowthRow)]
    if others:
        report.show(others)
