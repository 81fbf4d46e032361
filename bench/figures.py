"""The figures of runs, read from files of `python -m bench --json FILE`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

K = 100  # messages per call, for figures with one batch size
# How to make a file with all figures of docs/capacity.md.
MEASURE = (
    "measure with --only cost --only growth, "
    "and no other options than --rounds, --messages and --json"
)


class Missing(LookupError):
    """A figure that is missing in the file."""


class Spread(NamedTuple):
    """The value of a figure, and the least and most of its rounds."""

    value: float
    least: float
    most: float


class Figures:
    """The figures of one or several runs; a later run replaces figures of an earlier run.

    Args:
        contents: Contents of the files.

    Attributes:
        parts: Measured parts.
        runs: For each file, the description of its machine, and the load of others by part.
    """

    def __init__(self, *contents: Mapping[str, Any]) -> None:
        self.runs = [(content["machine"], content.get("loads", {})) for content in contents]
        self._figures: dict[str, Mapping[str, Any]] = {}
        self._of: dict[str, int] = {}  # part -> number of its run
        for number, content in enumerate(contents):
            for figure in content["figures"]:
                self._figures[figure["name"]] = figure
                self._of[figure["part"]] = number
        self.parts = {figure["part"] for figure in self._figures.values()}

    @classmethod
    def read(cls, *paths: Path) -> Figures:
        """Return the figures of files."""
        return cls(*(json.loads(path.read_text()) for path in paths))

    def load(self, *parts: str) -> float | None:
        """Return the highest load of others while parts were measured; None if it is unknown."""
        loads = [self.runs[self._of[part]][1].get(part) for part in parts]
        known = [load for load in loads if load is not None]
        return max(known) if len(known) == len(loads) else None

    def _figure(self, name: str) -> Mapping[str, Any]:
        try:
            return self._figures[name]
        except KeyError:
            raise Missing(f"no figure {name!r}") from None

    def spread(self, name: str) -> Spread:
        """Return the value of a figure, and its least and most."""
        figure = self._figure(name)
        return Spread(figure["value"], min(figure["rounds"]), max(figure["rounds"]))

    def of(self, *parts: str) -> list[Mapping[str, Any]]:
        """Return all figures of parts."""
        found = [figure for figure in self._figures.values() if figure["part"] in parts]
        if not found:
            raise Missing(f"no figure of the part {parts[0]}")
        return found

    def part(self, part: str) -> dict[str, tuple[float, Mapping[str, Any]]]:
        """Return value and notes of each figure of a part, by name."""
        return {
            name: (figure["value"], figure.get("notes", {}))
            for name, figure in self._figures.items()
            if figure["part"] == part
        }

    def names(self, part: str, start: str) -> list[str]:
        """Return the names of a part's figures with this start; at least one."""
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
        """Return the least of a column of the part cost, per message."""
        return float(self._figure(f"{verb}, {kind}, k = {k}")["columns"][column]["least"])

    def life(self, kind: str, k: int, column: str = "cpu") -> float:
        """Return the same for a whole life; for k = 1, a message is sent, taken and acked alone."""
        return self.cost("life" if k > 1 else "single life", kind, k, column)

    def growth(self, grows: str | None = None) -> Sequence[Mapping[str, Any]]:
        """Return the points of the part growth, all or those of a series."""
        found = [
            figure
            for figure in self._figures.values()
            if "grows" in figure and grows in (None, figure["grows"])
        ]
        if not found:
            raise Missing(f"no figure of growth by {grows}" if grows else "no figure of growth")
        return found

    def rounds(self, *parts: str) -> str:
        """Return the numbers of rounds of parts as text: "9", or "2 to 9"."""
        counts = [max(len(one["rounds"]) for one in self.of(part)) for part in parts]
        least, most = min(counts), max(counts)
        return f"{most}" if least == most else f"{least} to {most}"

    def caption(self, parts: Sequence[str], how: str = "least", appendonly: str = "") -> str:
        """Return a sentence with time, machine, rounds and load of the parts.

        Args:
            parts: Parts of the bench.
            how: Which of the rounds are shown; "" for one run.
            appendonly: Setting of the parts' own servers; "": that of the bench's server.
        """
        machine, _ = self.runs[self._of[parts[0]]]
        appendonly = appendonly or machine.get("appendonly", "no")
        servers = [name for name in ("redis-server", "valkey-server") if name in machine]
        load = self.load(*parts)
        try:
            return (
                f"{machine['date']}, commit {machine.get('commit') or 'unknown'}, "
                f"{machine['cpu']}, {servers[0]} {machine[servers[0]]} with "
                f"{machine['allocator']}, appendonly {appendonly}, "
                f"Python {machine['python']}, redis-py "
                f"{machine['redis-py']}, hiredis {machine['hiredis']}; "
                f"load before the run {machine['load before']}, of others meanwhile "
                + ("unknown." if load is None else f"{load:.2f}.")
                + (f" {how.capitalize()} of {self.rounds(*parts)} rounds." if how else " One run.")
            )
        except (KeyError, IndexError):
            raise Missing("the machine is not described as the bench does it now") from None


def size(count: int) -> str:
    """Return a number of bytes in the usual unit."""
    return f"{count // 1024} KiB" if count >= 1024 else f"{count} B"


def spaced(number: float) -> str:
    """Return a whole number with a space between thousands."""
    return f"{number:,.0f}".replace(",", " ")


def us(value: float) -> str:
    """Return a time with three digits, or with two decimals."""
    if value >= 100:
        return spaced(value)
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"
