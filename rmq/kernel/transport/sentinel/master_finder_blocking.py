# Generated from rmq/kernel/transport/sentinel/master_finder.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.kernel.transport.sentinel.master_finder`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import redis

from rmq.kernel.transport.errors import REDIS_ERRORS
from rmq.kernel.transport.sentinel.master_finder import FinderState
from rmq.kernel.transport.url import HostPort, Sentinels


class MasterFinder(FinderState):
    """Asks the sentinels for the master, for the threads."""

    def __init__(self, sentinels: Sentinels, shown: str, connect: Callable[[HostPort], Any]):
        super().__init__(sentinels, shown, connect)
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Query the sentinels if QUERY_INTERVAL_S seconds have passed. Raise no error."""
        if self._is_due():
            with self._lock:
                if self._is_due():
                    self._ask_all()

    def locate(self) -> HostPort:
        """Return the address of the master, for a new connection.

        Raises:
            NoMaster: The sentinels name no master that can be used.
            ConfigurationError: The sentinels do not know the service, or refuse access.
        """
        with self._lock:
            if not self._is_fresh():
                self._ask_all()
            return self._answer()

    def close(self) -> None:
        """Close the connection to the sentinel."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*REDIS_ERRORS):
                connection.disconnect(True)  # `nowait`, which blocking connections ignore

    def _ask_all(self) -> None:
        questions = self._queries()
        with contextlib.suppress(StopIteration):
            sentinel = next(questions)
            while True:
                sentinel = questions.send(self._ask(sentinel))

    def _ask(self, sentinel: HostPort) -> Any:
        is_kept = self._connection is not None and self._connected_to == sentinel
        if not is_kept:
            self.close()
        try:
            if not is_kept:
                self._connection, self._connected_to = self._connect(sentinel), sentinel
                self._connection.connect()
            self._connection.send_packed_command((self._question,), check_health=False)
            return self._connection.read_response()
        except redis.ResponseError as error:
            return error
        except REDIS_ERRORS as error:
            self.close()
            return self._ask(sentinel) if is_kept else error
        except BaseException:
            self.close()  # otherwise the next query would read a late reply
            raise
