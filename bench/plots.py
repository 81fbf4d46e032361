"""Draw the charts of docs/capacity.md: `python -m bench.plots FILE`.

FILE is written by `python -m bench --only cost --only growth --json FILE`. With the same version of
matplotlib, the same file makes the same charts, byte for byte. The charts have no background, and
their colors are readable on white and on black, for light and dark pages.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.figures import MEASURE, Figures, K, Missing, size, us

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CHARTS = Path(__file__).parents[1] / "docs" / "charts"
INK = "#777777"  # text and axes; contrast above 4 on white and on GitHub's dark
# Color, marker and line of each series in turn, so that series differ in more than color.
LOOKS = (("#2f7fd8", "o", "-"), ("#d1660a", "s", "--"), ("#2e9058", "^", ":"))
US = "us of a Redis core for a message"
BATCHES = (1, 10, 100, 1000)
DEPTHS, SLOTS, BODIES = 2, 3, 3  # smallest number of points of a line


@dataclass(frozen=True)
class Line:
    """A series of a chart: its label, and its points from left to right."""

    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """A chart: its texts and its lines.

    Attributes:
        name: Name of the file.
        title: Title of the chart.
        x: Title of the x axis.
        y: Title of the y axis.
        lines: Series of the chart.
        ticks: Labels below the x axis, by value.
        is_log: Whether y is logarithmic.
    """

    name: str
    title: str
    x: str
    y: str
    lines: Sequence[Line]
    ticks: Mapping[float, str]
    is_log: bool = False

    @property
    def alt(self) -> str:
        """Return the chart in words, with every point."""
        lines = [
            f"{line.label}: " + ", ".join(f"{us(y)} at {self.ticks[x]}" for x, y in line.points)
            for line in self.lines
        ]
        return f"{self.title}; {self.y}, by {self.x}. {'; '.join(lines)}."


def _short(count: float) -> str:
    """Return a number of messages in k and M."""
    if count >= 1_000_000:
        return f"{count / 1_000_000:g} M"
    return f"{count / 1000:g} k" if count >= 1000 else f"{count:g}"


def _line(label: str, points: Sequence[Mapping[str, Any]], side: str, by: str, fewest: int) -> Line:
    """Return the CPU us of a life, by a field of the points."""
    if len(points) < fewest:
        raise Missing(f"{len(points)} figures of growth by {by}, and {fewest} are needed")
    return Line(label, [(point[by], point[side]["life"]["cpu"]) for point in points])


def charts(figures: Figures) -> Iterator[Chart]:
    """Return all charts.

    Raises:
        Missing: The file lacks a figure.
    """
    deep = figures.growth("depth")
    depths = {point["depth"]: _short(point["depth"]) for point in deep}
    yield Chart(
        "depth", f"Depth: a life in batches of {K}", "messages that wait", US,
        [
            _line("RMQ", deep, "topic", "depth", DEPTHS),
            _line("SET, GET, DEL", deep, "keys", "depth", DEPTHS),
        ],
        depths,
    )  # fmt: skip
    yield Chart(
        "memory", "Memory of a waiting message of 100 bytes", "messages that wait",
        "bytes of used_memory",
        [
            Line(label, [(point["depth"], point[side]["memory"]) for point in deep])
            for label, side in (("RMQ", "topic"), ("plain key", "keys"))
        ],
        depths,
    )  # fmt: skip
    by_slots = figures.growth("slots")
    depth = by_slots[0]["depth"]
    one = [point for point in deep if point["depth"] == depth]  # has one slot
    yield Chart(
        "slots", f"Slots: a life in batches of {K}, {_short(depth)} waiting", "slots", US,
        [
            _line("no keys", [*one, *by_slots], "topic", "slots", SLOTS),
            _line("each message with a key", [*one, *figures.growth("slots, by key")], "topic",
                  "slots", SLOTS),
        ],
        {point["slots"]: str(point["slots"]) for point in (*one, *by_slots)},
    )  # fmt: skip
    bodies = [*deep[:1], *figures.growth("body")]
    yield Chart(
        "bodies", f"Bodies: a life in batches of {K}", "size of a body", US,
        [
            _line("RMQ", bodies, "topic", "body", BODIES),
            _line("SET, GET, DEL", bodies, "keys", "body", BODIES),
        ],
        {point["body"]: size(point["body"]) for point in bodies},
        is_log=True,
    )  # fmt: skip
    yield Chart(
        "batches", "Batches: a life of messages of 100 bytes", "messages in a call", US,
        [
            Line(label, [(k, figures.life(kind, k)) for k in BATCHES])
            for label, kind in (
                ("RMQ", "plain"), ("three bare scripts", "bare"), ("Redis stream", "stream")
            )
        ],
        {k: str(k) for k in BATCHES},
        is_log=True,
    )  # fmt: skip


def _dress(axes: Axes, chart: Chart) -> None:
    """Set scales, ticks and texts."""
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    axes.set_xscale("log")
    axes.set_xticks(list(chart.ticks), list(chart.ticks.values()))
    axes.xaxis.set_minor_locator(NullLocator())
    if chart.is_log:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.set_title(chart.title, loc="left")
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    axes.grid(axis="y", color=INK, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, labelcolor=INK)


def draw(chart: Chart, directory: Path, suffix: str = "svg") -> Path:
    """Write a chart to a file, and return its path."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    style: Any = {
        "svg.hashsalt": chart.name,  # without it, ids differ from run to run
        "svg.fonttype": "none",  # keep text as text: smaller, and searchable
        "font.size": 10, "axes.titlesize": 11, "lines.linewidth": 1.8, "lines.markersize": 5,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
        ),
    }  # fmt: skip
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(figsize=(6.4, 3.4), layout="constrained")
        looks = zip(chart.lines, LOOKS, strict=False)
        for number, (line, (color, marker, dashes)) in enumerate(looks):
            axes.plot(
                [x for x, _ in line.points], [y for _, y in line.points], label=line.label,
                color=color, marker=marker, linestyle=dashes, gid=f"line-{number}",
            )  # fmt: skip
        _dress(axes, chart)
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / f"{chart.name}.{suffix}"
        facts = {"Title": chart.title, "Date": None, "Creator": None} if suffix == "svg" else None
        figure.savefig(file, transparent=True, dpi=120, metadata=facts)
        pyplot.close(figure)
    return file


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.plots", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="what --json has written")
    parser.add_argument("--into", type=Path, default=CHARTS, metavar="DIR", help="docs/charts")
    parser.add_argument("--format", choices=("svg", "png"), default="svg")
    asked = parser.parse_args()
    try:
        drawn = list(charts(Figures.read(asked.file)))
    except Missing as missing:
        raise SystemExit(f"{asked.file}: {missing}; {MEASURE}") from None
    for chart in drawn:
        print(draw(chart, asked.into, asked.format))


if __name__ == "__main__":
    main()
