"""Read and check the setting `slo` of a topic: an objective for the lateness of deliveries.

A service-level objective such as "p99<2s" means that consumers receive 99 of 100 messages less than
2 s after their due time.

RMQ compares the objective with the lateness of the messages received in the last minutes
(`WINDOW_MS`). This lateness is accurate to a factor of 2, because `metrics` counts messages in
buckets. If no message was received, RMQ uses the time that the oldest message has waited, because
this message will be at least that late.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core.metrics import Counts, percentile_s
from rmq.kernel.core.validation import duration_ms, format_duration, parse_duration

OFF = "off"
# Messages received within this time are compared; a shorter time would have too few messages.
WINDOW_MS = 300_000
PERCENTILES = (50, 90, 95, 99)
LONGEST_MS = 86_400_000
_TEXT = re.compile(r"p(\d{1,3})\s*<\s*([^<>=\s]+)")


class Slo(NamedTuple):
    """An objective for the lateness of deliveries.

    Attributes:
        percentile: How many of 100 messages must be on time: 50, 90, 95 or 99.
        within_s: Longest time from the due time to the delivery of a message that is on time, in
            seconds.
    """

    percentile: int
    within_s: float

    def __str__(self) -> str:
        """Return the objective as a person would write it, such as "p99<2s"."""
        return f"p{self.percentile}<{format_duration(self.within_s)}"

    def is_missed(self, lateness_s: float | None) -> bool:
        """Return whether a lateness misses the objective.

        If the lateness is None (unknown), return False.
        """
        return lateness_s is not None and lateness_s >= self.within_s

    def lateness_s(self, taken: Counts, late_ms: int) -> float | None:
        """Return the lateness to compare with the objective.

        If no message was received and no message waits, return None.

        Args:
            taken: For each bucket of lateness, number of messages received in the last minutes.
            late_ms: Waiting time of the oldest message that consumers may receive. 0 if there is no
                such message.
        """
        found = percentile_s(taken, self.percentile / 100)
        return late_ms / 1000 if found is None and late_ms > 0 else found


def parse(value: object) -> Slo | None:
    """Read an objective from a string such as "p99<2s".

    If the value is None or "off", return None.

    Raises:
        InvalidType: The value is not a str.
        InvalidValue: The string is not an objective, or its percentile or duration is not allowed.
    """
    if value is None or value == OFF:
        return None
    if not isinstance(value, str):
        raise InvalidType(f"slo: {value!r:.80}; give text, as 'p99<2s', or None")
    match = _TEXT.fullmatch(value.strip())
    if match is None or int(match[1]) not in PERCENTILES:
        raise InvalidValue(
            f"slo: {value!r:.80}; give off, or p50, p90, p95 or p99, <, and a duration, as p99<2s"
        )
    try:
        within_s = parse_duration(match[2])
    except ValueError as error:
        raise InvalidValue(f"slo: {error}") from None
    return Slo(int(match[1]), duration_ms(within_s, "slo", high_ms=LONGEST_MS) / 1000)


def check(value: object) -> str:
    """Check an objective, and return it as the string that Redis stores.

    If there is no objective, return "off".

    Raises:
        InvalidType, InvalidValue: See `parse`.
    """
    return str(parse(value) or OFF)
