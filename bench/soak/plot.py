"""A chart of a history: acked messages per second, with the faults marked.

It needs matplotlib, which no extra of RMQ brings (docs/decisions/0025).
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

from bench.soak.figures import beginning, faults
from bench.soak.history import Event
from rmq.errors import ConfigurationError

COLORS = ("#c2410c", "#1d4ed8", "#15803d", "#7e22ce", "#a16207", "#0e7490", "#be185d", "#4d7c0f")


def load() -> Any:
    """Import matplotlib.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError as error:
        raise ConfigurationError(
            'the plot needs matplotlib: pip install "matplotlib>=3.10" (in a checkout of RMQ: '
            "pip install --group plots)"
        ) from error
    matplotlib.use("agg")
    return importlib.import_module("matplotlib.pyplot")


def acked_per_second(events: Iterable[Event], first: int) -> list[int]:
    """Return how many acks were accepted in each second after `first`, monotonic ns."""
    counts = Counter(
        (event.t - first) // 1_000_000_000
        for event in events
        if event.op == "ack" and event.type == "ok"
    )
    return [counts[second] for second in range(max(counts) + 1)] if counts else []


def draw(history: Iterable[Event], path: str) -> None:
    """Draw the chart of a history into a file; its extension gives the format: .svg, .png, .pdf.

    Raises:
        ConfigurationError: matplotlib is not installed, or cannot write the format.
    """
    pyplot = load()
    events = sorted(history, key=lambda event: event.t)
    first = beginning(events)
    figure, axes = pyplot.subplots(figsize=(10, 4))
    acked = acked_per_second(events, first)
    axes.step(range(len(acked)), acked, where="post", color="#475569", linewidth=1.2)
    colors: dict[str, str] = {}
    for fault in faults(events):
        new = fault.name not in colors
        color = colors.setdefault(fault.name, COLORS[len(colors) % len(COLORS)])
        begun, ended = (fault.begun - first) / 1e9, (fault.ended - first) / 1e9
        label = fault.name if new else None
        axes.axvspan(begun, max(ended, begun + 0.1), color=color, alpha=0.3, label=label)
    axes.set(xlabel="seconds", ylabel="acked messages per second", ylim=(0, None))
    if colors:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=4, frameon=False)
    try:
        figure.savefig(path, bbox_inches="tight")
    except ValueError as error:
        raise ConfigurationError(f"--plot {path}: {error}") from error
    finally:
        pyplot.close(figure)
