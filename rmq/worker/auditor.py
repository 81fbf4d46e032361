"""The auditor: a worker's thread that looks for lost messages, where its client has `rmq.Audit`.

All workers of a topic do this together: who asks first in an interval audits it, the others see
that somebody has.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterable

from rmq.core.audit import Audit
from rmq.core.interceptor import Interceptor
from rmq.core.topic_context import TopicContext
from rmq.errors import RMQError
from rmq.protocol.flows import audit as audit_flow
from rmq.transport import Transport

log = logging.getLogger("rmq")

STOP_S = 1.0  # for a look at one page to come to its end; the thread is no reason to stay


class Auditor:
    """Audits topics until it is stopped."""

    def __init__(
        self, audit: Audit, transport: Transport, contexts: Iterable[TopicContext]
    ) -> None:
        self._audit = audit
        self._transport = transport
        self._contexts = list(contexts)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmq-audit", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        assert self._audit.every_ms is not None
        # Not all workers at the same moment; and none is late for its own last time.
        while not self._stop.wait(self._audit.every_ms / 1000 * random.uniform(0.95, 1.0)):
            for context in self._contexts:
                if self._stop.is_set():
                    return
                self._look(context)

    def _look(self, context: TopicContext) -> None:
        every_ms = round((self._audit.every_ms or 0) * 0.9)
        try:
            found = self._transport.run(
                audit_flow.audit(
                    context, self._audit.older_ms, every_ms=every_ms, progress=self._go_on
                )
            )
        except _Stopped:
            return
        except RMQError as error:
            log.warning("topic %r cannot be audited just now: %s", context.name, error)
            return
        self._audit.report(context.name, found)

    def _go_on(self, done: int, whole: int) -> None:
        if self._stop.is_set():
            raise _Stopped

    def ask_to_stop(self) -> None:
        """Ask it to end; it does not look at another page."""
        self._stop.set()

    def stop(self, wait_s: float = STOP_S) -> None:
        """End it, and wait for that a moment."""
        self._stop.set()
        self._thread.join(min(wait_s, STOP_S))


class _Stopped(Exception):
    """The worker stops in the midst of an audit."""


def start(
    chain: Iterable[Interceptor], transport: Transport, contexts: Iterable[TopicContext]
) -> Auditor | None:
    """Start one where an interceptor asks for it."""
    for one in chain:
        if isinstance(one, Audit) and one.every_ms is not None:
            return Auditor(one, transport, contexts)
    return None
