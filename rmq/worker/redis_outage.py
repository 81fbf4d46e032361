"""Redis outages: topics are opened in a thread, and the log says that Redis cannot be reached."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from rmq.client.handler import Handler
from rmq.errors import OutcomeUnknown, RMQError, StorageError, Unavailable
from rmq.protocol.flows import eviction, open_topic
from rmq.transport import Transport, open_transport

log = logging.getLogger("rmq")

PROBE_S = 1.0  # timeout of a PING
REPORT_EVERY_S = 5.0  # between two lines in the log
LOG_AFTER_S = 0.5  # a start that takes longer is logged
LOOK_EVERY_S = 0.025  # whether the worker was asked to stop


def ping_error(transport: Transport) -> RMQError | None:
    """Send a PING to Redis on a new connection; return the error, None if Redis answers."""
    try:
        probe = open_transport(transport.address, 0.0, PROBE_S)
        try:
            probe.raw_command("ping", "PING")
        finally:
            probe.close()
    except RMQError as error:
        return error
    return None


class OutageLog:
    """Logs that Redis cannot be reached, every few seconds, and that it answers again."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._away_since = 0.0  # when the outage was noticed; 0: there is none
        self._reported_at = float("-inf")

    def report(self) -> None:
        """Check in a thread whether Redis answers, and log it. Returns at once."""
        if time.monotonic() - self._reported_at >= REPORT_EVERY_S and self._lock.acquire(
            blocking=False
        ):
            self._reported_at = time.monotonic()
            thread = threading.Thread(target=self._ping_and_log, name="rmq-away", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self._lock.release()
                raise

    def _ping_and_log(self) -> None:
        try:
            error, now = ping_error(self._transport), time.monotonic()
            if error is not None:
                self._away_since = self._away_since or now
                log.error("waiting for Redis, for %.0f s so far: %s", now - self._away_since, error)
            elif self._away_since:
                log.info("Redis answers again, after %.0f s", now - self._away_since)
                self._away_since = 0.0
        finally:
            self._lock.release()

    def clear(self) -> None:
        """Note that all calls have been answered."""
        if self._away_since:
            self.report()


def open_topics(
    transport: Transport, handlers: Iterable[Handler], is_asked_to_stop: Callable[[], bool]
) -> bool:
    """Open the topics of handlers. During an outage of Redis they are left to be opened later.

    Returns:
        False if the worker was asked to stop meanwhile.

    Raises:
        RMQError: a topic cannot be used as it was asked for.
    """
    opener, outage_log = _TopicOpener(transport, handlers), OutageLog(transport)
    log_at = time.monotonic() + LOG_AFTER_S
    while not opener.ended.wait(LOOK_EVERY_S):
        if is_asked_to_stop():
            return False
        if time.monotonic() >= log_at:
            outage_log.report()
    if opener.error is not None:
        raise opener.error
    return True


class _TopicOpener:
    """Opens the topics of handlers in a thread, so that a stop does not have to wait for Redis.

    Attributes:
        ended: set when no topic is left to open.
        error: the error that forbids a start; None if Redis merely cannot be reached.
    """

    def __init__(self, transport: Transport, handlers: Iterable[Handler]) -> None:
        self._transport = transport
        self._handlers = list(handlers)
        self.ended = threading.Event()
        self.error: BaseException | None = None
        threading.Thread(target=self._run, name="rmq-open", daemon=True).start()

    def _run(self) -> None:
        try:
            self._open()
        except BaseException as error:
            self.error = error
        finally:
            self.ended.set()

    def _open(self) -> None:
        for handler in self._handlers:
            try:
                self._transport.run(open_topic.ensure_open(handler.context))
                handler.check_lease(handler.context.settings.lease_ms)
            except (Unavailable, OutcomeUnknown) as error:
                log.error("topics cannot be opened yet, and are tried again: %s", error)
                return  # each of the others would take as long
            except StorageError as error:
                log.error("%s: its topic cannot be opened yet: %s", handler, error)
        self._transport.run(eviction.warn())
