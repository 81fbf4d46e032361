"""Fill the tables and charts of the pages: `python -m bench.pages FILE ...`.

FILE is written by `python -m bench --json FILE`; `python -m bench --page` measures everything and
fills the pages itself. A table is between two comments of its page, `<!-- bench: name -->` and
`<!-- end -->`. A sentence above it has the machine, the commit, the date, the rounds and the load.
Doubtful figures are not written: see `doubts`.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import capacity, plots, tables
from bench.child import ROOT
from bench.figures import Figures, Missing
from bench.growth import tables as growth_tables

CAPACITY, README, FRONT = "docs/capacity.md", "bench/README.md", "README.md"
MEDIAN, MEDIAN_ALONE = "median (least .. most)", "median"
ANYWAY = "fill the pages though the figures do not convince, and say so above each table"
# Load of other programs: the load average before the run, and busy cores during a part
# (`machine.OthersLoad`). Next to a client and a server on two cores, a program that always wants a
# core has a load average of 1, and gets more than half of a core.
MOST_BEFORE, MOST_MEANWHILE = 1.0, 0.5
CHANGING = frozenset(("date", "load before"))  # fields of a machine that always differ


@dataclass(frozen=True)
class Block:
    """A part of a page that is made from a run.

    Attributes:
        page: Path of the page.
        parts: Parts of the bench, all of which are needed.
        make: Function that returns the Markdown.
        how: Which of the rounds the caption names: "" for one run; None: no caption.
        appendonly: Setting of the part's own servers; "": that of the bench's server.
    """

    page: str
    parts: tuple[str, ...]
    make: Callable[[Figures], str]
    how: str | None = "least"
    appendonly: str = ""


def charts(figures: Figures) -> str:
    """Return the charts of docs/capacity.md, which `plots.draw` must write."""
    return "\n\n".join(
        wrapped(f"![{chart.alt}](charts/{chart.name}.svg)") for chart in plots.charts(figures)
    )


def backlog(figures: Figures) -> str:
    """Return the tables of the backlog."""
    return growth_tables.backlog(figures.part("backlog"))


_MAIN = ("throughput", "drain", "concurrency", "peers")
BLOCKS = {
    "five": Block(FRONT, _MAIN, tables.five, MEDIAN_ALONE),
    "capacity": Block(CAPACITY, ("cost", "growth"), capacity.table),
    "charts": Block(CAPACITY, ("cost", "growth"), charts, how=None),
    "masters": Block(CAPACITY, ("cost", "growth"), capacity.masters_table),
    "client": Block(CAPACITY, ("throughput", "drain", "concurrency"), tables.client, MEDIAN),
    "backlog": Block(CAPACITY, ("backlog",), backlog, "", "yes, everysec"),
    "cluster": Block(CAPACITY, ("cluster",), tables.cluster, MEDIAN),
    "throughput": Block(README, ("throughput",), tables.throughput, MEDIAN),
    "streams": Block(README, ("drain", "throughput", "growth"), tables.streams, MEDIAN),
    "concurrency": Block(README, ("concurrency",), tables.concurrency, MEDIAN),
    "servers": Block(README, ("servers",), tables.servers, MEDIAN, "as each column says"),
    "others": Block(README, tables.OTHERS, tables.others, MEDIAN),
    "shorts": Block(README, (*_MAIN, "growth", *tables.OTHERS), tables.shorts, MEDIAN),
    "cost": Block(README, ("cost",), tables.cost),
    "aof": Block(README, ("cost",), tables.aof),
    "lone": Block(README, ("lone",), tables.lone, MEDIAN_ALONE),
    "peers": Block(README, ("peers",), tables.peers, MEDIAN),
}


def doubts(machine: Mapping[str, str], loads: Mapping[str, float]) -> list[str]:
    """Return why a run's figures are doubtful: no commit, a quick run, or load of others."""
    name = machine.get("commit", "")
    found = []
    if not name or name.endswith("+"):
        found.append("the code is that of no commit" if name else "the commit is not known")
    if "rounds" in machine:
        found.append("it was a quick run")
    if float(machine["load before"]) > MOST_BEFORE:
        found.append(f"load {machine['load before']} before the run; at most {MOST_BEFORE:g}")
    busy = {part: load for part, load in loads.items() if load > MOST_MEANWHILE}
    if busy:
        parts = ", ".join(f"{part} {load:.2f}" for part, load in busy.items())
        found.append(f"load of others during {parts}; at most {MOST_MEANWHILE:g}")
    return found


def doubts_of(figures: Figures) -> list[str]:
    """Return why figures are doubtful: each run, different machines, or old tables."""
    first, _ = figures.runs[0]
    found: list[str] = []
    for machine, loads in figures.runs:
        found += doubts(machine, loads)
        found += [
            f"runs differ in {name}: {first.get(name)}, {machine.get(name)}"
            for name in sorted(first.keys() | machine.keys())
            if name not in CHANGING and first.get(name) != machine.get(name)
        ]
    unknown = [part for part in sorted(figures.parts) if figures.load(part) is None]
    if unknown:
        found.append(f"the load of others is not known during {', '.join(unknown)}")
    for page in dict.fromkeys(block.page for block in BLOCKS.values()):
        of_page = {name: block for name, block in BLOCKS.items() if block.page == page}
        lacking = [name for name, block in of_page.items() if not _has(figures, block)]
        if lacking and len(lacking) < len(of_page):
            found.append(f"{page} would keep the tables of another run: {', '.join(lacking)}")
    return list(dict.fromkeys(found))


def refuse(found: Sequence[str], anyway: bool) -> None:
    """End with an error if there are doubts, unless `anyway` is set."""
    if found and not anyway:
        raise SystemExit(
            f"the pages are not filled: {'; '.join(found)}. Measure again on a quiet machine, "
            "from a commit (--page does all of it); --anyway marks the tables instead"
        )


def fill(text: str, name: str, content: str) -> str:
    """Return a page with the content of one block replaced."""
    block = re.compile(rf"(<!-- bench: {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
    if len(block.findall(text)) != 1:
        raise SystemExit(f"the page has not one block {name!r}")
    return block.sub(lambda match: f"{match[1]}{content}{match[2]}", text)


def wrapped(text: str) -> str:
    """Return a paragraph of a page in lines of at most 160 characters."""
    return textwrap.fill(text, 160, break_long_words=False, break_on_hyphens=False)


def _has(figures: Figures, block: Block) -> bool:
    return figures.parts.issuperset(block.parts)


def update(figures: Figures, root: Path, source: str = "", found: Sequence[str] = ()) -> list[str]:
    """Fill the blocks whose figures a run has; return the names of the other blocks.

    Nothing is written if a measured part lacks a figure.

    Args:
        figures: Figures of the run.
        root: Root of the checkout.
        source: Words of the captions about the file, if it is kept.
        found: Doubts that the captions name.
    """
    left, pages = [], {block.page: (root / block.page).read_text() for block in BLOCKS.values()}
    mark = f"**These figures do not convince: {'; '.join(found)}.** " if found else ""
    for name, block in BLOCKS.items():
        if not _has(figures, block):
            left.append(name)
            continue
        content = block.make(figures)
        if block.how is not None:
            caption = figures.caption(block.parts, block.how, block.appendonly)
            caption = wrapped(f"{mark}{source}{caption}")
            content = f"{caption}\n\n{content}"
        pages[block.page] = fill(pages[block.page], name, content)
    for page, text in pages.items():
        (root / page).write_text(text)
    if "charts" not in left:
        for chart in plots.charts(figures):
            plots.draw(chart, root / "docs" / "charts")
    return left


def fill_from(files: Sequence[Path], root: Path, anyway: bool) -> None:
    """Fill the pages from files, or end with an error and change nothing.

    Args:
        files: Files of runs.
        root: Root of the checkout whose pages are filled.
        anyway: True to mark doubtful tables instead of refusing them.
    """
    kept = [file.resolve().relative_to(ROOT) for file in files
            if file.resolve().is_relative_to(ROOT)]  # fmt: skip
    source = f"{', '.join(f'`{file}`' for file in kept)}: " if kept else ""
    try:
        figures = Figures.read(*files)
        found = doubts_of(figures)
        refuse(found, anyway)
        left = update(figures, root, source, found)
    except Missing as missing:
        names = ", ".join(map(str, files))
        raise SystemExit(f"{names}: {missing}; nothing is changed") from None
    print(f"filled: {', '.join(name for name in BLOCKS if name not in left)}")
    if left:
        print(f"left as they were, for their parts were not measured: {', '.join(left)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__)
    parser.add_argument(
        "files", type=Path, metavar="FILE", nargs="+", help="what --json has written"
    )
    parser.add_argument("--into", type=Path, default=ROOT, metavar="DIR", help="another checkout")
    parser.add_argument("--anyway", action="store_true", help=ANYWAY)
    asked = parser.parse_args()
    fill_from(asked.files, asked.into, asked.anyway)


if __name__ == "__main__":
    main()
