"""While Redis is away: topics are opened without holding up a signal, and the log tells why."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from rmq.client.handler import Handler
from rmq.errors import OutcomeUnknown, RMQError, StorageError, Unavailable
from rmq.protocol.flows import open_topic
from rmq.transport import Transport

log = logging.getLogger("rmq")

PROBE_S = 1.0  # how long Redis is asked for a sign
REPORT_EVERY_S = 5.0  # between two lines of the log


def ping_error(transport: Transport) -> RMQError | None:
    """Ask Redis for a sign, on a connection of its own; what came instead of one."""
    try:
        probe = Transport(transport.address, 0.0, PROBE_S)
        try:
            probe.raw_command("ping", "PING")
        finally:
            probe.close()
    except RMQError as error:
        return error
    return None


class TopicOpener:
    """Opens the topics of handlers in a thread, so that whoever waits can be asked to stop.

    Attributes:
        ended: set when there is nothing more to open.
        error: what forbids to start; None where Redis is merely away.
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
        for one in self._handlers:
            try:
                self._transport.run(open_topic.ensure_open(one.context))
                one.check_lease(one.context.settings.lease_ms)
            except (Unavailable, OutcomeUnknown) as error:
                log.error("topics cannot be opened yet, and are tried again: %s", error)
                return  # it would take as long for each of the others
            except StorageError as error:
                log.error("%s: its topic cannot be opened yet: %s", one, error)


class OutageLog:
    """Tells in the log that Redis cannot be reached, every few seconds, and when it is back."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._since = 0.0  # when it was first found to be away; 0: it is there
        self._reported_at = float("-inf")

    def report(self) -> None:
        """Something has had no answer for a while: find out why, in a thread. Returns at once."""
        if time.monotonic() - self._reported_at >= REPORT_EVERY_S and self._lock.acquire(
            blocking=False
        ):
            self._reported_at = time.monotonic()
            threading.Thread(target=self._ping_and_log, name="rmq-away", daemon=True).start()

    def _ping_and_log(self) -> None:
        try:
            error, now = ping_error(self._transport), time.monotonic()
            if error is not None:
                self._since = self._since or now
                log.error("waiting for Redis, for %.0f s so far: %s", now - self._since, error)
            elif self._since:
                log.info("Redis answers again, after %.0f s", now - self._since)
                self._since = 0.0
        finally:
            self._lock.release()

    def clear(self) -> None:
        """Everything has been answered."""
        if self._since:
            self.report()
