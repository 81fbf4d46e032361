"""Claims of runs that go on without their deliveries.

A claim ends with its run, never before: else a second run would begin beside the first. A run can
outlive its delivery in three ways: it exceeds its `max_runtime`, its lease is lost, or the worker
stops and its grace time is over. Its claim is then renewed by a thread of this process; when the
run ends, the claim is marked as done, or given up. If the process ends before the run, the claim
expires, as after a crash.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from rmq.client.handler import Handler
from rmq.core.claim import FIRST, KEPT, Claim
from rmq.core.delivery import DeliveryData
from rmq.protocol.flows import claim as claim_flow
from rmq.protocol.flows.claim import ExtraCommands
from rmq.transport import Transport

log = logging.getLogger("rmq")

TICK_S = 0.1  # between two looks at which runs have ended
AGAIN_S = 0.5  # after a call that failed


class DetachedClaims:
    """The claims of one handler's runs. Its methods may be called from any thread."""

    def __init__(self, transport: Transport, handler: Handler) -> None:
        self._transport = transport
        self._handler = handler
        self._running: set[DeliveryData] = set()
        self._kept: dict[DeliveryData, float] = {}  # and until when Redis has it at least
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self, one: DeliveryData) -> None:
        """A run begins."""
        if one._claim is not None and one._claim.state == FIRST:
            self._running.add(one)

    def end(self, one: DeliveryData, done: bool) -> None:
        """A run has ended. `done`: its work is done, and must not be done again."""
        if one in self._running:
            assert one._claim is not None
            with self._lock:
                one._claim.work_done |= done
                self._running.discard(one)

    def keep(self, deliveries: Iterable[DeliveryData] | None = None) -> None:
        """Keep the claims of these, as far as they run; None: of all that run.

        Called before the deliveries are given back, which gives up all other claims.
        """
        with self._lock:
            for one in list(self._running if deliveries is None else deliveries):
                claim = one._claim
                if one in self._running and claim is not None and claim.state == FIRST:
                    claim.state = KEPT
                    self._kept[one] = time.monotonic() + self._hold_ms / 1000
            if self._kept and self._thread is None:
                name = f"rmq-{self._handler.context.name}-claims"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def keep_lost(self) -> None:
        """Keep the claims of runs whose leases are lost; called a few times a second."""
        if self._running:
            self.keep([one for one in list(self._running) if one.lost])

    @property
    def _hold_ms(self) -> int:
        context = self._handler.context
        return self._handler.lease_ms or context.settings.lease_ms

    def _run(self) -> None:
        renewed, pause = float("-inf"), TICK_S
        while True:
            time.sleep(pause)
            with self._lock:
                if not self._kept:
                    self._thread = None  # under the lock, so that the next one starts another
                    return
                ended = [one for one in self._kept if one not in self._running]
                going = [one for one in self._kept if one in self._running]
            try:
                if ended:
                    self._settle(ended)
                if going and time.monotonic() - renewed > self._hold_ms / 3000:
                    self._renew(going)
                    renewed = time.monotonic()
                pause = TICK_S
            except Exception as error:  # Redis is away, or the worker's connections are closed
                pause = AGAIN_S
                self._expire(ended, error)

    def _renew(self, going: list[DeliveryData]) -> None:
        until = time.monotonic() + self._hold_ms / 1000
        claims = _claims(going)
        beside = claim_flow.renew(self._handler.context, claims, self._hold_ms)
        assert beside is not None
        self._tell(beside)
        for one in going:
            self._kept[one] = until
            self._gone_if_lost(one)

    def _settle(self, ended: list[DeliveryData]) -> None:
        done = [one for one in _claims(ended) if one.work_done]
        free = [one for one in _claims(ended) if not one.work_done]
        self._tell(claim_flow.settle(self._handler.context, done, free))
        for one in ended:
            if not self._gone_if_lost(one):
                self._drop(one)

    def _tell(self, beside: ExtraCommands) -> None:
        self._transport.run(claim_flow.run_alone(beside))

    def _gone_if_lost(self, one: DeliveryData) -> bool:
        if not one.claim_lost:
            return False
        self._drop(one)
        log.error(
            "%s: the claim of %s was gone while it ran on without its lease; look whether the work "
            "was done twice", self._handler, one.id,
        )  # fmt: skip
        return True

    def _expire(self, ended: list[DeliveryData], error: Exception) -> None:
        """Forget what has ended, and whose claim has expired while Redis could not be asked."""
        for one in ended:
            if time.monotonic() > self._kept[one]:
                self._drop(one)
                log.warning(
                    "%s: the claim of %s has expired; its work may be done again: %s",
                    self._handler, one.id, error,
                )  # fmt: skip

    def _drop(self, one: DeliveryData) -> None:
        with self._lock:
            self._kept.pop(one, None)


def _claims(deliveries: Iterable[DeliveryData]) -> list[Claim]:
    return [one._claim for one in deliveries if one._claim is not None]
