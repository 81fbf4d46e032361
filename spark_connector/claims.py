"""What one run of a streaming query holds, and that it goes on holding it.

Lives in Spark's source runner, the one process of a query that lasts as long as the query runs. A
thread renews the lease: it must not depend on how long Spark's tasks take. It ends with the JVM:
a runner whose JVM was killed would keep the query from the driver that is started next.
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
from spark_connector.link import connect, patient
from spark_connector.offset import Offset
from spark_connector.options import StreamOptions

Numbers = dict[int, int]  # slot -> number of a message in the query's log
PATIENCE_S = 300.0  # for so long Redis may be away without ending the query
_LET_GO_S = 1.0  # the shortest time for which somebody can own a query
_LOOK_S = 1.0  # how often the thread looks whether the JVM is still there


def owner() -> str:
    """Who runs the query: the JVM that this process is a child of.

    A restart inside the JVM is the same owner: Spark itself keeps one JVM from running a query
    twice. The start time tells a JVM from one that had its process id before.
    """
    jvm = os.getppid()
    try:
        started = Path(f"/proc/{jvm}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        asked = ["ps", "-o", "lstart=", "-p", str(jvm)]
        with contextlib.suppress(OSError):
            told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
            started = told.strip().replace(" ", "-") or "?"
    return f"{socket.gethostname()[:100]}:{jvm}:{started}"


class Claims:
    """The claims of one run of a query."""

    def __init__(
        self, options: StreamOptions, run: str, orphaned: Callable[[], None] | None = None
    ) -> None:
        """`orphaned`: called in the thread when the JVM is gone, after the last renewal."""
        self._options = options
        self._jvm = os.getppid()
        self._owner = owner()  # asked now: when the JVM is gone, this process has another parent
        self._orphaned = orphaned
        self.run = run
        self._client = connect(options.at)
        self._topic = self._client.topic(options.at.topic)
        self._query = self._ask_as(self._topic, options.owner_s)
        self._patience_s = min(PATIENCE_S, options.lease_s)
        self._ours = False
        self._settled: Offset | None = None
        self._beat: threading.Thread | None = None
        self._over = threading.Event()

    def _ask_as(self, topic: rmq.Topic, owner_s: float) -> rmq.Query:
        exact = self._options.on_loss == "fail"  # tasks fail that cannot hand out all of a batch
        return topic.query(
            self.run, self._owner, lease=self._options.lease_s, owner_lease=owner_s, exact=exact
        )

    def slots(self) -> int:
        """How many slots the topic has. Raises TopicNotFound."""
        return patient(self._query.slots, self._patience_s)

    def waiting(self) -> list[int]:
        """How many messages of each slot may be taken now."""
        return patient(self._query.waiting, self._patience_s)

    def hold(self, after: Numbers, upto: Numbers | None = None) -> list[Held]:
        """Hold everything for another lease; by slot, how much of a batch is held.

        The first time it waits until the driver before us has been silent for its owner lease.

        Raises:
            QueryOwned: another driver goes on running this query.
        """
        until = time.monotonic() + self._options.owner_s + _LET_GO_S
        while True:
            try:
                held = patient(lambda: self._query.renew(after, upto), self._patience_s)
                break
            except QueryOwned as error:
                left_s = until - time.monotonic()
                if self._ours or left_s <= 0:
                    raise
                time.sleep(min(left_s, error.left_s + 0.05, 0.5))
        if not self._ours:
            self._ours = True
            self._beat = threading.Thread(target=self._renew, name="rmq-lease", daemon=True)
            self._beat.start()
        return held

    def _renew(self) -> None:
        """Renew until the end; a driver that another one has replaced is told at its next call."""
        pause_s = min(self._options.lease_s, self._options.owner_s) / 3
        due = time.monotonic() + pause_s
        while not self._over.wait(min(_LOOK_S, max(0.0, due - time.monotonic()))):
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
                continue  # Redis is away: the lease lasts, and the next turn comes soon
            except rmq.RMQError:
                return

    def take(self, after: Numbers, most: int | None) -> Numbers:
        """What is held beyond `after`, or else up to `most` new messages; the newest numbers."""
        return patient(lambda: self._query.take(after, most), self._patience_s)

    def wait(self, seconds: float) -> None:
        """Sleep until there may be something to take, for so long at most, or less."""
        patient(lambda: self._query.wait(seconds), self._patience_s)

    def settle(self, end: Offset) -> int:
        """Settle for good what ends here; how many messages of that batch nobody can settle."""
        if end == self._settled:
            return 0
        done = patient(lambda: self._query.settle(end.slots, end.held), self._patience_s)
        if not done.missing:
            self._settled = end
        return done.missing

    def again(self, upto: Numbers) -> None:
        """Have a batch handed out once more, as the next one."""
        patient(lambda: self._query.again(upto), self._patience_s)

    def begun(self, batch: str, by: str) -> int:
        """How many runs of the query have begun a batch, this one too."""
        return patient(lambda: self._query.begun(batch, by), self._patience_s)

    def reject(self, upto: Numbers, reason: str) -> int:
        """Send everything up to these numbers to the DeadQueue; how many messages."""
        return patient(lambda: self._query.reject(upto, reason), self._patience_s)

    def let_go(self) -> None:
        """Stop renewing, and let another driver go on at once; what is held stays held."""
        self._over.set()
        if self._ours and self._beat is not None:
            self._beat.join(1.0)
            at = self._options.at
            with (
                contextlib.suppress(rmq.RMQError),
                rmq.Client(at.url, prefix=at.prefix, retry_for=0, timeout=1.0) as client,
            ):
                self._ask_as(client.topic(at.topic), _LET_GO_S).renew({}, {})
        self._query.close()
        self._client.close()
