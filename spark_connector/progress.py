"""Report the progress of a query to Spark and to Redis.

Redis gets a report with each renewal of the query's lease.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from spark_connector.query_lease import QueryLease

BACKLOG_S = 5.0  # shortest time between two counts of the backlog


class Progress:
    """Counts of one run of a query.

    Attributes:
        rows: Number of messages in the batches of this run.
        batches: Number of batches that this run has begun.
        replays: Number of batches from an earlier run that this run has repeated. A batch with
            several topics counts once for each topic.
        ahead: Number of messages that the query had already received when Spark requested the last
            batch.
    """

    def __init__(self) -> None:
        self.rows = self.batches = self.replays = self.ahead = 0
        self._since_ms = int(time.time() * 1000)
        self._lag_ms = 0  # wait of the oldest message, when the backlog was last counted
        self._counted_rows = -1
        self._report: tuple[float, dict[str, Any]] | None = None

    def report(self, lease: QueryLease, known: Iterable[str]) -> dict[str, Any]:
        """Return the number of waiting messages in each slot (part) of each topic.

        The result also has the counts of this run. The method counts waiting messages only after a
        batch, because a query without batches has none.
        """
        now = time.monotonic()
        if self._report is not None and now - self._report[0] <= BACKLOG_S:
            return self._report[1]
        waiting: dict[str, list[int]] = {}
        self._lag_ms = 0
        if self.rows != self._counted_rows:
            topics = [topic for topic in known if topic not in lease.lost]
            waiting, self._lag_ms = lease.waiting(topics), lease.late_ms(topics)
        found = {
            "waiting": sum(map(sum, waiting.values())),
            "topics": {
                topic: {str(slot): n for slot, n in enumerate(counts) if n}
                for topic, counts in waiting.items()
            },
            "held": lease.held(),
            **self.figures(lease),
        }
        self._report, self._counted_rows = (now, found), self.rows
        return found

    def figures(self, lease: QueryLease) -> dict[str, int]:
        """Return the counts and times of this run as a dict.

        The query also sends these values to Redis, so that `Admin.queries` can show them.
        """
        return {
            "since_ms": self._since_ms,
            "rows": self.rows,
            "bytes": lease.bytes,
            "batch_bytes": lease.batch_bytes,
            "batches": self.batches,
            "replays": self.replays,
            "ahead": self.ahead,
            "lapses": lease.lapses(),
            "lag_ms": self._lag_ms,
            "commands": lease.commands(),
        }
