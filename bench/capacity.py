"""Print the tables of docs/capacity.md: `python -m bench.capacity FILE`.

FILE is written by `python -m bench --only cost --only growth --json FILE`. A core handles
1 000 000 / CPU messages a second. CPU is the time of the server's main thread for one message, us.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.figures import MEASURE, Figures, K, Missing, size, spaced
from bench.masters import even, hashed
from bench.tables import markdown

MILLION = 1_000_000
MASTERS_BODIES = (1024, 10 * 1024)  # for larger bodies the network is the limit, not a core
SMALL = 100  # bytes of a body, unless a row gives another size
ENVELOPE = 80  # bytes of a message without its body, on the network in both directions
SLOTS = (256, 1024)


class Row(NamedTuple):
    """A kind of traffic; `is_traffic` is false for work in addition to messages."""

    title: str
    cpu: float
    memory: float | None = None
    is_traffic: bool = True


KINDS = {
    "json": "JSON bodies, batches of 100",
    "timed": "due later, batches of 100",
    "merged": "with a merge key each, batches of 100",
    "audited": "audited, batches of 100",
    "ordered": "in order, batches of 100",
}
PEERS = {"bare": "three bare scripts, batches of 100", "stream": "a Redis stream, batches of 100"}


def rows(figures: Figures) -> Iterator[Row]:
    """Return a file's figures, one row for each kind of traffic."""
    yield Row("plain, one by one", figures.life("plain", 1))
    for k in (10, 100, 1000):
        yield Row(f"plain, batches of {k}", figures.life("plain", k))
    for kind, title in KINDS.items():
        yield Row(title, figures.life(kind, K))
    yield Row("a send that merges into a waiting message", figures.cost("merge", "merged", K))
    growth = figures.growth()
    for figure in growth:
        title = f"plain, batches of 100, {figure['depth']:,} waiting"
        if figure["grows"] == "body":
            title = f"bodies of {size(figure['body'])}, batches of 100"
        elif figure["grows"] != "depth":
            how = "each with a key" if figure["grows"] == "slots, by key" else "no keys"
            title += f", {figure['slots']} slots, {how}"
        yield Row(title, figure["topic"]["life"]["cpu"], figure["topic"]["memory"])
    for kind, title in PEERS.items():
        yield Row(title, figures.life(kind, K))
    for figure in growth:
        if figure["grows"] == "body":
            title = f"SET, GET, DEL of {size(figure['body'])}, pipelines of 100"
            yield Row(title, figure["keys"]["life"]["cpu"], figure["keys"]["memory"])
    for figure in growth:
        if figure["grows"] == "slots":
            title = f"a consumer that asks {figure['slots']} slots, each time"
            yield Row(title, figure["ask_us"], is_traffic=False)


def _rounded(rate: float) -> str:
    """Return a rate with two digits, because the figures are not more precise."""
    return spaced(float(f"{rate:.2g}"))


def _us(cpu: float) -> str:
    return f"{cpu:.1f}" if cpu < 100 else spaced(cpu)


def table(figures: Figures) -> str:
    """Return the Markdown table of the traffic that a core handles."""
    cells = []
    for row in rows(figures):
        rate = _rounded(1e6 / row.cpu) if row.is_traffic and row.cpu else ""
        waiting = "" if row.memory is None else spaced(row.memory)
        title = row.title.replace(",000", " 000")
        cells.append([title, _us(row.cpu), rate, waiting])
    heading = ["traffic", "us a message", "messages/s of a core", "bytes waiting"]
    return markdown(heading, cells)


def kinds_of_a_million(figures: Figures) -> Iterator[tuple[str, float, int]]:
    """Return title, us and body bytes of each kind in the table of a million a second."""
    yield "plain, one by one", figures.life("plain", 1), SMALL
    for k in (10, 100, 1000):
        yield f"plain, batches of {k}", figures.life("plain", k), SMALL
    for kind, title in KINDS.items():
        yield title, figures.life(kind, K), SMALL
    deepest = max(figures.growth("depth"), key=lambda point: int(point["depth"]))
    title = f"plain, batches of 100, {spaced(deepest['depth'])} waiting on each master"
    yield title, deepest["topic"]["life"]["cpu"], SMALL
    most = max(figures.growth("slots, by key"), key=lambda point: int(point["slots"]))
    title = f"batches of 100, each message with a key, {most['slots']} slots"
    yield title, most["topic"]["life"]["cpu"], SMALL
    for point in figures.growth("body"):
        if point["body"] in MASTERS_BODIES:
            title = f"bodies of {size(point['body'])}, batches of 100"
            yield title, point["topic"]["life"]["cpu"], point["body"]


def masters_table(figures: Figures) -> str:
    """Return the Markdown table of the masters for a million messages a second."""
    by_hash = [f"{count} slots by hash" for count in SLOTS]
    heading = ["a million a second", "busy cores", "masters, evenly", *by_hash, "Gbit/s"]
    cells = []
    for title, cpu, body in kinds_of_a_million(figures):
        cores = cpu * MILLION / 1e6
        counts = [str(hashed(cores, count) or "none") for count in SLOTS]
        gbits = (2 * body + ENVELOPE) * 8 * MILLION / 1e9
        cells.append([title, _us(cores), str(even(cores)), *counts, f"{gbits:.1f}"])
    return markdown(heading, cells)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.capacity", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="what --json has written")
    figures = Figures.read(parser.parse_args().file)
    try:
        print(table(figures), masters_table(figures), sep="\n\n")
    except Missing as missing:
        raise SystemExit(f"the file has {missing}; {MEASURE}") from None


if __name__ == "__main__":
    main()
