"""Print the table of peers."""

from __future__ import annotations

import statistics

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.measurement import Measurement
from bench.peers.results import Results
from bench.report import table as targets


def _rate(results: Results, part: str, name: str) -> tuple[str, str]:
    rates = results.rates(part, name)
    if not rates:
        return "", ""
    spread = f"{min(rates):,.0f} .. {max(rates):,.0f}" if len(rates) > 1 else ""
    return f"{statistics.median(rates):,.0f}", spread


def _times(results: Results, part: str, name: str) -> str:
    """Return how many times as fast the slower of RMQ's two workers is."""
    ratios = [results.ratios(part, ours, name) for ours in results.of_kind("rmq")]
    medians = [statistics.median(rounds) for rounds in ratios if rounds]
    if results.peers[name].kind == "rmq" or not medians:
        return ""
    return f"{min(medians):.1f} x" if min(medians) >= 1 else f"{min(medians):.2f} x"


def _cpu(results: Results, name: str) -> str:
    cost = results.cpu_us("drain", name)
    return "" if cost is None else f"{cost:,.1f}" if cost < 100 else f"{cost:,.0f}"


def _late(results: Results, name: str) -> str:
    pair = [results.late_ms("paced", name, percent) for percent in (50, 99)]
    return " / ".join(f"{statistics.median(rounds):.2f}" for rounds in pair) if all(pair) else ""


def table(results: Results) -> Table:
    """Tabulate each queue: no-op throughput, one at a time, and how soon a handler starts."""
    rows = Table(box=SIMPLE_HEAD)
    rows.add_column("queue", no_wrap=True)
    for heading in (
        "no-op, msg/s", "least .. most", "RMQ is", "CPU us",
        "1 + 1, msg/s", "least .. most", "RMQ is", "p50 / p99 ms at 100/s",
    ):  # fmt: skip
        rows.add_column(heading, justify="right", no_wrap=True)
    for name in results.peers:
        if any(runs and peer == name for (_, peer), runs in results.runs.items()):
            rows.add_row(
                name,
                *_rate(results, "drain", name), _times(results, "drain", name), _cpu(results, name),
                *_rate(results, "one", name), _times(results, "one", name), _late(results, name),
            )  # fmt: skip
    return rows


def show(machine: dict[str, str], results: Results, measurements: list[Measurement]) -> None:
    """Print machine, table, settings, skipped peers and targets."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()), style="dim")
    console.print(table(results))
    for name, peer in results.peers.items():
        versions = ", ".join(peer.requires) or "this checkout"
        console.print(f"{name}: {peer.setting} ({versions})", style="dim", highlight=False)
    for name, why in results.skipped.items():
        console.print(f"skipped: {name}: {why}", style="red", highlight=False, markup=False)
    promised = [measurement for measurement in measurements if measurement.target is not None]
    if promised:
        console.print(targets(promised))
