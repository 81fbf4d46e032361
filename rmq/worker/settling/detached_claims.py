"""Keep the claims on business keys while handlers still run after their deliveries have ended."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable

from rmq.kernel.consumer import claim_flows as claim_flow
from rmq.kernel.consumer.claim_flows import ExtraCommands
from rmq.kernel.delivery.claim import FIRST, KEPT, Claim
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.handlers.handler import Handler
from rmq.kernel.transport.single.blocking import Transport

log = logging.getLogger("rmq")

TICK_S = 0.1  # time between two checks for handlers that have ended
AGAIN_S = 0.5  # pause after a call that failed


class DetachedClaims:
    """Keeps the claims on business keys while handlers run.

    A claim must last as long as its handler runs. Otherwise another worker could begin the same
    work. A handler can run longer than its delivery lasts. This happens after the `max_runtime`,
    when the lease is lost, and after the grace time of a stop. A thread of this process then renews
    the claim. When the handler ends, the thread marks the claim as done or removes it. If the
    process ends first, the claim expires, as after a crash.

    You may call the methods from any thread.
    """

    def __init__(self, transport: Transport, handler: Handler) -> None:
        self._transport = transport
        self._handler = handler
        self.lost = 0  # claims that were gone before their handlers had ended
        self._running: set[InnerDelivery] = set()
        self._detached: dict[InnerDelivery, float] = {}  # delivery -> end of its claim
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self, delivery: InnerDelivery) -> None:
        """Record that the handler of a delivery begins."""
        if delivery.claim is not None and delivery.claim.state == FIRST:
            self._running.add(delivery)

    def end(self, delivery: InnerDelivery, done: bool) -> None:
        """Record that the handler of a delivery has ended.

        `done` says whether the work is done. Done work must not be repeated.
        """
        if delivery in self._running:
            assert delivery.claim is not None
            with self._lock:
                delivery.claim.work_done |= done
                self._running.discard(delivery)

    def keep(self, deliveries: Iterable[InnerDelivery] | None = None) -> None:
        """Keep the claims on business keys of these deliveries.

        With None, keep the claims of all deliveries. The method keeps only claims whose handlers
        still run. Call it before you release the deliveries, because a release removes all other
        claims.
        """
        with self._lock:
            for delivery in list(self._running if deliveries is None else deliveries):
                claim = delivery.claim
                if delivery in self._running and claim is not None and claim.state == FIRST:
                    claim.state = KEPT
                    self._detached[delivery] = time.monotonic() + self._lease_ms / 1000
            if self._detached and self._thread is None:
                name = f"rmq-{self._handler.context.name}-claims"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread left; the next call tries again
                    thread.start()
                    self._thread = thread

    def keep_lost(self) -> None:
        """Keep the claims on business keys of running deliveries that have lost their leases.

        The watchdog calls this method a few times a second.
        """
        if self._running:
            self.keep([delivery for delivery in list(self._running) if delivery.lost])

    @property
    def _lease_ms(self) -> int:
        context = self._handler.context
        return self._handler.lease_ms or context.settings.lease_ms

    def _run(self) -> None:
        renewed, pause = float("-inf"), TICK_S
        while True:
            time.sleep(pause)
            with self._lock:
                if not self._detached:
                    self._thread = None  # under the lock, so that the next `keep` starts a thread
                    return
                ended = [delivery for delivery in self._detached if delivery not in self._running]
                running = [delivery for delivery in self._detached if delivery in self._running]
            try:
                if ended:
                    self._settle(ended)
                if running and time.monotonic() - renewed > self._lease_ms / 3000:
                    self._renew(running)
                    renewed = time.monotonic()
                pause = TICK_S
            except Exception as error:  # Redis is away, or the worker's connections are closed
                pause = AGAIN_S
                self._drop_expired(ended, error)

    def _renew(self, running: list[InnerDelivery]) -> None:
        until = time.monotonic() + self._lease_ms / 1000
        claims = _claims(running)
        extra_commands = claim_flow.renew(self._handler.context, claims, self._lease_ms)
        assert extra_commands is not None
        self._run_commands(extra_commands)
        for delivery in running:
            self._detached[delivery] = until
            self._drop_if_lost(delivery)

    def _settle(self, ended: list[InnerDelivery]) -> None:
        done = [delivery for delivery in _claims(ended) if delivery.work_done]
        free = [delivery for delivery in _claims(ended) if not delivery.work_done]
        self._run_commands(claim_flow.settle(self._handler.context, done, free))
        for delivery in ended:
            if not self._drop_if_lost(delivery):
                self._forget(delivery)

    def _run_commands(self, extra_commands: ExtraCommands) -> None:
        self._transport.run(claim_flow.run_alone(extra_commands))

    def _drop_if_lost(self, delivery: InnerDelivery) -> bool:
        if not delivery.claim_lost:
            return False
        self._forget(delivery)
        self.lost += 1
        log.error(
            "%s: the claim of %s was lost while it ran on without its lease; check whether the "
            "work was done twice", self._handler, delivery.id,
        )  # fmt: skip
        return True

    def _drop_expired(self, ended: list[InnerDelivery], error: Exception) -> None:
        for delivery in ended:
            if time.monotonic() > self._detached[delivery]:
                self._forget(delivery)
                log.warning(
                    "%s: the claim of %s has expired; its work may be done again: %s",
                    self._handler, delivery.id, error,
                )  # fmt: skip

    def _forget(self, delivery: InnerDelivery) -> None:
        with self._lock:
            self._detached.pop(delivery, None)


def _claims(deliveries: Iterable[InnerDelivery]) -> list[Claim]:
    return [delivery.claim for delivery in deliveries if delivery.claim is not None]
