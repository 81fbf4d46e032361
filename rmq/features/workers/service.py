"""Forget the records of worker processes that have died, and log that they have."""

from __future__ import annotations

import logging

from rmq.features.workers import flows
from rmq.kernel.transport.blocking import Transport

log = logging.getLogger("rmq")

EVERY_S = 30.0


class WorkerRecords:
    """Removes ids of processes that reported last half a minute ago; workers do it as they report.

    A process that stops removes its own; so one that is found here was killed, or cannot reach
    Redis.
    """

    name = "worker_records"
    every_s = EVERY_S
    needs_leadership = True

    def __init__(self, transport: Transport, prefix: str) -> None:
        self._transport = transport
        self._prefix = prefix

    def run_once(self) -> int:
        """Forget the lapsed ones; return how many."""
        lapsed = self._transport.run(flows.forget_lapsed(self._prefix))
        for worker in lapsed:
            log.warning("worker %s has ended without a word, or cannot reach Redis", worker)
        return len(lapsed)
