"""The tables of the part `size`: for a terminal, and in Markdown for docs/capacity.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench import report
from bench.figures import Figures, spaced
from bench.measurement import Measurement
from bench.tables import markdown

CALL = "call: "
COLUMNS = ("p50", "p99", "max")
HEADING = [
    "call, ms", "p50, p99, max of 1 000", "of N", "p50, N / 1 000", "in Redis, p50, max",
    "longest PING",
]  # fmt: skip
EXPLANATION = (
    "Times of the client, ms, of a topic of 1000 and of the deep one by turns; the longest command "
    "that Redis ran for each call of the deep one, by SLOWLOG; the longest PING of another "
    "connection meanwhile."
)


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _redis(notes: Mapping[str, Any]) -> str:
    usual, longest = notes["redis_p50"], notes["redis_max"]
    return f"{_ms(usual) if usual else '< 0.1'} / {_ms(longest) if longest else '< 0.1'}"


def _call(verb: str, ratio: float, notes: Mapping[str, Any]) -> list[str]:
    shallow, deep = (
        " / ".join(_ms(notes[side][column]) for column in COLUMNS) for side in ("shallow", "deep")
    )
    return [
        verb, shallow, deep, f"{ratio:.2f}", _redis(notes["deep"]),
        _ms(notes["deep"]["ping_ms"]),
    ]  # fmt: skip


def _gb(count: float) -> str:
    return f"{count / 1e9:.2f} GB"


def _errors(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "no error"


def facts(figures: Mapping[str, tuple[float, Mapping[str, Any]]]) -> list[tuple[str, str]]:
    """Return what is not a call, as pairs of words.

    Args:
        figures: value and notes of each figure, by name.
    """
    each, filled = figures["memory of a waiting message"]
    took, rewrite = figures["BGREWRITEAOF"]
    rolled, rollback = figures["rollback"]
    loaded, restart = figures["restart"]
    rate, drain = figures["drain of all"]
    lost, account = figures["lost"]
    leases, calls = rollback["leases"], rollback["calls"]
    return [
        ("PING while nothing else is done, longest of 2 s",
         f"{_ms(figures['PING while nothing else is done'][0])} ms"),
        ("bytes of a waiting message", spaced(each)),
        ("`used_memory`, `used_memory_rss` when all wait",
         f"{_gb(filled['used_memory'])}, {_gb(filled['used_memory_rss'])}"),
        ("sending them, 1000 a call",
         f"{spaced(filled['messages/s'])}/s; a command p50 / max {_redis(filled)} ms, "
         f"longest PING {_ms(filled['ping_ms'])} ms"),
        ("`BGREWRITEAOF`, while batches of 100 come and go",
         f"{took:.1f} s; {_gb(rewrite['copied'])} copied on write, fork "
         f"{_ms(rewrite['fork_ms'])} ms, longest PING {_ms(rewrite['ping_ms'])} ms; "
         f"{spaced(rewrite['lives/s'])} messages/s meanwhile"),
        ("the AOF before and after", f"{_gb(rewrite['aof_before'])}, {_gb(rewrite['aof_after'])}"),
        (f"rollback of {spaced(leases)} ended leases",
         f"{rolled:.1f} s in {spaced(calls)} calls; p50 / max {_redis(rollback)} ms, "
         f"longest PING {_ms(rollback['ping_ms'])} ms"),
        (f"kill -9 and restart, an AOF of {_gb(restart['aof_bytes'])}",
         f"{loaded:.1f} s until it answered, LOADING from {restart['listening_s']:.1f} s on; "
         f"the producer went on after {restart['producer_s']:.1f} s "
         f"({_errors(restart['producer_errors'])}), the worker after {restart['worker_s']:.1f} s"),
        ("drain, 1000 a call",
         f"{spaced(rate)}/s; at full depth {spaced(figures['drain at full depth'][0])}/s, "
         f"{figures['drain: rate, to a topic of 1,000'][0]:.2f} of the rate at 1 000; a command "
         f"p50 / max {_redis(drain)} ms, longest PING {_ms(drain['ping_ms'])} ms"),
        ("lost", f"{lost:.0f} of {spaced(account['sent'])}; "
         f"{spaced(account['handled again'])} handled again, {spaced(account['dead'])} dead"),
    ]  # fmt: skip


def page(figures: Figures) -> str:
    """Return both tables in Markdown."""
    found = figures.part("size")
    rows = [
        _call(name.removeprefix(CALL), value, notes)
        for name, (value, notes) in found.items()
        if name.startswith(CALL)
    ]
    heading = [
        cell.replace(" N", f" {spaced(found['messages'][0])}").replace("N ", "")
        for cell in HEADING
    ]  # fmt: skip
    told = markdown([f"{spaced(found['messages'][0])} messages", "measured"], facts(found))
    return f"{told}\n\n{markdown(heading, rows)}"


def show(measured: Sequence[Measurement]) -> None:
    """Print both tables."""
    found = {one.name: (one.value, one.notes) for one in measured}
    told = Table(box=SIMPLE_HEAD, show_header=False)
    for name, text in facts(found):
        told.add_row(name, text)
    grid = Table(*HEADING, box=SIMPLE_HEAD)
    for name, (value, notes) in found.items():
        if name.startswith(CALL):
            grid.add_row(*_call(name.removeprefix(CALL), value, notes))
    report.show_table(told, f"N is {found['messages'][0]:,.0f}.")
    report.show_table(grid, EXPLANATION)
