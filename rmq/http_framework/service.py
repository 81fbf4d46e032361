"""The interface of the server's services, and the thread that runs a service again and again."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from rmq.errors import RMQError

log = logging.getLogger("rmq")

RETRY_S = 1.0  # wait after an error
SPREAD = 0.1  # random part of the time between two runs, so that services do not start together


class Service(Protocol):
    """Work that a server does again and again.

    Two servers can safely do this work at the same time.
    """

    @property
    def name(self) -> str:
        """Name of the service in logs and metrics. The name is a single word."""

    @property
    def every_s(self) -> float:
        """Number of seconds between two runs."""

    @property
    def needs_leadership(self) -> bool:
        """Whether only one of several servers, the leader, runs the service."""

    def run_once(self) -> int:
        """Do the work that is pending now.

        Return how much work was done, for example the number of messages.

        Raises:
            RMQError: The run failed. The service runs again after RETRY_S seconds.
        """


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """Results of a service since the server started.

    Attributes:
        name: Name of the service.
        runs: Number of successful runs.
        done: Sum of the results of `run_once`.
        failures: Number of failed runs.
        error: Error of the last run, or an empty string if the run succeeded.
        idle_s: Number of seconds since the last successful run, or None if no run has succeeded
            yet.
        is_alive: Whether the thread of the service is running.
    """

    name: str
    runs: int
    done: int
    failures: int
    error: str
    idle_s: float | None
    is_alive: bool


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a server. A mounted `ConsoleApp` runs no services and is never the leader.

    Attributes:
        server: Id of the server.
        leads: Function that returns whether the server is the leader.
        services: Function that returns the status of the server's services.
        missing: Function that returns the number of missing messages in the last audit, for each
            topic.
        examined: Function that returns the time and the findings of the server's last check by the
            doctor, or None if it is too old.
    """

    server: str = ""
    leads: Callable[[], bool] = bool
    services: Callable[[], Sequence[ServiceStatus]] = list
    missing: Callable[[], Mapping[str, int]] = dict
    examined: Callable[[], tuple[datetime, list[Any]] | None] = lambda: None


class ServiceThread:
    """Runs a service in a thread until it is stopped.

    Args:
        service: The service.
        leads: Function that returns whether this server is the leader.
    """

    def __init__(self, service: Service, leads: Callable[[], bool]) -> None:
        self.service = service
        self._leads = leads
        self._runs = self._done = self._failures = 0
        self._error = ""
        self._ended_well_at: float | None = None
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"rmq-{service.name}", daemon=True)

    def start(self) -> None:
        """Start the thread. The first run begins immediately."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Ask the thread to end after the current run."""
        self._stopping = True
        self._wake.set()

    def join(self, wait_s: float) -> bool:
        """Wait until the thread has ended. Return whether it has ended."""
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    @property
    def status(self) -> ServiceStatus:
        """Results of the service so far."""
        at = self._ended_well_at
        return ServiceStatus(
            self.service.name, self._runs, self._done, self._failures, self._error,
            None if at is None else time.monotonic() - at, self._thread.is_alive(),
        )  # fmt: skip

    def _run(self) -> None:
        while not self._stopping:
            wait_s = self._run_once()
            self._wake.wait(wait_s * random.uniform(1 - SPREAD, 1))
            self._wake.clear()

    def _run_once(self) -> float:
        """Run the service if this server may run it. Return how many seconds to wait."""
        if self.service.needs_leadership and not self._leads():
            return RETRY_S
        try:
            self._done += self.service.run_once()
        except Exception as error:  # the thread must not end: its work would stop unnoticed
            self._failures += 1
            if self._error != str(error):
                unexpected = not isinstance(error, RMQError)
                log.warning("%s: %s", self.service.name, error, exc_info=unexpected)
            self._error = str(error) or type(error).__name__
            return RETRY_S
        if self._error:
            log.info("%s: works again", self.service.name)
        self._runs, self._error, self._ended_well_at = self._runs + 1, "", time.monotonic()
        return self.service.every_s
