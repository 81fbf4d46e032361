"""The scheduler: a thread that sends the messages of due schedules.

Every worker has a scheduler for its topics. If a topic has several schedulers, all of them look for
due schedules. A script in Redis ensures that each message is sent only once.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable

from rmq.client.client import AsyncClient, parts_of
from rmq.client.client_blocking import Client
from rmq.errors import InvalidType, InvalidValue, RMQError
from rmq.features.schedules.dispatch import POLL_S, RETRY_S, Dispatch
from rmq.kernel.core.codec import JSON
from rmq.kernel.core.stop_signals import StopSignals
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport.open import as_blocking

log = logging.getLogger("rmq")

SPREAD_S = 0.02  # random delay, so that schedulers do not call Redis at the same time
STOP_S = 2.0  # longest wait for a call to Redis at the end


class SchedulerThread:
    """A thread that sends the messages of due schedules until it is stopped."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._due_at: dict[str, float] = {}  # next due time of each topic, by the monotonic clock
        self._poll_at = 0.0  # time of the next check of all topics
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmq-scheduler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        wait, last_error = 0.0, ""
        while not self._stopping.wait(wait):
            try:
                wait, last_error = self._serve() + random.uniform(0, SPREAD_S), ""
            except Exception as error:  # the thread must not end
                if str(error) != last_error:
                    unexpected = not isinstance(error, RMQError)
                    log.warning(
                        "schedules cannot be served just now: %s", error, exc_info=unexpected
                    )
                wait, last_error, self._poll_at = RETRY_S, str(error), 0.0

    def _serve(self) -> float:
        """Send the messages of due schedules, and return how many seconds to wait."""
        now = time.monotonic()
        polls = now >= self._poll_at
        if polls:
            self._due_at.clear()
        topics = {topic for topic, due_at in self._due_at.items() if due_at <= now}
        topics |= self._dispatch.declare(strict=False)
        for topic in topics:
            self._due_at.pop(topic, None)
        _, waits = self._dispatch.send_due(None if polls else topics)
        now = time.monotonic()
        if polls:
            self._poll_at = now + POLL_S
        self._due_at |= {topic: now + wait_s for topic, wait_s in waits.items()}
        return max(0.0, min([self._poll_at, *self._due_at.values()]) - now)

    def ask_to_stop(self) -> None:
        """Ask the thread to end. The call returns immediately."""
        self._stopping.set()

    def stop(self, wait_s: float = STOP_S) -> None:
        """Stop the thread, and wait at most 2 s until it has ended.

        Schedules that are due stay due in Redis.
        """
        self._stopping.set()
        self._thread.join(min(wait_s, STOP_S))


class Scheduler:
    """Sends the messages of schedules in a process without a worker.

    Use the scheduler in a `with` statement.

    Args:
        client: Client with the declared schedules and the address of Redis.
        topics: Names of topics to serve, or "all" for every topic in Redis. With None, the
            scheduler serves each topic for which the client has a handler or a schedule.

    Guarantee:
        Each scheduled message is sent once, even if schedulers die. If another program declares or
        changes a schedule, the scheduler finds the change within 3 s.
    """

    def __init__(
        self, client: Client | AsyncClient, *, topics: Iterable[str] | None = None
    ) -> None:
        if not isinstance(client, Client | AsyncClient):
            raise InvalidType(
                f"client: {type(client).__name__}; give rmq.Client or rmq.AsyncClient"
            )
        if isinstance(topics, str) and topics != "all":
            raise InvalidType(f"topics: {topics!r}; give a list of names, or 'all'")
        self._parts = parts = parts_of(client)
        self._sessions = ReplaySessions()
        self._transport = as_blocking(parts.transport)
        contexts, make_context = [], None
        if topics is None:
            contexts = [handler.context for handler in parts.handlers.by_topic.values()]
        elif topics == "all":
            make_context = self._context
        else:
            contexts = [self._context(name) for name in topics]
        self._dispatch = Dispatch(
            parts.prefix, self._transport, parts.handlers, contexts, make_context
        )
        self._thread: SchedulerThread | None = None

    def _context(self, name: str) -> TopicContext:
        return TopicContext(self._parts.prefix, name, JSON, self._sessions, {})

    def run_once(self) -> int:
        """Store the declared schedules in Redis, and send all messages that are due.

        Returns:
            Number of messages that the call has sent.

        Raises:
            StorageError: Redis cannot be reached. Due schedules stay due.
        """
        self._dispatch.declare()
        sent, _ = self._dispatch.send_due()
        return sent

    def start(self) -> None:
        """Store the declared schedules in Redis, and start a thread that sends due messages.

        Raises:
            ConfigurationError, SettingsMismatch: The settings of a schedule or its topic differ
                from the settings in Redis.
            StorageError: Redis cannot be reached.
        """
        if self._thread is not None:
            raise InvalidValue("scheduler: it is running; stop it before it is started again")
        self._dispatch.declare()
        self._thread = SchedulerThread(self._dispatch)

    def stop(self) -> None:
        """Stop the thread, and wait at most 2 s until it has ended.

        Schedules that are due stay due in Redis.
        """
        if self._thread is not None:
            self._thread.stop()
            self._thread = None
        if self._transport is not self._parts.transport:
            self._transport.close()

    def run(self, started: Callable[[], object] | None = None) -> None:
        """Send the messages of schedules until SIGTERM or SIGINT. Call this in the main thread.

        Args:
            started: Function that the scheduler calls once after its start.
        """
        signals = StopSignals()
        with signals.received(), self:
            if started is not None:
                started()
            while not signals.is_requested:
                signals.wait(0.5)

    def __enter__(self) -> Scheduler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
