"""Store samples of a topic's counters, and compute the points of charts from these samples.

A topic has three rings of samples, with different resolutions. A ring stores one sample for each
step of time. Later samples overwrite earlier samples, so the size of a ring is constant.

A sample has counters, not rates, so that RMQ misses no event between two samples. The rates in a
chart come from the growth of a counter. RMQ assumes that a counter grows evenly between two
samples.

A sample has the time when the oldest due message became due, not how long this message has
waited. So the samples of an idle topic are equal, and RMQ stores a sample only every UNCHANGED_MS.
When the topic is busy again, RMQ also stores the previous reading, because the growth began after
that reading.

If the newest sample shows growth, RMQ does not know yet how the growth continues. So later points
have no rates. If RMQ stores no further sample within the time that `_growth_wait_ms` returns, the
counters have not grown.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

import msgpack

from rmq.kernel.core import metrics
from rmq.kernel.core.metrics import Counts
from rmq.kernel.core.score import moment

LEVELS = ("retries", "priority", "due", "later", "in_flight", "dead", "held")
COUNTERS = ("accepted", "delivered", "settled", "returned", "rolled_back", "dead_lettered")


class Ring(NamedTuple):
    """The message counts of a topic over time (samples), in one resolution.

    A ring stores one sample for each step of time. The ring keeps a fixed number of samples, and
    drops the oldest sample first.
    """

    step_ms: int
    size: int

    @property
    def span_ms(self) -> int:
        """How long Redis keeps a sample of the message counts, ms."""
        return self.step_ms * self.size

    def field(self, at_ms: int) -> str:
        """Return the hash field that stores the message counts of a given time."""
        return f"{self.step_ms // 1000}:{at_ms // self.step_ms % self.size}"


RINGS = (Ring(10_000, 360), Ring(60_000, 1440), Ring(600_000, 1008))  # an hour, a day, a week
COARSEST = RINGS[-1]
STEP_MIN_MS = RINGS[0].step_ms
KEEP_MS = COARSEST.span_ms + 3_600_000
UNCHANGED_MS = 600_000  # time after which unchanged figures are sampled again
VALID_MS = UNCHANGED_MS + 150_000  # validity of a sample: the next sample may be two readings late
GROWTH_WAIT_MIN_MS = 30_000  # two readings of 5 to 15 s each, if there are few topics
GROWTH_WAIT_MAX_MS = VALID_MS - UNCHANGED_MS
POINTS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Sample:
    """The counts and rates of a topic at one time.

    Attributes:
        at: Time when the sample was taken.
        counts: Number of messages by state. Messages in the states "retries", "priority" and "due"
            may be received now. Messages in the state "later" have a future due time. A pause, a
            limit or a group prevents the delivery of messages in the state "held". The other states
            are "in_flight" and "dead".
        late_s: Waiting time of the oldest message that consumers may receive, seconds.
        rates: Events per second since the previous sample: accepted, delivered, settled, returned,
            rolled_back, dead_lettered. Empty if unknown.
        late_p50_s: Median lateness of the messages received since the previous sample, accurate to
            a factor of 2. Only first deliveries count. None if no message was received, or if the
            median is unknown.
        late_p99_s: 99th percentile of the same lateness, with the same accuracy.
        late_p90_s: 90th percentile of the same lateness, with the same accuracy.
        late_p95_s: 95th percentile of the same lateness, with the same accuracy.
    """

    at: datetime
    counts: Mapping[str, int]
    late_s: float
    rates: Mapping[str, float]
    late_p50_s: float | None = None
    late_p99_s: float | None = None
    late_p90_s: float | None = None
    late_p95_s: float | None = None


class StoredSample(NamedTuple):
    """A sample of a topic's counters, as Redis stores it."""

    at_ms: int
    due_since_ms: int  # when the oldest due message became due; 0 if no message is due
    levels: tuple[int, ...]
    counters: tuple[int, ...]
    lateness: Counts = ()  # a counter for each bucket; empty if unknown

    @property
    def content(self) -> tuple[Any, ...]:
        """All numbers of the sample (message counts and rates), without the time."""
        return self[1:]


def stored_sample(counts: Mapping[str, int], late: Counts = ()) -> StoredSample:
    """Create a sample (the message counts at one time) from the counts of `Admin.stats`."""
    late_ms = counts["late_ms"]
    return StoredSample(
        counts["now_ms"],
        counts["now_ms"] - late_ms if late_ms > 0 else 0,
        tuple(counts[name] for name in LEVELS),
        tuple(counts[name] for name in COUNTERS),
        late,
    )


def write(figures: StoredSample) -> bytes:
    """Encode a sample (the message counts at one time) as bytes.

    RMQ stores the histogram of lateness without the empty buckets at both ends.
    """
    used = [bucket for bucket, count in enumerate(figures.lateness) if count]
    first, end = (used[0], used[-1] + 1) if used else (0, 0)
    late = (end - first, first, *figures.lateness[first:end]) if figures.lateness else ()
    flat = (figures.at_ms, figures.due_since_ms, *figures.levels, *figures.counters, *late)
    return bytes(msgpack.packb(flat))


def read(stored: bytes) -> StoredSample | None:
    """Decode the message counts of one time. Return None if this version cannot read them."""
    try:
        at_ms, due_since_ms, *rest = msgpack.unpackb(stored)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    numbers = (at_ms, due_since_ms, *rest)
    if len(rest) < len(LEVELS) + len(COUNTERS) or not all(type(n) is int for n in numbers):
        return None
    levels, counters = rest[: len(LEVELS)], rest[len(LEVELS) : len(LEVELS) + len(COUNTERS)]
    late = _read_lateness(rest[len(LEVELS) + len(COUNTERS) :])
    return StoredSample(at_ms, due_since_ms, tuple(levels), tuple(counters), late)


def _read_lateness(stored: Sequence[int]) -> Counts:
    if len(stored) < 2:
        return ()
    size, first, *counters = stored
    if not 0 <= size <= len(counters) or not 0 <= first <= metrics.BUCKETS - size:
        return ()
    after = metrics.BUCKETS - first - size
    return (*(0,) * first, *counters[:size], *(0,) * after)


def newest_until(found: Iterable[StoredSample], at_ms: int) -> StoredSample | None:
    """Return the newest message counts that were recorded at or before a given time.

    If all samples are newer, return the oldest sample. If there are no samples, return None.
    """
    ordered = sorted(found, key=lambda figures: figures.at_ms)
    old = [figures for figures in ordered if figures.at_ms <= at_ms]
    return old[-1] if old else (ordered[0] if ordered else None)


def fields_between(ring: Ring, first_ms: int, last_ms: int) -> list[str]:
    """Return the hash fields of a ring that store the samples between two times."""
    begin = max(first_ms, last_ms - ring.span_ms + ring.step_ms) // ring.step_ms
    steps = range(begin, last_ms // ring.step_ms + 1)
    return [ring.field(step * ring.step_ms) for step in steps]


def rings_for(step_ms: int) -> Sequence[Ring]:
    """Return the rings to read for a chart with steps of this length.

    Each ring has samples of one resolution. The first ring in the result is the coarsest ring whose
    step divides the chart's step. All coarser rings follow.
    """
    fine = [ring for ring in RINGS if ring.step_ms <= step_ms and step_ms % ring.step_ms == 0]
    return RINGS[RINGS.index(fine[-1]) :]


def points(
    found: Iterable[StoredSample], first_ms: int, last_ms: int, step_ms: int
) -> list[Sample]:
    """Return the points of a chart: one sample for each step between two times.

    The sample of a step has the last figures before the time of the step. If these figures are too
    old, the step gets no sample.
    """
    ordered = sorted({figures.at_ms: figures for figures in found}.values())
    times = [figures.at_ms for figures in ordered]
    grown = _total_growth(ordered)
    waits_ms = _growth_wait_ms(ordered)
    known_ms = times[-1] if times and last_ms - times[-1] < waits_ms else last_ms
    samples: list[Sample] = []
    before: StoredSample | None = None
    for at_ms in range(first_ms - step_ms, last_ms + 1, step_ms):
        index = bisect_right(times, at_ms) - 1
        figures = ordered[index] if index >= 0 else None
        if figures is not None and at_ms - figures.at_ms > VALID_MS:
            figures = None
        if figures is not None and at_ms >= first_ms:
            rates: dict[str, float] = {}
            if before is not None and at_ms <= known_ms:
                now, then = (_growth_at(times, grown, at) for at in (at_ms, at_ms - step_ms))
                growth = zip(COUNTERS, now, then, strict=True)
                rates = {name: max(0.0, n - t) * 1000 / step_ms for name, n, t in growth}
            samples.append(_point(figures, before, at_ms, rates))
        before = figures
    return samples


def _total_growth(ordered: Sequence[StoredSample]) -> list[tuple[int, ...]]:
    """For each sample, return how much each counter has grown since the first sample.

    A reset of a counter counts as no growth.
    """
    grown = [(0,) * len(COUNTERS)]
    for before, figures in pairwise(ordered):
        pairs = zip(grown[-1], figures.counters, before.counters, strict=True)
        grown.append(tuple(sum_ + max(0, now - then) for sum_, now, then in pairs))
    return grown


def _growth_at(times: Sequence[int], grown: Sequence[tuple[int, ...]], at_ms: int) -> list[float]:
    """Return how much each counter has grown from the first sample to a later time."""
    after = bisect_right(times, at_ms)
    if after == len(times):
        return [float(each) for each in grown[-1]]
    share = (at_ms - times[after - 1]) / (times[after] - times[after - 1])
    pairs = zip(grown[after - 1], grown[after], strict=True)
    return [then + (now - then) * share for then, now in pairs]


def _growth_wait_ms(ordered: Sequence[StoredSample]) -> int:
    """Return how long the counters may have grown unnoticed after the newest sample, in ms.

    This is about twice the time between the last two samples. It is 0 if there is only one sample,
    or if the newest sample shows no growth. Without growth, no change is expected.
    """
    if len(ordered) < 2 or ordered[-1].counters == ordered[-2].counters:
        return 0
    apart_ms = ordered[-1].at_ms - ordered[-2].at_ms
    if apart_ms > VALID_MS:
        return 0
    return min(max(2 * apart_ms, GROWTH_WAIT_MIN_MS), GROWTH_WAIT_MAX_MS)


def _point(
    figures: StoredSample, before: StoredSample | None, at_ms: int, rates: Mapping[str, float]
) -> Sample:
    taken: Counts = ()
    if before is not None:
        taken = metrics.growth(figures.lateness, before.lateness)
    due_since_ms = figures.due_since_ms
    return Sample(
        moment(at_ms),
        dict(zip(LEVELS, figures.levels, strict=True)),
        max(0, at_ms - due_since_ms) / 1000 if due_since_ms else 0.0,
        rates,
        *(metrics.percentile_s(taken, share) for share in (0.50, 0.99, 0.90, 0.95)),
    )
