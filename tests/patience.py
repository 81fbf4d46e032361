"""Time on a machine that is busy with other things: what a test may wait for, and what it may not.

A limit on one measurement fails where nothing is wrong: any process may stand still for a second.
What is slow by nature is slow every time, so a limit is for the best of several measurements.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.servers import Server

PATIENCE_S = 30.0  # for what takes moments when nobody else is on this machine

WAIT_S = 60.0  # so long a test waits for what may be held up by all that runs beside it
POLL_S, MOST_POLL_S = 0.005, 0.05


def wait_for(
    what: Callable[[], Any],
    why: str | Callable[[], str] = "it did not come to pass",
    within: float = WAIT_S,
    most_poll_s: float = MOST_POLL_S,
) -> Any:
    """Poll until it is true, and return it.

    `why`: what is waited for, or how it stands then; `most_poll_s`: between two looks.
    """
    until, pause_s = time.monotonic() + within, POLL_S
    while not (found := what()):
        if time.monotonic() > until:
            raise AssertionError(
                f"not within {within:g} s: {why if isinstance(why, str) else why()}"
            )
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, most_poll_s)
    return found


def asleep(server: Server, topic: str, count: int = 1) -> None:
    """Wait until so many consumers of a topic listen; they look once more, and sleep."""
    with server.raw() as raw:
        wait_for(
            lambda: _listeners(raw, topic) >= count,
            lambda: f"{_listeners(raw, topic)} of {count} consumers listen",
            PATIENCE_S,
        )
    time.sleep(0.05)  # for that last look; a test that comes too soon for it is easier, not wrong


def _listeners(raw: Any, topic: str) -> int:
    channels = [
        one for one in raw.pubsub_channels() if topic.encode() in one and one.endswith(b":wake")
    ]
    return sum(count for _, count in raw.pubsub_numsub(*channels)) if channels else 0


def quick(measure: Callable[[], float], limit_s: float, of: int = 6) -> float:
    """The first of so many measurements that is within the limit, or the best."""
    found: list[float] = []
    while len(found) < of and not any(one < limit_s for one in found):
        found.append(measure())
    return min(found)
