"""A figure: what was measured in each round, what it should be, and whether it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Figure:
    """One row of the report.

    Attributes:
        part: the part of the bench that measured it.
        name: what it is.
        rounds: its value in each round; the report shows median, least and most.
        unit: of the values; "x" is a ratio inside one round.
        target: what it should be, or None where nothing was promised.
        at_most: whether the target is an upper bound.
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
        """The median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def verdict(self) -> str:
        """Whether the median meets the target: ok, short, or nothing where there is none."""
        if self.target is None:
            return ""
        met = self.value <= self.target if self.at_most else self.value >= self.target
        return "ok" if met else "short"

    def as_json(self) -> dict[str, Any]:
        """Everything, for a file."""
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


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
