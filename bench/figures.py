"""The figures of a run, read from the file that `python -m bench --json FILE` has written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

K = 100  # messages of a call, where a figure has one batch
# The way to a file that has all that docs/capacity.md needs.
MEASURE = (
    "measure with --only cost --only growth, "
    "and no other options than --rounds, --deepest and --json"
)


class Missing(LookupError):
    """A figure that the file does not have."""


class Spread(NamedTuple):
    """The value of a figure, and the least and the most of its rounds."""

    value: float
    least: float
    most: float


class Figures:
    """The figures of a run.

    Args:
        content: of the file.

    Attributes:
        machine: its description, by name.
        parts: those that were measured.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.machine: Mapping[str, str] = content["machine"]
        self._figures: dict[str, Mapping[str, Any]] = {
            figure["name"]: figure for figure in content["figures"]
        }
        self.parts = {figure["part"] for figure in self._figures.values()}

    @classmethod
    def read(cls, path: Path) -> Figures:
        """Return the figures of a file."""
        return cls(json.loads(path.read_text()))

    def _figure(self, name: str) -> Mapping[str, Any]:
        try:
            return self._figures[name]
        except KeyError:
            raise Missing(f"no figure {name!r}") from None

    def spread(self, name: str) -> Spread:
        """Return the value of a figure, and its least and most."""
        figure = self._figure(name)
        return Spread(figure["value"], min(figure["rounds"]), max(figure["rounds"]))

    def part(self, part: str) -> dict[str, tuple[float, Mapping[str, Any]]]:
        """Return value and notes of each figure of a part, by name."""
        return {
            name: (figure["value"], figure.get("notes", {}))
            for name, figure in self._figures.items()
            if figure["part"] == part
        }

    def names(self, part: str, start: str) -> list[str]:
        """Return the names of a part's figures that start so; there is one at least."""
        found = [
            name
            for name, figure in self._figures.items()
            if figure["part"] == part and name.startswith(start)
        ]
        if not found:
            raise Missing(f"no figure {start!r} of the part {part}")
        return found

    def target(self, name: str) -> str:
        """Return the target of a figure and whether it is met."""
        figure = self._figure(name)
        if figure["target"] is None:
            return ""
        sign = "<=" if figure["at_most"] else ">="
        text = f"{sign} {figure['target']:g}"
        return text if figure["verdict"] == "ok" else f"{text}, **{figure['verdict']}**"

    def cost(self, verb: str, kind: str, k: int, column: str = "cpu") -> float:
        """Return the least of a column of the part cost, for one message."""
        return float(self._figure(f"{verb}, {kind}, k = {k}")["columns"][column]["least"])

    def life(self, kind: str, k: int, column: str = "cpu") -> float:
        """Return the same of a whole life; a single message is sent, taken and acked by itself."""
        return self.cost("life" if k > 1 else "single life", kind, k, column)

    def growth(self, grows: str | None = None) -> Sequence[Mapping[str, Any]]:
        """Return the points of the part growth, all or of a series."""
        found = [
            figure
            for figure in self._figures.values()
            if "grows" in figure and grows in (None, figure["grows"])
        ]
        if not found:
            raise Missing(f"no figure of growth by {grows}" if grows else "no figure of growth")
        return found

    def rounds(self, part: str) -> int:
        """Return the rounds of a part: the most that a figure of it has."""
        counts = [len(one["rounds"]) for one in self._figures.values() if one["part"] == part]
        if not counts:
            raise Missing(f"no figure of the part {part}")
        return max(counts)

    def caption(self, part: str, how: str = "least") -> str:
        """Return when and where a part was measured, and what of its rounds is shown, if any."""
        machine = self.machine
        servers = [name for name in ("redis-server", "valkey-server") if name in machine]
        try:
            return (
                f"{machine['date']}, {machine['cpu']}, {servers[0]} {machine[servers[0]]} with "
                f"{machine['allocator']}, Python {machine['python']}, redis-py "
                f"{machine['redis-py']}, hiredis {machine['hiredis']}; "
                f"load before the run {machine['load before']}."
                + (f" {how.capitalize()} of {self.rounds(part)} rounds." if how else " One run.")
            )
        except (KeyError, IndexError):
            raise Missing("the machine is not described as the bench does it now") from None


def size(count: int) -> str:
    """Return a number of bytes as people say it."""
    return f"{count // 1024} KiB" if count >= 1024 else f"{count} B"


def spaced(number: float) -> str:
    """Return a whole number with a space between thousands."""
    return f"{number:,.0f}".replace(",", " ")


def us(value: float) -> str:
    """Return a time with three digits, or two behind the point."""
    if value >= 100:
        return spaced(value)
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"
