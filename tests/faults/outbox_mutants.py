"""Relays and resenders that are broken on purpose; each patches this process and must be caught."""

from __future__ import annotations

from typing import Any

from rmq.outbox import Relay
from rmq.sql.outbox import relay_queries
from rmq.sql.outbox.lost import NOWHERE, LossDetector
from rmq.sql.outbox.relay import _Relayed
from rmq.sql.outbox.relay_queries import Mark
from rmq.sql.outbox.tables import CONFIRMED, UNCONFIRMED


def marks_first(faults: Any) -> None:
    """The relay marks and commits, and sends then."""

    def relay_batch(self: Any, connection: Any) -> Any:
        with connection.begin():
            taken, locked, now = relay_queries.take(connection, self._batch)
            later = now + self._outbox.resend_after_ms(1)
            marks = [
                Mark(one.seq, 0, 0, later, UNCONFIRMED if one.confirm else CONFIRMED, one.sends)
                for one in taken
            ]
            if marks:
                relay_queries.mark(connection, marks, now)
        if taken:
            faults.reach("relay unsent", [one.id for one in taken])
            self._dispatcher.send(taken, now)
        return _Relayed(locked, len(taken))

    Relay._relay_batch = relay_batch  # type: ignore[method-assign]


def ignores_the_queue(faults: Any) -> None:
    """The resender takes for lost whatever nobody has confirmed in time."""
    locate = LossDetector._locate

    def nowhere(self: Any, found: Any) -> Any:
        locate(self, found)
        return {one.seq: NOWHERE for one in found}

    LossDetector._locate = nowhere  # type: ignore[method-assign]
