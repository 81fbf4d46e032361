"""Print the table of docs/capacity.md: `python -m bench.capacity FILE`.

FILE is what `python -m bench --only cost --only growth --json FILE` has written. A core carries
1 000 000 / CPU messages a second, CPU being the us of the server's main thread for one message.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.growth_table import size


class Row(NamedTuple):
    """A kind of traffic; `is_traffic` is false for what is done beside it."""

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


def rows(content: Mapping[str, Any]) -> Iterator[Row]:
    """Read a file's figures, kind of traffic by kind."""
    figures = {figure["name"]: figure for figure in content["figures"]}

    def of_cost(verb: str, kind: str, k: int) -> float:
        return float(figures[f"{verb}, {kind}, k = {k}"]["columns"]["cpu"]["least"])

    yield Row("plain, one by one", of_cost("single life", "plain", 1))
    for k in (10, 100, 1000):
        yield Row(f"plain, batches of {k}", of_cost("life", "plain", k))
    for kind, title in KINDS.items():
        yield Row(title, of_cost("life", kind, 100))
    yield Row("a send that merges into a waiting message", of_cost("merge", "merged", 100))
    growth = [figure for figure in content["figures"] if "grows" in figure]
    for figure in growth:
        title = f"plain, batches of 100, {figure['depth']:,} waiting"
        if figure["grows"] == "body":
            title = f"bodies of {size(figure['body'])}, batches of 100"
        elif figure["grows"] != "depth":
            how = "each with a key" if figure["grows"] == "slots, by key" else "no keys"
            title += f", {figure['slots']} slots, {how}"
        yield Row(title, figure["topic"]["life"]["cpu"], figure["topic"]["memory"])
    for kind, title in PEERS.items():
        yield Row(title, of_cost("life", kind, 100))
    for figure in growth:
        if figure["grows"] == "body":
            title = f"SET, GET, DEL of {size(figure['body'])}, pipelines of 100"
            yield Row(title, figure["keys"]["life"]["cpu"], figure["keys"]["memory"])
    for figure in growth:
        if figure["grows"] == "slots":
            title = f"a consumer that asks {figure['slots']} slots, each time"
            yield Row(title, figure["ask_us"], is_traffic=False)


def _rounded(rate: float) -> str:
    """Return two digits of a rate: the figures bear no more."""
    return f"{float(f'{rate:.2g}'):,.0f}".replace(",", " ")


def table(content: Mapping[str, Any]) -> str:
    """Return the table in Markdown."""
    lines = ["| traffic | us a message | messages/s of a core | bytes waiting |"]
    lines.append("| --- | ---: | ---: | ---: |")
    for row in rows(content):
        us = f"{row.cpu:.1f}" if row.cpu < 100 else f"{row.cpu:,.0f}".replace(",", " ")
        rate = _rounded(1e6 / row.cpu) if row.is_traffic and row.cpu else ""
        waiting = "" if row.memory is None else f"{row.memory:,.0f}".replace(",", " ")
        lines.append(f"| {row.title.replace(',000', ' 000')} | {us} | {rate} | {waiting} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.capacity", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="what --json has written")
    content = json.loads(parser.parse_args().file.read_text())
    try:
        print(table(content))
    except KeyError as missing:
        raise SystemExit(
            f"the file has no figure {missing}; measure with --only cost --only growth, "
            "and no other options than --rounds, --deepest and --json"
        ) from None


if __name__ == "__main__":
    main()
