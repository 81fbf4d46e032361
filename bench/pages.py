"""Fill the tables and charts of the pages: `python -m bench.pages FILE`.

FILE is what `python -m bench --json FILE` has written. A table stands in its page between two
comments, `<!-- bench: name -->` and `<!-- end -->`, below a sentence with the machine, the date and
the rounds. Tables whose parts the run has not measured stay as they are, and are named.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import capacity, plots, tables
from bench.figures import Figures, Missing
from bench.size import tables as size_tables

ROOT = Path(__file__).parents[1]
CAPACITY, README = "docs/capacity.md", "bench/README.md"
MEDIAN = "median (least .. most)"


@dataclass(frozen=True)
class Block:
    """A part of a page that is made from a run.

    Attributes:
        page: its path.
        parts: of the bench, all of which it needs; its caption tells the rounds of the first.
        make: returns its Markdown.
        how: what of the rounds it shows, for the caption: "" for one run; None without one.
    """

    page: str
    parts: tuple[str, ...]
    make: Callable[[Figures], str]
    how: str | None = "least"


def charts(figures: Figures) -> str:
    """Return the charts of docs/capacity.md, which `plots.draw` has to write."""
    return "\n\n".join(
        f"![{chart.alt}](charts/{chart.name}.svg)" for chart in plots.charts(figures)
    )


BLOCKS = {
    "capacity": Block(CAPACITY, ("cost", "growth"), capacity.table),
    "charts": Block(CAPACITY, ("cost", "growth"), charts, how=None),
    "masters": Block(CAPACITY, ("cost", "growth"), capacity.masters_table, how=None),
    "size": Block(CAPACITY, ("size",), size_tables.page, ""),
    "throughput": Block(README, ("throughput",), tables.throughput, MEDIAN),
    "streams": Block(README, ("drain", "throughput", "growth"), tables.streams, MEDIAN),
    "cost": Block(README, ("cost",), tables.cost),
}


def fill(text: str, name: str, content: str) -> str:
    """Return a page with the content of one block replaced."""
    block = re.compile(rf"(<!-- bench: {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
    if len(block.findall(text)) != 1:
        raise SystemExit(f"the page has not one block {name!r}")
    return block.sub(lambda match: f"{match[1]}{content}{match[2]}", text)


def update(figures: Figures, root: Path, source: str = "") -> list[str]:
    """Fill the blocks that a run has the figures of; return the names of the others.

    Nothing is written if a part was measured and lacks a figure.

    Args:
        figures: of the run.
        root: of the checkout.
        source: what the captions say of the file, if it is kept.
    """
    left, pages = [], {block.page: (root / block.page).read_text() for block in BLOCKS.values()}
    for name, block in BLOCKS.items():
        if not figures.parts.issuperset(block.parts):
            left.append(name)
            continue
        content = block.make(figures)
        if block.how is not None:
            content = f"{source}{figures.caption(block.parts[0], block.how)}\n\n{content}"
        pages[block.page] = fill(pages[block.page], name, content)
    for page, text in pages.items():
        (root / page).write_text(text)
    if "charts" not in left:
        for chart in plots.charts(figures):
            plots.draw(chart, root / "docs" / "charts")
    return left


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="what --json has written")
    asked = parser.parse_args()
    is_kept = asked.file.resolve().is_relative_to(ROOT)
    source = f"`{asked.file.resolve().relative_to(ROOT)}`: " if is_kept else ""
    try:
        left = update(Figures.read(asked.file), ROOT, source)
    except Missing as missing:
        raise SystemExit(f"{asked.file}: {missing}; nothing is changed") from None
    print(f"filled: {', '.join(name for name in BLOCKS if name not in left)}")
    if left:
        print(f"left as they were, for their parts were not measured: {', '.join(left)}")


if __name__ == "__main__":
    main()
