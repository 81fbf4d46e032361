"""The history of a topic: samples of its figures, in rings of three resolutions.

A ring has one place for each of its steps, and a place is written anew when its turn comes again,
so a history never grows. A sample has the counters of the topic, not rates: rates are what the
counters grew by from one point to the next, so no event is missed between two samples. It has when
the oldest due message was due, not how late that is, so a topic in which nothing happens has equal
samples, of which one is enough.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import msgpack

from rmq.core.message import moment

LEVELS = ("retries", "priority", "due", "later", "in_flight", "dead", "held")
COUNTERS = ("accepted", "delivered", "settled", "returned", "rolled_back", "buried")


class Ring(NamedTuple):
    """A ring of samples: the last one of each step is kept, for so many steps."""

    step_ms: int
    places: int

    @property
    def span_ms(self) -> int:
        """How far back it goes."""
        return self.step_ms * self.places

    def place(self, at_ms: int) -> str:
        """Return the field of the history for a moment."""
        return f"{self.step_ms // 1000}:{at_ms // self.step_ms % self.places}"


RINGS = (Ring(10_000, 360), Ring(60_000, 1440), Ring(600_000, 1008))  # an hour, a day, a week
COARSEST = RINGS[-1]
STEP_LEAST_MS = RINGS[0].step_ms
KEEP_MS = COARSEST.span_ms + 3_600_000
SAME_MS = 600_000  # figures that have not changed are sampled again after so long
HOLDS_MS = SAME_MS + 150_000  # a sample counts until then: the next one may come two looks later
POINTS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of a topic at one moment.

    Attributes:
        at: the moment.
        counts: how many messages wait as retries, with a priority, due, or for a later time
            ("later"), are "in_flight", "dead", or "held" back by a pause or a limit.
        late_s: for how long the first due message has been due.
        rates: events a second since the sample before: accepted, delivered, settled, returned,
            rolled_back, buried; empty where that is not known.
    """

    at: datetime
    counts: Mapping[str, int]
    late_s: float
    rates: Mapping[str, float]


class Figures(NamedTuple):
    """A sample as it is stored."""

    at_ms: int
    due_since_ms: int  # when the first due message was due; 0: there is none
    levels: tuple[int, ...]
    counters: tuple[int, ...]

    @property
    def content(self) -> tuple[Any, ...]:
        """All but the moment."""
        return self[1:]


def figures_of(counts: Mapping[str, int]) -> Figures:
    """Return what is kept of the counts of a topic, as `Admin.stats` names them."""
    late_ms = counts["late_ms"]
    return Figures(
        counts["now_ms"],
        counts["now_ms"] - late_ms if late_ms > 0 else 0,
        tuple(counts[name] for name in LEVELS),
        tuple(counts[name] for name in COUNTERS),
    )


def write(figures: Figures) -> bytes:
    """Return figures as they are stored."""
    flat = (figures.at_ms, figures.due_since_ms, *figures.levels, *figures.counters)
    return bytes(msgpack.packb(flat))


def read(stored: bytes) -> Figures | None:
    """Read stored figures; None if they are none that this version knows."""
    try:
        at_ms, due_since_ms, *rest = msgpack.unpackb(stored)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    numbers = (at_ms, due_since_ms, *rest)
    if len(rest) < len(LEVELS) + len(COUNTERS) or not all(type(n) is int for n in numbers):
        return None
    levels, counters = rest[: len(LEVELS)], rest[len(LEVELS) : len(LEVELS) + len(COUNTERS)]
    return Figures(at_ms, due_since_ms, tuple(levels), tuple(counters))


def places_between(ring: Ring, first_ms: int, last_ms: int) -> list[str]:
    """Return the fields of a ring for the moments between two, as far as it goes back."""
    begin = max(first_ms, last_ms - ring.span_ms + ring.step_ms) // ring.step_ms
    steps = range(begin, last_ms // ring.step_ms + 1)
    return [ring.place(step * ring.step_ms) for step in steps]


def rings_for(step_ms: int) -> Sequence[Ring]:
    """Return the rings that have all samples which points this far apart can show."""
    fine = [ring for ring in RINGS if ring.step_ms <= step_ms and step_ms % ring.step_ms == 0]
    return RINGS[RINGS.index(fine[-1]) :]


def points(found: Iterable[Figures], first_ms: int, last_ms: int, step_ms: int) -> list[Sample]:
    """Return a sample for each step between two moments.

    Each point has the last figures before it. A point after which nobody looked for too long is
    left out.
    """
    ordered = sorted({figures.at_ms: figures for figures in found}.values())
    times = [figures.at_ms for figures in ordered]
    samples: list[Sample] = []
    before: Figures | None = None
    for at_ms in range(first_ms - step_ms, last_ms + 1, step_ms):
        index = bisect_right(times, at_ms) - 1
        figures = ordered[index] if index >= 0 else None
        if figures is not None and at_ms - figures.at_ms > HOLDS_MS:
            figures = None
        if figures is not None and at_ms >= first_ms:
            samples.append(_point(figures, before, at_ms, step_ms))
        before = figures
    return samples


def _point(figures: Figures, before: Figures | None, at_ms: int, step_ms: int) -> Sample:
    rates: dict[str, float] = {}
    if before is not None:
        grown = zip(COUNTERS, figures.counters, before.counters, strict=True)
        rates = {name: max(0, now - then) * 1000 / step_ms for name, now, then in grown}
    due_since_ms = figures.due_since_ms
    return Sample(
        moment(at_ms),
        dict(zip(LEVELS, figures.levels, strict=True)),
        max(0, at_ms - due_since_ms) / 1000 if due_since_ms else 0.0,
        rates,
    )
