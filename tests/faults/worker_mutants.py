"""Workers that are broken on purpose; each patches this process and must be seen to lose or double.

The last two are stuck threads, for the watchdog.
"""

from __future__ import annotations

import time
from typing import Any

from rmq.kernel.consumer.flows import ConsumerFlows
from rmq.kernel.delivery.inner_delivery import SETTLED
from rmq.kernel.transport.flow.steps import RawCommand
from rmq.worker.heartbeat import start
from rmq.worker.heartbeat.leases import WorkerLease
from rmq.worker.heartbeat.renewer import Heartbeat
from rmq.worker.receiving.feed import TopicFeed
from rmq.worker.running.work import HandlerWork
from rmq.worker.watchdog import Watchdog


def blind_heartbeat() -> None:
    """The heartbeat renews for a process that is stopped, for as long as that is."""
    main = "main(int(sys.argv[1]))"
    blind = "import rmq.worker.heartbeat.renewer as h; h.is_stopped = lambda pid: False; "
    assert start.PROGRAM.endswith(main)
    start.PROGRAM = start.PROGRAM.removesuffix(main) + blind + main
    Watchdog._allow_renewals = lambda self, now: None  # type: ignore[method-assign]


def idle_heartbeat() -> None:
    """No lease is renewed. Needs heartbeat="thread"."""

    def rest(self: Heartbeat) -> float:
        self.memory.times[0] = time.monotonic()
        return 0.1

    Heartbeat.beat = rest  # type: ignore[method-assign]


def acks_first() -> None:
    """The worker settles a delivery before it runs the handler, as at_most_once does."""
    begin = HandlerWork._may_run

    def settled(self: HandlerWork, one: Any) -> bool:
        if not begin(self, one):
            return False
        self.settler._run(self.settler._flows.ack([one]))
        return True

    HandlerWork._may_run = settled  # type: ignore[method-assign]


def acks_by_id() -> None:
    """Its acks look at the id alone."""

    def ack(self: ConsumerFlows, deliveries: Any) -> Any:
        for one in deliveries:
            keys = one.origin.keys
            yield RawCommand("ack", "ZREM", keys.prepare, one.id.member)
            yield RawCommand("ack", "HDEL", keys.records, one.id.member)
            one.state = SETTLED
        assert self._shared_leases is not None
        self._shared_leases.remove(deliveries)
        return []

    ConsumerFlows.ack = ack  # type: ignore[method-assign]


def begins_anything() -> None:
    """The worker starts a run without checking the lease."""
    HandlerWork._may_run = lambda self, one: True  # type: ignore[method-assign]


def never_tells() -> None:
    """d.lost is never true."""
    WorkerLease.is_lost = lambda self: False  # type: ignore[method-assign]


def stuck_fetcher() -> None:
    TopicFeed._receive_by = lambda self, limit, take: time.sleep(3600)  # type: ignore[method-assign]


def stuck_settler() -> None:
    ConsumerFlows.ack = lambda self, deliveries: time.sleep(3600)  # type: ignore[method-assign]
