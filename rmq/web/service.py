"""The interface of the server's services, and the thread that runs a service again and again."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rmq.errors import RMQError

log = logging.getLogger("rmq")

RETRY_S = 1.0  # after an error
SPREAD = 0.1  # of the time between two runs, at random: services do not all begin together


class Service(Protocol):
    """Work that a server does again and again. It must be safe if two servers do it at once."""

    @property
    def name(self) -> str:
        """Return its name in logs and metrics, a single word."""

    @property
    def every_s(self) -> float:
        """Seconds between two runs."""

    @property
    def needs_leadership(self) -> bool:
        """Whether only the server that leads runs it, to spare Redis the same work twice."""

    def run_once(self) -> int:
        """Do what there is to do; return how much was done, in the unit of the service.

        Raises:
            RMQError: it is tried again after a moment.
        """


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """How a service does.

    Attributes:
        name: of the service.
        runs: how many ended well.
        done: what they did, in the unit of the service.
        failures: how many runs failed.
        error: of the last run; empty if it ended well.
        idle_s: seconds since a run last ended well; None: none has yet.
        is_alive: whether its thread runs.
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
    """The state of a server; a mounted application runs no services, and does not lead.

    Attributes:
        server: its id.
        leads: whether it leads.
        services: returns how its services do.
        missing: returns, by topic, how many messages its last audit found missing.
    """

    server: str = ""
    leads: Callable[[], bool] = bool
    services: Callable[[], Sequence[ServiceStatus]] = list
    missing: Callable[[], Mapping[str, int]] = dict


class ServiceThread:
    """Runs a service in a thread until it is stopped.

    Args:
        service: the service.
        leads: whether this server leads.
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
        """Begin; the first run starts at once."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Ask the thread to end; a run that goes on is finished."""
        self._stopping = True
        self._wake.set()

    def join(self, wait_s: float) -> bool:
        """Wait for the end of the thread; return whether it came."""
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    @property
    def status(self) -> ServiceStatus:
        """How the service does."""
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
        """Run the service if it is its turn; return the seconds until the next run."""
        if self.service.needs_leadership and not self._leads():
            return RETRY_S
        try:
            self._done += self.service.run_once()
        except Exception as error:  # the thread must not end: nobody would do its work
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
