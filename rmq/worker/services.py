"""The services of a worker: threads that work beside its handlers, an auditor and a scheduler."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rmq.client.topic_handlers import Handlers
from rmq.core.interceptor import Interceptor
from rmq.core.topic_context import TopicContext
from rmq.transport import Transport
from rmq.worker import auditor
from rmq.worker.auditor import Auditor
from rmq.worker.dispatch import Dispatch
from rmq.worker.scheduler import SchedulerThread


class Services:
    """Threads that are stopped together."""

    def __init__(self, services: Sequence[Auditor | SchedulerThread]) -> None:
        self._services = services

    def ask_to_stop(self) -> None:
        """Ask the threads to end; they begin nothing else."""
        for service in self._services:
            service.ask_to_stop()

    def stop(self, wait_s: float) -> None:
        """Stop the threads, and wait a moment for them."""
        self.ask_to_stop()
        until = time.monotonic() + wait_s
        for service in self._services:
            service.stop(max(0.0, until - time.monotonic()))


def start(
    prefix: str,
    handlers: Handlers,
    chain: Iterable[Interceptor],
    transport: Transport,
    contexts: Sequence[TopicContext],
    schedules: bool,
) -> Services:
    """Start the services: an auditor if an interceptor asks for it, and a scheduler unless off."""
    services: list[Auditor | SchedulerThread] = []
    found = auditor.start(chain, transport, contexts)
    if found is not None:
        services.append(found)
    if schedules:
        services.append(SchedulerThread(Dispatch(prefix, transport, handlers, contexts)))
    return Services(services)
