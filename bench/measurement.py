"""A measurement: its value in each round, the target, and the verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Measurement:
    """A row of the report.

    Attributes:
        part: Part of the bench that measured it.
        name: Title of the row.
        rounds: Value of each round; the report shows median, least and most.
        unit: Unit of the values; "x" is a ratio inside one round.
        target: Bound that the median should meet, or None.
        at_most: Whether the target is an upper bound.
    """

    part: str
    name: str
    rounds: Sequence[float]
    unit: str = "x"
    target: float | None = None
    at_most: bool = False
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """Return the median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def verdict(self) -> str:
        """Return whether the median meets the target: "ok", "short", or "" without a target."""
        if self.target is None:
            return ""
        met = self.value <= self.target if self.at_most else self.value >= self.target
        return "ok" if met else "short"

    def as_json(self) -> dict[str, Any]:
        """Return all fields, for a file."""
        return {
            "part": self.part,
            "name": self.name,
            "value": self.value,
            "rounds": list(self.rounds),
            "unit": self.unit,
            "target": self.target,
            "at_most": self.at_most,
            "verdict": self.verdict,
            **({"notes": self.notes} if self.notes else {}),
        }


def ratios_of(ours: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the ratio of two figures in each round."""
    return [own / other for own, other in zip(ours, others, strict=True)]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
