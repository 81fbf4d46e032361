"""Check arguments: whole numbers, ranges of numbers, durations, times, invisible characters.

Each check raises an error that names the field, the wrong value and a correct value.

All code for durations is in this module: `duration_ms` checks a value, `parse_duration` reads a
string, and `format_duration` writes a string.

A list of ranges is a sorted list of (first, last) pairs. Ranges that touch are joined.

`UNSEEN` contains the invisible characters, and the characters that change the direction of text.
Bodies, errors, headers and names come from other people, so the command line and the console show
these characters as codes. ASCII control characters are not part of `UNSEEN`, because a terminal and
a web page treat them differently.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core.score import PRIORITY_MAX, PRIORITY_MIN, TIMED_MIN

Ranges = list[tuple[int, int]]

EXACT_MAX = 2**53  # larger whole numbers are not exact in Lua and JSON
MOMENT_MAX_MS = 100_000_000_000_000  # largest epoch ms accepted from Redis: the year 5138

# Errors that Python raises while RMQ reads a value from Redis that RMQ did not write.
UNREADABLE = (
    ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError
)  # fmt: skip


def from_numbers(numbers: Iterable[int]) -> Ranges:
    """Return a list of (first, last) ranges for numbers in rising order."""
    return union((number, number) for number in numbers)


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sort ranges, and merge ranges that overlap or touch."""
    result: Ranges = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result


def intersection(left: Ranges, right: Ranges) -> Ranges:
    """Return the numbers that are in both lists of ranges."""
    result, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        first, last = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if first <= last:
            result.append((first, last))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return result


def difference(left: Ranges, right: Ranges) -> Ranges:
    """Return the numbers that are in `left` and not in `right`."""
    result, start = [], 0
    for first, last in left:
        while start < len(right) and right[start][1] < first:
            start += 1
        j = start
        while j < len(right) and right[j][0] <= last:
            if right[j][0] > first:
                result.append((first, right[j][0] - 1))
            first = right[j][1] + 1
            j += 1
        if first <= last:
            result.append((first, last))
    return result


def count(ranges: Iterable[tuple[int, int]]) -> int:
    """Return how many numbers a list of ranges contains."""
    return sum(last - first + 1 for first, last in ranges)


UNSEEN = (  # for a character class of a regular expression
    "\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f"
)

Duration = float | timedelta
Moment = datetime | int

YEAR_MS = 366 * 86_400_000
TEN_YEARS_MS = 3_653 * 86_400_000  # with one leap day more, so that "ten years" never fails


_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d|)")


def parse_duration(text: str) -> float:
    """Read a duration in seconds from a string.

    If the string is wrong, raise a ValueError that shows the accepted forms.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; give 1.5 (seconds), 500ms, 30s, 5m, 2h, 1d")
    return round(float(match[1]) * _UNITS_S[match[2]], 6)


def format_duration(value: Duration) -> str:
    """Return a duration as the string that `parse_duration` reads."""
    value = value.total_seconds() if isinstance(value, timedelta) else value
    if value < 1:
        return f"{value * 1000:g}ms" if value else "0s"
    for unit in ("d", "h", "m"):
        if value % _UNITS_S[unit] == 0:
            return f"{value / _UNITS_S[unit]:g}{unit}"
    return f"{value:.10g}s"


def span(ms: float, gap: str = "", minute: str = "m") -> str:
    """Return a length of time as text for people, with at most two units such as h and min.

    Args:
        ms: Length of time, ms.
        gap: Text between a number and its unit.
        minute: Text for the unit "minute".
    """
    if ms < 1000:
        return f"{ms:.0f}{gap}ms"
    seconds = int(ms / 1000)
    for unit, size, smaller, part in (
        ("d", 86400, "h", 3600), ("h", 3600, minute, 60), (minute, 60, "s", 1),
    ):  # fmt: skip
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size}{gap}{unit}" + (f" {rest}{gap}{smaller}" if rest else "")
    return f"{ms / 1000:.1f}{gap}s"


def utf8(text: str, field: str) -> bytes:
    """Encode text as UTF-8. If the text contains a surrogate, raise InvalidValue."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidValue(f"{field}: {error}; give text that UTF-8 can carry") from error


def check_int(value: object, field: str, low: int, high: int) -> int:
    """Check that a value is a whole number from `low` to `high`, and return it."""
    if isinstance(value, bool) or not isinstance(value, int):
        hint = f"; write {int(value)}" if isinstance(value, str) and value.isdecimal() else ""
        raise InvalidType(f"{field}: {value!r} is not a whole number{hint}")
    if not low <= value <= high:
        raise InvalidValue(f"{field}: {value}; give {low} to {high}")
    return value


_TYPE = re.compile(r"[A-Za-z0-9._:/-]{1,128}")


def check_message_type(value: object) -> str:
    """Check a message type, and return it.

    A message type has 1 to 128 characters of A-Z a-z 0-9 . _ - : /.
    """
    if not isinstance(value, str):
        raise InvalidType(f"type: {value!r}; give a str")
    if not _TYPE.fullmatch(value):
        raise InvalidValue(f"type: {value[:140]!r}; give 1 to 128 of A-Z a-z 0-9 . _ - : /")
    return value


def check_priority(value: object) -> int:
    """Check that a priority is 17 to 1 048 575, and return it."""
    return check_int(value, "priority", PRIORITY_MIN, PRIORITY_MAX)


def check_rate(value: float | None) -> None:
    """Check a rate, which is None (unlimited) or a number of messages per second.

    The number must be above 0 and at most a billion.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and 0 < value <= 1e9):
        raise InvalidValue(f"rate: {value!r}; give messages a second, more than 0")


def duration_ms(
    value: object, field: str, low_ms: int = 1, high_ms: int = TEN_YEARS_MS, zero: bool = False
) -> int:
    """Convert a duration to whole ms, rounded up.

    Args:
        value: Seconds or a timedelta.
        field: Name of the field, for the error.
        low_ms: Smallest accepted duration, ms.
        high_ms: Largest accepted duration, ms.
        zero: Whether 0 is also accepted, with the meaning "off" or "immediately".
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidType(f"{field}: {value!r} is not a duration; give seconds or a timedelta")
    else:
        seconds = float(value) if abs(value) < 1e300 else math.inf  # float() of a huge int raises
    if not math.isfinite(seconds):
        raise InvalidValue(f"{field}: {value!r}; give a finite number of seconds")
    if zero and seconds == 0:
        return 0
    if seconds * 1000 > high_ms or seconds <= 0:
        least = "0 or more," if zero else "more than 0"
        raise InvalidValue(f"{field}: {value!r}; give {least} and at most {_longest(high_ms)}")
    ms = math.ceil(round(seconds * 1000, 6))
    if ms < low_ms:
        raise InvalidValue(f"{field}: {value!r}; give at least {low_ms / 1000:g} s")
    return ms


def _longest(ms: int) -> str:
    return f"{ms / 1000:g} seconds" if ms < 172_800_000 else f"{ms / 86_400_000:.0f} days"


def check_epoch_ms(value: object, field: str, allow_past: bool = False) -> int:
    """Convert a time (an aware datetime or epoch ms) to whole epoch ms, rounded up.

    If `allow_past` is True, the function replaces a time before 2001 by the earliest time that RMQ
    can store.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            raise InvalidValue(
                f"{field}: {value.isoformat()} has no time zone; "
                "use datetime(..., tzinfo=...) or datetime.now(timezone.utc)"
            )
        delta = value - datetime(1970, 1, 1, tzinfo=UTC)
        ms = -(-delta // timedelta(milliseconds=1))
    elif isinstance(value, bool) or not isinstance(value, int):
        raise InvalidType(f"{field}: {value!r}; give an aware datetime, or epoch ms as an int")
    else:
        ms = value
        if 0 < ms < 100_000_000_000:
            raise InvalidValue(f"{field}: {ms} looks like seconds; give epoch ms ({ms * 1000})")
        if ms > 100_000_000_000_000:
            raise InvalidValue(
                f"{field}: {ms} looks like microseconds; give epoch ms ({ms // 1000})"
            )
    if ms > time.time() * 1000 + TEN_YEARS_MS:
        raise InvalidValue(f"{field}: {value}; give a time at most 10 years ahead")
    if ms < TIMED_MIN and not allow_past:
        raise InvalidValue(f"{field}: {value} is long past; give a future time")
    return max(ms, TIMED_MIN)


def check_due_ms(value: object, field: str, now_ms: int) -> int:
    """Check a due time, and return it in epoch ms.

    A message with a past time is due immediately. If the time is more than a year ago, the function
    raises an error, because the time is probably a mistake. A more recent time is not an error: the
    client's clock (`now_ms`) may be wrong, and the call may reach Redis late.
    """
    ms = check_epoch_ms(value, field)
    if ms < now_ms - YEAR_MS:
        raise InvalidValue(
            f"{field}: {value} is more than a year ago; give a future time (a time that has just "
            "passed is due at once)"
        )
    return ms


def one_of(value: object, field_name: str, words: tuple[str, ...]) -> str:
    """Check that a value is in a list of words, and return it."""
    if not isinstance(value, str) or value not in words:
        raise InvalidValue(f"{field_name}: {value!r}; give one of {', '.join(words)}")
    return value


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint for an error, such as `, did you mean 'x'?`.

    If no name is similar, return ''.
    """
    import difflib  # only errors need it

    matches = difflib.get_close_matches(name, list(names), 1)
    return f", did you mean {matches[0]!r}?" if matches else ""
