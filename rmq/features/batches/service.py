"""The service of `rmq server` for batches: close them after their timeout, and end lost members."""

from __future__ import annotations

import logging
import time

from rmq.errors import RMQError
from rmq.features.batches import members
from rmq.features.batches.flows import Definition
from rmq.http_framework.survey import TopicProblems
from rmq.kernel.batches import registry
from rmq.kernel.batches.ref import BatchRef
from rmq.kernel.core.codec import JSON
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport.flow.steps import server_ms
from rmq.kernel.transport.single.blocking import Transport

log = logging.getLogger("rmq")

EVERY_S = 10.0
DONE_S = 600.0  # a batch that is done is read again after this time: its name may be used again
GONE_S = 60.0  # a program that opens a batch lists its name before it stores the batch
REST = 20.0  # after an examination, a batch rests for this multiple of the examination's time


class Batches:
    """Closes batches after their timeout, and ends members that were never sent as lost.

    Without batches, a run sends one command.
    """

    name = "batches"
    every_s = EVERY_S
    needs_leadership = True

    def __init__(self, transport: Transport, prefix: str) -> None:
        self._transport = transport
        self._prefix = prefix
        self._sessions = ReplaySessions()
        self._problems = TopicProblems()
        # By name, times of the monotonic clock: of the next examination, and of the first run that
        # did not find a batch with this name.
        self._next: dict[str, float] = {}
        self._gone: dict[str, float] = {}
        self._open: frozenset[str] = frozenset()

    @property
    def open(self) -> int:
        """Number of batches whose callback has not been sent, as the last run found it."""
        return len(self._open)

    def run_once(self) -> int:
        """Examine the batches that are not done. Return the number of changes."""
        places = self._transport.run(registry.listed(self._prefix))
        names = {place.name for place in places}
        self._next = {name: at for name, at in self._next.items() if name in names}
        now = time.monotonic()
        due = [place for place in places if self._next.get(place.name, now) <= now]
        found = self._transport.run(registry.read(self._prefix, due))
        now_ms = self._transport.run(server_ms(self.name)) if due else 0
        is_open, gone, changed = set(self._open & names), dict[str, float](), 0
        for place, fields in zip(due, found, strict=True):
            is_open.discard(place.name)
            if fields is None:
                gone[place.name] = self._gone.get(place.name, now)
            elif isinstance(fields, RMQError):
                log.debug("batch %r: %s", place.name, fields)
            elif fields.state == "d":
                self._next[place.name] = now + DONE_S
            else:
                is_open.add(place.name)
                changed += self._examine(place, now_ms)
        self._gone, self._open = gone, frozenset(is_open)
        forgotten = [name for name, since in gone.items() if now - since >= GONE_S]
        self._transport.run(registry.forget(self._prefix, forgotten))
        return changed

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
