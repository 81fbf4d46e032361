"""Workers that are broken on purpose; each patches this process and must be seen to lose or double.

The last two are stuck threads, for the watchdog.
"""

from __future__ import annotations

import time
from typing import Any

from rmq.core.delivery import SETTLED
from rmq.worker import lease_renewer
from rmq.worker.handler_runs import HandlerRuns
from rmq.worker.lease_table import LeaseTable
from rmq.worker.leased_consumer import LeasedConsumer


def blind_keeper() -> None:
    """The lease renewer renews for a process that is stopped."""
    start = lease_renewer.subprocess.Popen

    class Blind(start):  # type: ignore[misc,valid-type]
        def __init__(self, words: list[str], **options: Any) -> None:
            call = "lease_renewer.main()"
            code = words[2].replace(call, f"lease_renewer.is_stopped = lambda pid: False; {call}")
            assert code != words[2]
            super().__init__([*words[:2], code, *words[3:]], **options)

    lease_renewer.subprocess.Popen = Blind  # type: ignore[misc]


def idle_keeper() -> None:
    """No lease is renewed. Needs keeper="thread"."""

    def rest(self: lease_renewer.LeaseRenewer) -> float:
        self.lease_table.note_round()
        return 0.1

    lease_renewer.LeaseRenewer.renew_due = rest  # type: ignore[method-assign]


def acks_first() -> None:
    """The worker settles a delivery before it runs the handler, as at_most_once does."""
    begin = HandlerRuns._may_run

    def settled(self: HandlerRuns, one: Any) -> bool:
        if not begin(self, one):
            return False
        self.consumer.ack([one])
        return True

    HandlerRuns._may_run = settled  # type: ignore[method-assign]


def acks_by_id() -> None:
    """Its acks look at the id alone."""

    def ack(self: LeasedConsumer, deliveries: Any) -> list[Any]:
        for one in deliveries:
            keys = one._origin.keys
            self._transport.raw_command("ack", "ZREM", keys.prepare, one.id.member)
            self._transport.raw_command("ack", "HDEL", keys.records, one.id.member)
            one._state = SETTLED
        self.lease_table.remove(deliveries)
        return []

    LeasedConsumer.ack = ack  # type: ignore[method-assign]


def begins_anything() -> None:
    """The worker starts a run without checking the lease."""
    HandlerRuns._may_run = lambda self, one: True  # type: ignore[method-assign]


def never_tells() -> None:
    """d.lost is never true."""
    LeaseTable.is_lost = lambda self, one: False  # type: ignore[method-assign]


def stuck_fetcher() -> None:
    LeasedConsumer.take_ready = lambda self, limit: time.sleep(3600)  # type: ignore[method-assign]


def stuck_settler() -> None:
    LeasedConsumer.ack = lambda self, deliveries: time.sleep(3600)  # type: ignore[method-assign]
