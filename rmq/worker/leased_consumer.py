"""The desk: a worker's consumer, whose leases stand on the board.

While a delivery is in hand the keeper renews its lease, and with each renewal the receipt changes.
So every verb takes the newest receipt from the board first; where it was refused, and a renewal
came in between, it asks again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rmq.client.consumer import AsyncDelivery, Consumer, Delivery
from rmq.client.handler import Handler
from rmq.core import failure
from rmq.core.delivery import LOST, OPEN, DeliveryData
from rmq.core.settings import LEASE_MAX_MS, LEASE_MIN_MS
from rmq.core.validation import Duration, duration_ms
from rmq.errors import RMQError
from rmq.protocol import commands
from rmq.protocol.flows import claim, settle
from rmq.protocol.flows.settle import Leases, Settling
from rmq.protocol.steps import Flow, Sleep, pipeline
from rmq.transport import Transport
from rmq.worker.lease_table import LeaseTable

log = logging.getLogger("rmq")

RENEWAL_S = 0.005  # between two looks at a renewal that is under way
LOOKS_MAX = 2000  # a renewal that takes longer than ten seconds has failed


class LeasedConsumer(Consumer):
    """A consumer for the handler of one topic. Its verbs may be called from any thread."""

    def __init__(
        self, transport: Transport, handler: Handler, lease_table: LeaseTable, topic: int
    ) -> None:
        lease = None if handler.lease_ms is None else handler.lease_ms / 1000
        super().__init__(transport, handler.context, lease, "at_least_once", handler.ordered)
        self.lease_table = lease_table
        self._topic = topic
        self._guard = handler.claims
        self._fit = handler.convert_body
        if handler.is_async:
            self._delivery = AsyncDelivery  # type: ignore[assignment]
            self._awaited = AsyncLeasedConsumer(self)

    def _delivery_consumer(self) -> object:
        return self._awaited if self._delivery is AsyncDelivery else self  # type: ignore[comparison-overlap]

    def take(self, most: int, wait: float) -> list[Delivery]:
        """Receive, and note on the board what came."""
        found = self.receive(most, wait)
        if found:
            if self._guard is not None:
                # Code of the user's: what kills the process here counts as begun, so it comes
                # before the board, where the keeper would find that it has not.
                for one in found:
                    self._guard.prepare(one, self._fit)
            # Counted from before Redis was asked: the reply may have come to a frozen process.
            self._enter(found, self._receive_state.lease_ms, self._receive_state.visited_at)
            if self._guard is not None:
                self._claim_keys(found)
        return found

    def _claim_keys(self, found: list[Delivery]) -> None:
        """Claim what came, all in one call. What Redis does not answer comes back later."""
        try:
            self._transport.run(self._claim(found))
        except Exception as error:  # what is in hand must not be forgotten
            log.warning("claims of %s are not known: %s", self._context.name, error)
        self.lease_table.add_claims(found)

    def _enter(self, deliveries: Iterable[Delivery], lease_ms: int | None, held: float) -> None:
        assert lease_ms is not None
        self.lease_table.add(deliveries, self._topic, lease_ms, held)

    def with_expired_leases(self, deliveries: Iterable[Delivery]) -> set[DeliveryData]:
        """Those of which the delivery before ended with its consumer's silence; in one call."""
        mine = list(deliveries)
        calls = [commands.get(one._origin.keys, one._id) for one in mine]
        try:
            found = self._transport.run(pipeline(calls))
        except RMQError:
            return set()  # nobody knows, and messages must not wait for that
        return {
            one
            for one, message in zip(mine, found, strict=True)
            if message is not None and failure.is_expired_lease(message.failure)
        }

    def fail(
        self,
        deliveries: list[Delivery],
        wait_s: float | None,
        errors: Mapping[Delivery, BaseException | str | None],
    ) -> list[Delivery]:
        """Nack several, each with its own error; returns those whose lease was lost."""
        wait_ms = None if wait_s is None else round(wait_s * 1000)

        def build(mine: list[Delivery], leases: Leases) -> Settling[str]:
            told = [failure.encode(errors[one]) for one in mine]
            beside = claim.unclaim(self._context, mine)
            return settle.nack(self._context, leases, told, wait_ms, beside)

        def verb(some: list[Delivery]) -> Flow[list[Delivery]]:
            return self._settle("nack", some, build)

        return self._transport.run(self._renewed(verb, deliveries))

    def bury(
        self, deliveries: list[Delivery], reason: BaseException | str, kind: str
    ) -> list[Delivery]:
        """To the DeadQueue. `kind`: r, rejected by the handler; u, its body does not fit."""
        return self._transport.run(self._reject(deliveries, reason, kind))

    # --- verbs -----------------------------------------------------------------------------------

    def _leases(self, deliveries: Iterable[Delivery]) -> tuple[list[Delivery], Leases]:
        mine = list(deliveries)
        for one in mine:
            if isinstance(one, DeliveryData):
                self.lease_table.refresh(one)
        return super()._leases(mine)

    def _renewed(
        self, verb: Callable[[list[Delivery]], Flow[list[Delivery]]], mine: list[Delivery]
    ) -> Flow[list[Delivery]]:
        """Carry out a verb; again for those whose receipt the keeper changed meanwhile."""
        asked, lost = mine, []
        for _ in range(LOOKS_MAX):
            lost += yield from verb(asked)
            renewing = [one for one in lost if self.lease_table.is_renewing(one)]
            asked = [one for one in lost if self.lease_table.refresh(one)]
            if not asked and not renewing:
                break
            for one in asked:
                one._state = OPEN
            self._keep(asked)
            lost = [one for one in lost if one not in asked]
            if not asked:
                yield Sleep(RENEWAL_S)
        self.lease_table.remove(one for one in mine if one._state != OPEN)
        return lost

    def _ack(self, deliveries: Iterable[Delivery]) -> Flow[list[Delivery]]:
        return self._renewed(super()._ack, list(deliveries))

    def _nack(
        self,
        deliveries: Iterable[Delivery],
        delay: Duration | None,
        error: BaseException | str | None,
    ) -> Flow[list[Delivery]]:
        verb = super()._nack
        return self._renewed(lambda some: verb(some, delay, error), list(deliveries))

    def _reject(
        self, deliveries: Iterable[Delivery], reason: BaseException | str, kind: str = "r"
    ) -> Flow[list[Delivery]]:
        verb = super()._reject
        return self._renewed(lambda some: verb(some, reason, kind), list(deliveries))

    def _release(self, deliveries: Iterable[Delivery], delay: Duration) -> Flow[list[Delivery]]:
        verb = super()._release
        return self._renewed(lambda some: verb(some, delay), list(deliveries))

    def _close(self) -> Flow[None]:
        left = [one for one in list(self._open.values()) if one._state == OPEN]
        try:
            yield from super()._close()
        finally:
            for one in left:
                one._state = LOST  # told to a handler that still runs

    def _extend(
        self, deliveries: Iterable[Delivery], lease: Duration | None
    ) -> Flow[list[Delivery]]:
        """A handler asked for more than the keeper gives; the keeper goes on from there.

        Less than the keeper gives is not given: it looks only as often as the lease asks for.
        """
        mine, verb, held = list(deliveries), super()._extend, time.monotonic()
        lease_ms = self._receive_state.lease_ms or LEASE_MIN_MS
        if lease is not None:
            lease_ms = max(lease_ms, duration_ms(lease, "lease", LEASE_MIN_MS, LEASE_MAX_MS))
        lost = yield from self._renewed(lambda some: verb(some, lease_ms / 1000), mine)
        kept = [one for one in mine if one._state == OPEN]
        self.lease_table.remove(kept)
        self._enter(kept, lease_ms, held)
        self.lease_table.add_claims(kept)
        return lost


class AsyncLeasedConsumer:
    """The verbs of a desk for async handlers: they run in a thread, the loop goes on."""

    def __init__(self, consumer: LeasedConsumer) -> None:
        self._consumer = consumer
        self.lease_table = consumer.lease_table
        self._verb_for = consumer._verb_for
        self._transport = self

    async def run(self, flow: Flow[Any]) -> Any:
        """Drive a conversation of the desk."""
        return await asyncio.to_thread(self._consumer._transport.run, flow)

    async def ack(self, deliveries: Iterable[Any]) -> list[Any]:
        """As `Consumer.ack`."""
        return await asyncio.to_thread(self._consumer.ack, deliveries)

    async def nack(
        self,
        deliveries: Iterable[Any],
        *,
        delay: Duration | None = None,
        error: BaseException | str | None = None,
    ) -> list[Any]:
        """As `Consumer.nack`."""
        return await asyncio.to_thread(self._consumer.nack, deliveries, delay=delay, error=error)

    async def reject(self, deliveries: Iterable[Any], reason: BaseException | str) -> list[Any]:
        """As `Consumer.reject`."""
        return await asyncio.to_thread(self._consumer.reject, deliveries, reason)

    async def release(self, deliveries: Iterable[Any], *, delay: Duration = 0) -> list[Any]:
        """As `Consumer.release`."""
        return await asyncio.to_thread(self._consumer.release, deliveries, delay=delay)

    async def extend(self, deliveries: Iterable[Any], lease: Duration | None = None) -> list[Any]:
        """As `Consumer.extend`."""
        return await asyncio.to_thread(self._consumer.extend, deliveries, lease)
