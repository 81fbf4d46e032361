"""Define retry policies, which say how long a failed message waits before the next delivery.

RMQ stores a policy as a ladder and a jitter. The ladder lists the longest wait before each retry,
in ms. The jitter is the share of a wait that is random.

Redis stores the topic's policy with each slot. `lua/lib/settle/retry.lua` draws the wait of a
message after a nack or a rollback. If a handler or a message has its own policy, the worker draws
the wait with `draw_wait_ms`, and sends the wait with its nack.

Sources: full jitter after Brooker, "Exponential Backoff And Jitter" (2015),
https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/. The default levels are
the waits of RocketMQ (https://rocketmq.apache.org), 10 s to 2 h.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core.validation import Duration, duration_ms, format_duration, parse_duration

ROCKETMQ_LEVELS_S = (
    10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidValue(f"jitter: {value!r}; give 0 (none) to 1 (all of the wait)")
    return float(value)


@dataclass(frozen=True, slots=True)
class Exponential:
    """A retry policy whose waits double with each retry, up to a maximum.

    Args:
        base: First wait, seconds or timedelta.
        cap: Longest wait, seconds or timedelta.
        jitter: Share of each wait that is drawn at random, 0 to 1. The value 1 is "full jitter".
    """

    base: Duration = 1.0
    cap: Duration = 600.0
    jitter: float = 1.0

    def __post_init__(self) -> None:
        duration_ms(self.base, "retry.base")
        duration_ms(self.cap, "retry.cap")
        _share(self.jitter)

    def ladder(self, retries: int) -> tuple[int, ...]:
        """Return the longest wait before each retry, in ms."""
        base, cap = duration_ms(self.base, "retry.base"), duration_ms(self.cap, "retry.cap")
        return tuple(min(cap, base << n) for n in range(retries))

    def to_redis(self) -> str:
        """Return the policy as the string that Redis stores."""
        base, cap = duration_ms(self.base, "base"), duration_ms(self.cap, "cap")
        return f"exponential:{base}:{cap}:{round(self.jitter * 100)}"


@dataclass(frozen=True, slots=True)
class Levels:
    """A retry policy with a list of waits, one for each retry.

    If the list is too short, further retries use the last wait.

    Args:
        waits: 1 to 16 waits, seconds or timedeltas.
        jitter: Share of each wait that is drawn at random, 0 to 1.
    """

    waits: tuple[Duration, ...] = ROCKETMQ_LEVELS_S
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.waits, tuple | list) or not 1 <= len(self.waits) <= 16:
            raise InvalidValue(f"retry.waits: {self.waits!r}; give 1 to 16 durations")
        object.__setattr__(self, "waits", tuple(self.waits))
        for wait in self.waits:
            duration_ms(wait, "retry.waits")
        _share(self.jitter)

    def ladder(self, retries: int) -> tuple[int, ...]:
        """Return the longest wait before each retry, in ms."""
        waits = [duration_ms(wait, "retry.waits") for wait in self.waits]
        return tuple(waits[min(n, len(waits) - 1)] for n in range(retries))

    def to_redis(self) -> str:
        """Return the policy as the string that Redis stores."""
        waits = ",".join(str(duration_ms(wait, "waits")) for wait in self.waits)
        return f"levels:{waits}:{round(self.jitter * 100)}"


@dataclass(frozen=True, slots=True)
class Immediate:
    """A retry policy without a wait: the message may be delivered again immediately.

    In text form, this policy is "immediate". An immediate retry loses its priority, and sorts after
    all prioritized messages. One receive in five takes such retries first. A retry that waits at
    least 1 ms keeps its priority.
    """

    jitter: float = 0.0

    def ladder(self, retries: int) -> tuple[int, ...]:
        """Return the longest wait before each retry, in ms."""
        return (0,) * retries

    def to_redis(self) -> str:
        """Return the policy as the string that Redis stores."""
        return "immediate"


def draw_wait_ms(policy: Exponential | Levels | Immediate, attempt: int) -> int:
    """Draw the random wait after a failed attempt, in ms.

    Args:
        policy: Retry policy.
        attempt: Number of the failed attempt. The first delivery is attempt 1.
    """
    longest = policy.ladder(max(attempt, 1))[-1]
    return round(longest * (1 - policy.jitter * random.random()))


Policy = Exponential | Levels | Immediate
RetryPolicy = Policy | Literal["immediate", "exponential", "levels"]

_WORDS: dict[str, Policy] = {
    "immediate": Immediate(),
    "exponential": Exponential(),
    "levels": Levels(),
}


def parse_policy(value: object) -> Policy:
    """Return the retry policy for a string such as "immediate" or "exponential:1s:10m:1".

    If the argument is a policy object, return it unchanged. A duration in the string is in seconds,
    or has a unit: 500ms, 30s, 5m, 2h, 1d.
    """
    if isinstance(value, Exponential | Levels | Immediate):
        return value
    if not isinstance(value, str):
        raise InvalidType(
            f"retry: {value!r}; give 'immediate', rmq.Exponential(...) or rmq.Levels(...)"
        )
    kind, *rest = value.strip().split(":")
    if kind in _WORDS and not rest:
        return _WORDS[kind]
    try:
        if kind == "exponential" and len(rest) in (2, 3):
            jitter = float(rest[2]) if len(rest) == 3 else 1.0
            return Exponential(parse_duration(rest[0]), parse_duration(rest[1]), jitter)
        if kind == "levels" and len(rest) in (1, 2):
            jitter = float(rest[1]) if len(rest) == 2 else 0.0
            return Levels(tuple(parse_duration(part) for part in rest[0].split(",")), jitter)
        why = ""
    except InvalidValue:
        raise
    except ValueError as error:
        why = f": {error}"
    raise InvalidValue(
        f"retry: {value!r} is not a retry policy{why}; give immediate, exponential, levels, "
        "exponential:BASE:CAP[:JITTER] or levels:WAIT,WAIT,...[:JITTER], as exponential:1s:10m, "
        "or rmq.Exponential(...), rmq.Levels(...)"
    )


def describe(policy: Policy) -> str:
    """Return a policy as the string that `parse_policy` reads."""
    if isinstance(policy, Exponential):
        base, cap = format_duration(policy.base), format_duration(policy.cap)
        return f"exponential:{base}:{cap}:{policy.jitter:g}"
    if isinstance(policy, Levels):
        waits = ",".join(format_duration(wait) for wait in policy.waits)
        return f"levels:{waits}" + (f":{policy.jitter:g}" if policy.jitter else "")
    return "immediate"


def from_redis(text: str) -> Policy:
    """Read a policy from the string that Redis stores.

    In this string, durations are in ms, and the jitter is in percent.
    """
    kind, *rest = text.split(":")
    if kind in _WORDS and not rest:
        return _WORDS[kind]
    try:
        if kind == "exponential":
            base, cap, jitter = (int(part) for part in rest)
            return Exponential(base / 1000, cap / 1000, jitter / 100)
        if kind == "levels":
            waits, share = rest
            return Levels(tuple(int(w) / 1000 for w in waits.split(",")), int(share) / 100)
    except ValueError:
        pass
    raise InvalidValue(f"retry: {text!r} in Redis is not a policy that this RMQ knows")
