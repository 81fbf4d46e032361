"""Lateness: how long after its due time a message was taken, counted in buckets.

Each consumer counts its own deliveries, and adds the counts to those of the topic every few
seconds. Only first attempts count, because a message does not store when its retry was due; see
`rmq.core.telemetry.lateness_s`, of which this differs in the end: the take, not the handler.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rmq.core.record import TIMED

BUCKETS = 24
# Upper bounds of all buckets but the last, which is open: powers of 2 from 1 ms to 70 minutes.
BOUNDS_MS = tuple(1 << power for power in range(BUCKETS - 1))
REPORT_S = 5.0  # a delivery is reported so long after it was counted, if its consumer is called
PER_BATCH = 8  # messages of a batch that are looked at, evenly spaced; each stands for others

NEVER = float("inf")
# The first 6 bytes of an id are the epoch ms at which it was made, with the marks of rmq.core.ids.
_KEPT_MS, _DERIVED_MS = 0x40 << 40, 0x80 << 40

Counts = tuple[int, ...]  # of each bucket; empty: not known
NONE: Counts = (0,) * BUCKETS


def bucket_of(late_ms: int) -> int:
    """Return the bucket of a lateness; below 0 it counts as 0."""
    return min(late_ms.bit_length(), BUCKETS - 1) if late_ms > 0 else 0


def total(counts: Iterable[Counts]) -> Counts:
    """Return the counts of several slots, added up; fewer buckets are filled up with 0."""
    return tuple(map(sum, zip(*(_filled(each) for each in counts), strict=True))) or NONE


def growth(now: Counts, before: Counts) -> Counts:
    """Return how many were counted between two readings; empty where one of them is not known.

    Counters that began anew meanwhile have grown by nothing.
    """
    if not now or not before:
        return ()
    return tuple(max(0, n - b) for n, b in zip(_filled(now), _filled(before), strict=True))


def percentile_s(counts: Counts, share: float) -> float | None:
    """Return the lateness that a share of the deliveries did not exceed, in seconds.

    It lies in the bucket of the true value, and is interpolated there; in the last bucket it is the
    lower bound of that.

    Args:
        counts: of the buckets.
        share: above 0, at most 1.

    Returns:
        None where there is no delivery.
    """
    rank, below = sum(counts) * share, 0
    for bucket, count in enumerate(counts):
        if count and below + count >= rank:
            low = BOUNDS_MS[bucket - 1] if bucket else 0
            high = BOUNDS_MS[bucket] if bucket < len(BOUNDS_MS) else low
            return (low + (high - low) * max(0.0, rank - below) / count) / 1000
        below += count
    return None


def read(stored: bytes) -> Counts:
    """Read the counts that a slot stores as text; fewer than BUCKETS where it has none."""
    return tuple(map(int, stored.split()))[:BUCKETS]


def _filled(counts: Counts) -> Counts:
    return counts + NONE[len(counts) :]


class LatenessCounter:
    """The lateness of deliveries of one consumer that were not reported yet.

    Attributes:
        report_at: when to report, by the monotonic clock; infinity where there is nothing.
    """

    __slots__ = ("_counts", "report_at")

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS
        self.report_at = NEVER

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return self.report_at == NEVER

    def count(
        self,
        ids: Sequence[bytes],
        records: Sequence[bytes],
        lefts: bytes,
        max_retries: int,
        now_ms: int,
        by_test: bool = False,
    ) -> None:
        """Count the messages of a batch that are first attempts and whose due time is known.

        Args:
            ids: of the messages.
            records: of the messages; empty: it is not held any more.
            lefts: retries left of each, a byte each; empty: all are first attempts.
            max_retries: of a first attempt.
            now_ms: epoch ms by this machine's clock.
            by_test: it is a test's time; then only messages with a due time count, as others were
                made by another clock.
        """
        counts, bucket, size = self._counts, -1, len(ids)
        step = size // PER_BATCH or 1
        looked_at = range(step // 2, size, step)
        for at in looked_at:
            entry = records[at]
            if not entry or (lefts and lefts[at] != max_retries):
                continue
            if entry[0] & TIMED:
                due_ms = int.from_bytes(entry[8:14], "big")
            else:
                due_ms = int.from_bytes(ids[at][:6], "big")
                if due_ms >= _KEPT_MS:
                    if due_ms >= _DERIVED_MS:
                        continue
                    due_ms -= _KEPT_MS
                if by_test:
                    continue
            bucket = bucket_of(now_ms - due_ms)
            counts[bucket] += step
        if bucket >= 0:
            counts[bucket] += size - step * len(looked_at)  # the last one stands for the rest
            if self.report_at == NEVER:
                self.report_at = time.monotonic() + REPORT_S

    def take(self) -> Counts:
        """Return the counts, and begin anew."""
        counts, self._counts = tuple(self._counts), [0] * BUCKETS
        self.report_at = NEVER
        return counts

    def put_back(self, counts: Counts) -> None:
        """Add counts that could not be reported; they are reported later."""
        self._counts = [a + b for a, b in zip(self._counts, counts, strict=True)]
        self.report_at = time.monotonic() + REPORT_S
