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

from rmq.core import lateness
from rmq.core.lateness import Counts
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
        late_p50_s: half of the messages taken since the sample before were at most so late; None:
            none was taken for the first time, or it is not known. To within a factor of 2.
        late_p99_s: the same for 99 of 100.
    """

    at: datetime
    counts: Mapping[str, int]
    late_s: float
    rates: Mapping[str, float]
    late_p50_s: float | None = None
    late_p99_s: float | None = None


class Figures(NamedTuple):
    """A sample as it is stored."""

    at_ms: int
    due_since_ms: int  # when the first due message was due; 0: there is none
    levels: tuple[int, ...]
    counters: tuple[int, ...]
    lateness: Counts = ()  # a counter of each bucket; empty: not known

    @property
    def content(self) -> tuple[Any, ...]:
        """All but the moment."""
        return self[1:]


def figures_of(counts: Mapping[str, int], late: Counts = ()) -> Figures:
    """Return what is kept of the counts of a topic, as `Admin.stats` names them, and lateness."""
    late_ms = counts["late_ms"]
    return Figures(
        counts["now_ms"],
        counts["now_ms"] - late_ms if late_ms > 0 else 0,
        tuple(counts[name] for name in LEVELS),
        tuple(counts[name] for name in COUNTERS),
        late,
    )


def write(figures: Figures) -> bytes:
    """Return figures as they are stored.

    Of lateness: how many buckets, the first of them, and their counters; all others are 0.
    """
    used = [bucket for bucket, count in enumerate(figures.lateness) if count]
    first, end = (used[0], used[-1] + 1) if used else (0, 0)
    late = (end - first, first, *figures.lateness[first:end]) if figures.lateness else ()
    flat = (figures.at_ms, figures.due_since_ms, *figures.levels, *figures.counters, *late)
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
    late = _read_lateness(rest[len(LEVELS) + len(COUNTERS) :])
    return Figures(at_ms, due_since_ms, tuple(levels), tuple(counters), late)


def _read_lateness(stored: Sequence[int]) -> Counts:
    """Return the counter of each bucket; empty where the sample has none."""
    if len(stored) < 2:  # an earlier version stored none
        return ()
    size, first, *counters = stored
    if len(counters) < size or not 0 <= first <= lateness.BUCKETS - size:
        return ()
    after = lateness.BUCKETS - first - size
    return (*(0,) * first, *counters[:size], *(0,) * after)


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
    taken: Counts = ()
    if before is not None:
        taken = lateness.growth(figures.lateness, before.lateness)
        grown = zip(COUNTERS, figures.counters, before.counters, strict=True)
        rates = {name: max(0, now - then) * 1000 / step_ms for name, now, then in grown}
    due_since_ms = figures.due_since_ms
    return Sample(
        moment(at_ms),
        dict(zip(LEVELS, figures.levels, strict=True)),
        max(0, at_ms - due_since_ms) / 1000 if due_since_ms else 0.0,
        rates,
        lateness.percentile_s(taken, 0.50),
        lateness.percentile_s(taken, 0.99),
    )
