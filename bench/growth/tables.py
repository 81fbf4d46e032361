"""The tables of the part `growth`: its points, and the backlog in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench import report
from bench.cost.table import number
from bench.figures import K, size, spaced
from bench.growth.backlog import PART
from bench.growth.points import VERBS, GrowthRow
from bench.measurement import Measurement
from bench.tables import markdown

Found = Mapping[str, tuple[float, Mapping[str, Any]]]  # value and notes of each figure, by name

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


# --- the backlog -------------------------------------------------------------------------------


def _redis(notes: Mapping[str, Any]) -> str:
    usual, longest = notes["redis_p50"], notes["redis_max"]
    return f"{number(usual) if usual else '< 0.1'} / {number(longest) if longest else '< 0.1'}"


def _gb(count: float) -> str:
    return f"{count / 1e9:.2f} GB"


def _errors(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "no error"


def _facts(figures: Found) -> list[tuple[str, str]]:
    """Return all rows except the calls: a description, and the figures in words."""
    each, filled = figures["memory of a waiting message"]
    took, rewrite = figures["BGREWRITEAOF"]
    rolled, rollback = figures["rollback"]
    loaded, restart = figures["restart"]
    rate, drain = figures["drain of all"]
    lost, account = figures["lost"]
    leases, calls = rollback["leases"], rollback["calls"]
    return [
        ("longest PING in 2 s without other work",
         f"{number(figures['PING while nothing else is done'][0])} ms"),
        ("bytes of a waiting message", spaced(each)),
        ("`used_memory`, `used_memory_rss` when all messages wait",
         f"{_gb(filled['used_memory'])}, {_gb(filled['used_memory_rss'])}"),
        ("sending all messages, 1000 in a call",
         f"{spaced(filled['messages/s'])}/s; a command p50 / max {_redis(filled)} ms, "
         f"longest PING {number(filled['ping_ms'])} ms"),
        ("`BGREWRITEAOF`, while batches of 100 are sent, received and acked",
         f"{took:.1f} s; {_gb(rewrite['copied'])} copied on write, fork "
         f"{number(rewrite['fork_ms'])} ms, longest PING {number(rewrite['ping_ms'])} ms; "
         f"{spaced(rewrite['lives/s'])} messages/s meanwhile"),
        ("the AOF before and after", f"{_gb(rewrite['aof_before'])}, {_gb(rewrite['aof_after'])}"),
        (f"rollback of {spaced(leases)} expired leases",
         f"{rolled:.1f} s in {spaced(calls)} calls; p50 / max {_redis(rollback)} ms, "
         f"longest PING {number(rollback['ping_ms'])} ms"),
        (f"kill -9 and restart, an AOF of {_gb(restart['aof_bytes'])}",
         f"{loaded:.1f} s until Redis answered, `LOADING` from {restart['listening_s']:.1f} s on; "
         f"the producer continued after {restart['producer_s']:.1f} s "
         f"({_errors(restart['producer_errors'])}), the worker after {restart['worker_s']:.1f} s"),
        ("receiving and acking all messages, 1000 in a call",
         f"{spaced(rate)}/s; at the beginning {spaced(figures['drain at full depth'][0])}/s, "
         f"{figures['drain: rate, to a topic of 1,000'][0]:.2f} of the rate with 1 000 messages; "
         f"a command p50 / max {_redis(drain)} ms, longest PING {number(drain['ping_ms'])} ms"),
        ("lost", f"{lost:.0f} of {spaced(account['sent'])}; "
         f"{spaced(account['handled again'])} handled again, "
         f"{spaced(account['dead'])} dead letters"),
    ]  # fmt: skip


def _calls(found: Found) -> str:
    """Return a table with a row for each call, in the shallow topic and in the deep topic."""
    messages = spaced(found["messages"][0])
    rows = []
    for name, (ratio, notes) in found.items():
        if name.startswith("call: "):
            times = [
                " / ".join(number(notes[topic][column]) for column in ("p50", "p99", "max"))
                for topic in ("shallow", "deep")
            ]
            deep = notes["deep"]
            cells = [*times, f"{ratio:.2f}", _redis(deep), number(deep["ping_ms"])]
            rows.append([name.removeprefix("call: "), *cells])
    heading = [
        "call, times in ms", "1 000 messages: p50 / p99 / max", f"{messages} messages: the same",
        "ratio of p50", "in Redis: p50 / max", "longest PING",
    ]  # fmt: skip
    return markdown(heading, rows)


def backlog(found: Found) -> str:
    """Return both tables of the backlog, in Markdown for a terminal and for docs/capacity.md."""
    heading = [f"{spaced(found['messages'][0])} messages", "measured"]
    return f"{markdown(heading, _facts(found))}\n\n{_calls(found)}"


def show(measured: Sequence[Measurement]) -> None:
    """Print the points, the ratios of deep topics to a shallow topic, and the backlog."""
    report.show_table(table([one for one in measured if isinstance(one, GrowthRow)]), EXPLANATION)
    report.show([one for one in measured if one.part != PART and not isinstance(one, GrowthRow)])
    print(backlog({one.name: (one.value, one.notes) for one in measured if one.part == PART}))
