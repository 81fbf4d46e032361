"""The background work of `rmq server` that stores when each problem was first seen."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from rmq.features.doctor import flows
from rmq.features.doctor.look import Finding, problems
from rmq.http_framework.survey import Survey
from rmq.kernel.core.keys import problems_key
from rmq.kernel.topic import clock
from rmq.kernel.topic.overview import TopicOverview
from rmq.kernel.transport.flow.steps import Flow, RawCommand, server_ms
from rmq.kernel.transport.single.blocking import Transport

EVERY_MIN_S, WHOLE_S = 30.0, 60.0  # of all checks: WHOLE_S
LOOKED_S = 300.0  # all checks are made for this time after somebody has looked at the findings
YOUNG = timedelta(minutes=2)  # the console shows findings of this age
# Checks of settings and rights: they cost many commands, and what they find does not begin at a
# time that matters.
# They are made only while somebody looks at the findings.
NOT_WATCHED = ("rights", "restrictions", "encodings", "fragmentation", "versions", "clock")


class Problems:
    """Checks Redis and all topics, and stores when the server first saw each problem.

    The checks use the message counts that the server has read. When the server no longer finds a
    problem, it deletes the stored time. The console shows the findings of the last check.
    """

    name = "problems"
    needs_leadership = True

    def __init__(self, transport: Transport, prefix: str, survey: Survey) -> None:
        self._transport = transport
        self._prefix = prefix
        self._survey = survey
        self._looked_at = self._whole_at = -LOOKED_S  # by the monotonic clock
        self._latest: tuple[datetime, list[Finding]] | None = None

    def latest(self) -> tuple[datetime, list[Finding]] | None:
        """Return the time and the findings of the last check, or None if the check is too old."""
        self._looked_at = time.monotonic()
        latest = self._latest
        return latest if latest and datetime.now(UTC) - latest[0] < YOUNG else None

    @property
    def every_s(self) -> float:
        """Seconds between two checks: twice the time between two readings of all topics."""
        return max(EVERY_MIN_S, 2 * self._survey.every_s)

    def run_once(self) -> int:
        """Check Redis and all topics. Return the number of problems."""
        if not self._survey.passes:
            return 0
        topics = [
            TopicOverview(counts.context, counts.slots, counts.lateness)
            for counts in self._survey.topics.values()
        ]
        now = time.monotonic()
        is_whole = now - self._looked_at < LOOKED_S and now - self._whole_at >= WHOLE_S
        found = self._transport.run(_note(self._prefix, topics, is_whole))
        if is_whole:
            self._whole_at, self._latest = now, (datetime.now(UTC), found)
        return len(problems(found))


def _note(prefix: str, topics: list[TopicOverview], is_whole: bool) -> Flow[list[Finding]]:
    names = [name for name in flows.NAMES if is_whole or name not in NOT_WATCHED]
    found = yield from flows.examine(prefix, names, topics)
    keys = {each.key for each in problems(found) if each.check not in NOT_WATCHED}
    key = problems_key(prefix)
    stored: dict[bytes, bytes] = yield RawCommand("problems", "HGETALL", key)
    known = {field.decode(errors="replace") for field in stored}
    new, solved = sorted(keys - known), sorted(known - keys)
    if solved:
        yield RawCommand("problems", "HDEL", key, *solved)
    if new:
        now_ms = int(clock.now_us) // 1000 if clock.now_us else (yield from server_ms("problems"))
        yield RawCommand("problems", "HSET", key, *(w for name in new for w in (name, now_ms)))
    return (yield from flows.with_first_seen(prefix, found)) if new else found
