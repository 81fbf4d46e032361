"""The lease of a streaming query on its messages, renewed while the query runs.

Used in Spark's source runner, the only process that lasts as long as the query. A thread renews the
lease, however long Spark's tasks take. It ends with the JVM: otherwise a runner whose JVM was
killed would keep the query from the next driver.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import rmq
from rmq.connectors import Held
from rmq.errors import QueryOwned, StorageError
from spark_connector.connection import connect, retry_while_away
from spark_connector.offset import Offset
from spark_connector.options import StreamOptions

Numbers = dict[int, int]  # slot -> number of a message in the query's log
RETRY_S = 300.0  # Redis may be away for so long without ending the query
_MIN_OWNER_S = 1.0  # the shortest owner lease
_JVM_CHECK_S = 1.0  # between two checks whether the JVM is alive


def owner() -> str:
    """Return the name of the query's owner: the JVM that is the parent of this process.

    A restart of the query inside the JVM has the same owner, because Spark prevents that one JVM
    runs a query twice. The start time distinguishes JVMs with the same process id.
    """
    jvm = os.getppid()
    try:
        started = Path(f"/proc/{jvm}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        command = ["ps", "-o", "lstart=", "-p", str(jvm)]
        with contextlib.suppress(OSError):
            output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            started = output.strip().replace(" ", "-") or "?"
    return f"{socket.gethostname()[:100]}:{jvm}:{started}"


class QueryLease:
    """The lease of one run of a query."""

    def __init__(
        self, options: StreamOptions, run: str, orphaned: Callable[[], None] | None = None
    ) -> None:
        """`orphaned`: called in the renewing thread when the JVM is gone."""
        self._options = options
        self._jvm = os.getppid()
        self._owner = owner()  # read now: without the JVM, this process has another parent
        self._orphaned = orphaned
        self.run = run
        self._client = connect(options.at)
        self._topic = self._client.topic(options.at.topic)
        self._query = self._query_as(self._topic, options.owner_s)
        self._retry_s = min(RETRY_S, options.lease_s)
        self._ours = False
        self._settled: Offset | None = None
        self._renewer: threading.Thread | None = None
        self._stopped = threading.Event()

    def _query_as(self, topic: rmq.Topic, owner_s: float) -> rmq.Query:
        exact = self._options.on_loss == "fail"  # a task fails if it cannot hand out its whole part
        return topic.query(
            self.run, self._owner, lease=self._options.lease_s, owner_lease=owner_s, exact=exact
        )

    def slots(self) -> int:
        """Return the number of slots of the topic. Raises TopicNotFound."""
        return retry_while_away(self._query.slots, self._retry_s)

    def waiting(self) -> list[int]:
        """Return how many messages of each slot may be taken now."""
        return retry_while_away(self._query.waiting, self._retry_s)

    def hold(self, after: Numbers, upto: Numbers | None = None) -> list[Held]:
        """Renew the lease; return, by slot, how much of a batch is held.

        The first call waits until the owner lease of a former driver has expired.

        Raises:
            QueryOwned: another driver is running this query.
        """
        until = time.monotonic() + self._options.owner_s + _MIN_OWNER_S
        while True:
            try:
                held = retry_while_away(lambda: self._query.renew(after, upto), self._retry_s)
                break
            except QueryOwned as error:
                left_s = until - time.monotonic()
                if self._ours or left_s <= 0:
                    raise
                time.sleep(min(left_s, error.left_s + 0.05, 0.5))
        if not self._ours:
            self._ours = True
            self._renewer = threading.Thread(target=self._renew, name="rmq-lease", daemon=True)
            self._renewer.start()
        return held

    def _renew(self) -> None:
        """Renew until the end. A driver that was replaced gets the error at its next call."""
        pause_s = min(self._options.lease_s, self._options.owner_s) / 3
        due = time.monotonic() + pause_s
        while not self._stopped.wait(min(_JVM_CHECK_S, max(0.0, due - time.monotonic()))):
            if os.getppid() != self._jvm:
                if self._orphaned is not None:
                    self._orphaned()
                return
            if time.monotonic() < due:
                continue
            due = time.monotonic() + pause_s
            try:
                self._query.renew({}, {})
            except StorageError:
                continue  # Redis is away: the lease lasts until the next attempt
            except rmq.RMQError:
                return

    def take(self, after: Numbers, most: int | None) -> Numbers:
        """Take messages unless some beyond `after` are held; return the newest numbers."""
        return retry_while_away(lambda: self._query.take(after, most), self._retry_s)

    def wait(self, seconds: float) -> None:
        """Sleep until there may be messages to take, at most for so many seconds."""
        retry_while_away(lambda: self._query.wait(seconds), self._retry_s)

    def settle(self, end: Offset) -> int:
        """Settle the batch that ends here; return how many of its messages cannot be settled."""
        if end == self._settled:
            return 0
        done = retry_while_away(lambda: self._query.settle(end.slots, end.held), self._retry_s)
        if not done.missing:
            self._settled = end
        return done.missing

    def again(self, upto: Numbers) -> None:
        """Hand out a batch once more, as the next one."""
        retry_while_away(lambda: self._query.again(upto), self._retry_s)

    def begun(self, batch: str, by: str) -> int:
        """Return how many runs of the query have begun a batch, including this one."""
        return retry_while_away(lambda: self._query.begun(batch, by), self._retry_s)

    def reject(self, upto: Numbers, reason: str) -> int:
        """Dead-letter all messages up to these numbers; return how many."""
        return retry_while_away(lambda: self._query.reject(upto, reason), self._retry_s)

    def release_ownership(self) -> None:
        """Stop renewing, so that another driver can continue at once; messages stay held."""
        self._stopped.set()
        if self._ours and self._renewer is not None:
            self._renewer.join(1.0)
            at = self._options.at
            with (
                contextlib.suppress(rmq.RMQError),
                rmq.Client(at.url, prefix=at.prefix, retry_for=0, timeout=1.0) as client,
            ):
                self._query_as(client.topic(at.topic), _MIN_OWNER_S).renew({}, {})
        self._query.close()
        self._client.close()
