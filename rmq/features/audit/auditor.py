"""The thread of a worker that looks for lost messages.

Only a worker whose client has `rmq.Audit` starts this thread. In each interval, one worker audits a
topic, and the other workers of the topic skip the audit.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterable

from rmq.errors import RMQError
from rmq.features.audit import flows as audit_flow
from rmq.features.audit.audit import Audit
from rmq.kernel.core.interceptor import Interceptor
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.single.blocking import Transport

log = logging.getLogger("rmq")

STOP_S = 1.0  # how long a stop waits for the audit of the current page


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
        # The first wait is randomly shorter than the interval, so that workers do not audit
        # together.
        while not self._stop.wait(self._audit.every_ms / 1000 * random.uniform(0.95, 1.0)):
            for context in self._contexts:
                if self._stop.is_set():
                    return
                self._audit_topic(context)

    def _audit_topic(self, context: TopicContext) -> None:
        older_ms, every_ms = self._audit.older_ms, round((self._audit.every_ms or 0) * 0.9)
        flow = audit_flow.audit(
            context, older_ms, every_ms=every_ms, progress=self._raise_if_stopping
        )
        try:
            report = self._transport.run(flow)
        except _Stopped:
            return
        except RMQError as error:
            log.warning("topic %r cannot be audited just now: %s", context.name, error)
            return
        self._audit.report(context.name, report)

    def _raise_if_stopping(self, done: int, whole: int) -> None:
        if self._stop.is_set():
            raise _Stopped

    def ask_to_stop(self) -> None:
        """Tell the thread to stop. Do not wait until it has stopped."""
        self._stop.set()

    def stop(self, wait_s: float = STOP_S) -> None:
        """Stop the thread, and wait at most `wait_s` seconds for its end."""
        self._stop.set()
        self._thread.join(min(wait_s, STOP_S))


class _Stopped(Exception):
    """Raised during an audit if the worker is stopping."""


def start(
    chain: Iterable[Interceptor], transport: Transport, contexts: Iterable[TopicContext]
) -> Auditor | None:
    """Start an auditor if the client has an interceptor `rmq.Audit`."""
    for interceptor in chain:
        if isinstance(interceptor, Audit) and interceptor.every_ms is not None:
            return Auditor(interceptor, transport, contexts)
    return None
