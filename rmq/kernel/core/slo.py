"""The setting `slo` of a topic: how late its messages may be delivered, and whether that holds.

A service-level objective such as "p99<2s": 99 of 100 messages are taken less than 2 s after they
were due. Compared with it are the messages that were taken in the last minutes (`WINDOW_MS`), as
`telemetry` counts them; they are known to within a factor of 2. While none is taken, how long the
oldest message waits is compared: it will be at least so late.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core.telemetry import Counts, percentile_s
from rmq.kernel.core.validation import duration_ms, format_duration, parse_duration

OFF = "off"
WINDOW_MS = 300_000  # messages that were taken within it are compared: ten alone would be chance
PERCENTILES = (50, 90, 95, 99)
LONGEST_MS = 86_400_000
_TEXT = re.compile(r"p(\d{1,3})\s*<\s*([^<>=\s]+)")


class Slo(NamedTuple):
    """How late messages may be delivered.

    Attributes:
        percentile: of so many of 100 messages: 50, 90, 95 or 99.
        within_s: they are taken sooner after they were due.
    """

    percentile: int
    within_s: float

    def __str__(self) -> str:
        """Return it as a person writes it."""
        return f"p{self.percentile}<{format_duration(self.within_s)}"

    def is_missed(self, lateness_s: float | None) -> bool:
        """Whether messages were that late; None: not known, so it is not missed."""
        return lateness_s is not None and lateness_s >= self.within_s

    def lateness_s(self, taken: Counts, late_ms: int) -> float | None:
        """Return what is compared with it; None where nothing was taken, and nothing waits.

        Args:
            taken: how many messages were taken how late in the last minutes.
            late_ms: how long the oldest message that may be taken waits; 0: there is none.
        """
        found = percentile_s(taken, self.percentile / 100)
        return late_ms / 1000 if found is None and late_ms > 0 else found


def parse(value: object) -> Slo | None:
    """Read an objective from text such as "p99<2s"; None for None and "off".

    Raises:
        InvalidType: it is no text.
        InvalidValue: it is no objective, or one of another percentile or duration.
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
    """Return an objective as its text in Redis: "off" without one.

    Raises:
        InvalidType, InvalidValue: as `parse`.
    """
    return str(parse(value) or OFF)
