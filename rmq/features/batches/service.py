"""The background work of `rmq server` for batches.

The server closes batches after their timeout, records lost messages, and deletes large batches.
"""

from __future__ import annotations

import logging
import time

from rmq.errors import RMQError
from rmq.features.batches import members
from rmq.features.batches.flows import Definition
from rmq.http_framework.survey import TopicProblems
from rmq.kernel.batches import registry
from rmq.kernel.batches.ref import BatchRef
from rmq.kernel.batches.scripts import BatchFields
from rmq.kernel.core.codec import JSON
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport.flow.steps import server_ms
from rmq.kernel.transport.single.blocking import Transport

log = logging.getLogger("rmq")

EVERY_S = 10.0
DONE_S = 600.0  # a batch that is done is read again after this time: its name may be used again
# Redis frees an expired key in its main thread: 0.3 to 1 s for a million members. A batch with more
# than LARGE members is deleted by UNLINK instead, shortly before it expires.
LARGE, EARLY_MS = 4_000, 30_000
REST = 20.0  # after an examination, a batch rests for this multiple of the examination's time


class Batches:
    """Closes batches after their timeout, and records messages that were never sent as lost.

    If there are no batches, each run sends one command.
    """

    name = "batches"
    every_s = EVERY_S
    needs_leadership = True

    def __init__(self, transport: Transport, prefix: str) -> None:
        self._transport = transport
        self._prefix = prefix
        self._sessions = ReplaySessions()
        self._problems = TopicProblems()
        self._next: dict[str, float] = {}  # monotonic time of the next examination, by name
        self._open: frozenset[str] = frozenset()

    @property
    def open(self) -> int:
        """Number of batches whose callback RMQ had not sent at the last check."""
        return len(self._open)

    def run_once(self) -> int:
        """Check each batch that has not ended. Return the number of changes."""
        places = self._transport.run(registry.listed(self._prefix))
        names = {place.name for place in places}
        self._next = {name: at for name, at in self._next.items() if name in names}
        now = time.monotonic()
        due = [place for place in places if self._next.get(place.name, now) <= now]
        found = self._transport.run(registry.read(self._prefix, due))
        now_ms = self._transport.run(server_ms(self.name)) if due else 0
        is_open, gone, changed = set(self._open & names), list[BatchRef](), 0
        for place, fields in zip(due, found, strict=True):
            is_open.discard(place.name)
            if fields is None:
                gone.append(place)
            elif isinstance(fields, RMQError):
                log.debug("batch %r: %s", place.name, fields)
            elif fields.state == "d":
                self._next[place.name] = now + self._keep_or_delete(place, fields, now_ms)
            else:
                is_open.add(place.name)
                changed += self._examine(place, now_ms)
        self._open = frozenset(is_open)
        self._transport.run(registry.forget(self._prefix, gone))
        return changed

    def _keep_or_delete(self, place: BatchRef, fields: BatchFields, now_ms: int) -> float:
        """Delete a large batch shortly before it expires.

        Return the seconds until the next check.
        """
        if fields.all <= LARGE:
            return DONE_S
        early_ms = min(EARLY_MS, fields.keep_ms // 10)
        left_ms = fields.ended_ms + fields.keep_ms - early_ms - now_ms
        if left_ms > 0:
            return min(DONE_S, left_ms / 1000)
        self._transport.run(registry.delete(place.keys(self._prefix), place.name))
        return 0.0

    def _examine(self, place: BatchRef, now_ms: int) -> int:
        home = TopicContext(self._prefix, place.topic, JSON, self._sessions, {})
        batch = Definition(home, place.name, slot=place.slot)
        began, closed, lost = time.monotonic(), False, 0
        with self._problems.apart(place.topic, f"batch {place.name!r}"):
            closed, lost = self._transport.run(members.examine(batch, now_ms))
        ended = time.monotonic()
        self._next[place.name] = ended + REST * (ended - began)
        if closed:
            log.info("batch %r: closed, because its timeout has passed", place.name)
        if lost:
            log.warning("batch %r: %d members were lost", place.name, lost)
        return closed + lost
