"""Consume: receive deliveries and settle them. Sync and async side by side.

Two phases. `receive` leases messages; `ack` settles them. A delivery that is neither acked nor
given back is rolled back when its lease ends, and costs the message a retry. At least once,
therefore: a consumer that dies after its work and before its ack has the work done again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Generic, Literal, TypeVar

from rmq import codec, commands, failure, record
from rmq.commands import Batch
from rmq.delivery import LOST, OPEN, SETTLED, DeliveryData, Origin, Reject, Snooze
from rmq.errors import (
    AlreadySettled,
    DecodeError,
    InvalidReceipt,
    InvalidType,
    InvalidValue,
    LeaseLost,
)
from rmq.flows import Flow, opening, operating, receiving, settling
from rmq.flows.receiving import Reception
from rmq.flows.settling import Lease, Leases
from rmq.handle import Handle
from rmq.keys import SlotKeys
from rmq.message import Receipt
from rmq.score import moved_deadline
from rmq.settings import LEASE_MAX_MS, LEASE_MIN_MS
from rmq.units import TEN_YEARS_MS, Duration, milliseconds
from rmq.wire import AsyncExecutor, Executor

Mode = Literal["at_least_once", "at_most_once"]
D = TypeVar("D", bound=DeliveryData)
KEPT_BATCHES = 64

# First byte of a record whose body begins at byte 9 -> how to read the body.
_PLAIN = {number << 5: one.decode for number, one in codec.BY_NUMBER.items()}


def _lease(value: Duration | None) -> int | None:
    return None if value is None else milliseconds(value, "lease", LEASE_MIN_MS, LEASE_MAX_MS)


def _told(error: BaseException | str | None) -> bytes:
    return failure.tell(error)


class _ConsumerBase(Generic[D]):
    """The conversations of a consumer, for either executor to run."""

    _delivery: type[D]

    def __init__(self, handle: Handle, lease: Duration | None, mode: Mode) -> None:
        if mode not in ("at_least_once", "at_most_once"):
            raise InvalidValue(f"mode: {mode!r}; give 'at_least_once' or 'at_most_once'")
        self._handle = handle
        self._pops = mode == "at_most_once"
        self._reception = Reception(handle, _lease(lease), self._pops)
        self._open: list[list[D]] = []
        self._tidy_at = KEPT_BATCHES
        self._closed = False

    def _receive(self, max_messages: int, wait: Duration | None) -> Flow[list[D]]:
        if self._closed:
            raise InvalidValue("consumer: it is closed; make another with topic.consumer()")
        while True:
            batches = yield from receiving.receive(self._reception, max_messages, wait)
            found: list[D] = []
            for keys, batch in batches:
                unreadable = self._read(keys, batch, found)
                if self._pops:
                    for lease, told, entry in unreadable:
                        yield commands.bury(keys, lease.id, entry, told)
                elif unreadable:
                    yield from settling.reject(
                        self._handle,
                        Leases.of([lease for lease, _, _ in unreadable]),
                        [told for _, told, _ in unreadable],
                        "u",
                    )
            if found or not batches:
                break  # a batch of undecodable messages alone is not an answer: look again
        if found and not self._pops:
            self._open.append(found)
            if len(self._open) > self._tidy_at:
                self._open = [b for b in self._open if any(d._state == OPEN for d in b)]
                self._tidy_at = 2 * len(self._open) + KEPT_BATCHES
        return found

    def _read(
        self, keys: SlotKeys, batch: Batch, found: list[D]
    ) -> list[tuple[Lease, bytes, bytes]]:
        """Make deliveries of a batch; what cannot be decoded is returned with the reason."""
        unreadable = []
        retries, lefts, ids = self._handle.settings.max_retries, batch.lefts, batch.ids
        base, fence, left = batch.deadline_s * 1000, batch.first_delivery - 1, retries
        origin = Origin(self, keys, batch.newest, retries)
        make, keep = self._delivery, found.append
        for position, entry in enumerate(batch.records):
            fence += 1
            if not entry:
                continue  # a replayed delivery that is no longer ours
            if lefts:
                left = lefts[position]
            score = base + left + (fence & 2047) / 2048
            decode = _PLAIN.get(entry[0])
            try:
                body = decode(entry[8:]) if decode else operating.body_of(record.read(entry))
            except DecodeError as error:
                lease = Lease(keys.index, ids[position], score)
                unreadable.append((lease, failure.tell(error), entry))
                continue
            keep(make(origin, ids[position], score, entry, fence, body))
        return unreadable

    def _leases(self, deliveries: Iterable[D]) -> tuple[list[D], Leases]:
        mine = list(deliveries)
        if len(set(map(id, mine))) != len(mine):
            raise InvalidValue("deliveries: one of them is given twice; give each once")
        slots, ids, scores, numbers = [], [], [], []
        for one in mine:
            if not isinstance(one, DeliveryData):
                raise InvalidType(f"deliveries: {type(one).__name__}; give what receive returned")
            if one._state:
                raise AlreadySettled(
                    f"delivery {one.id} was "
                    + ("settled before" if one._state == SETTLED else "lost: its lease ran out")
                )
            slots.append(one._origin.keys.index)
            ids.append(one._id)
            scores.append(one._score)
            numbers.append(one.fence)
        return mine, Leases(slots, ids, scores, numbers)

    def _settled(self, deliveries: Sequence[D], letters: str) -> list[D]:
        """Note what became of each; those whose lease was lost."""
        if "0" not in letters:
            for one in deliveries:
                one._state = SETTLED
            return []
        lost = []
        for one, letter in zip(deliveries, letters, strict=True):
            one._state = LOST if letter == "0" else SETTLED
            if letter == "0":
                lost.append(one)
        return lost

    def _ack(self, deliveries: Iterable[D]) -> Flow[list[D]]:
        mine, leases = self._leases(deliveries)
        if self._pops:
            return self._settled(mine, "1" * len(mine))
        letters = yield from settling.ack(self._handle, leases)
        return self._settled(mine, letters)

    def _nack(
        self, deliveries: Iterable[D], delay: Duration | None, error: BaseException | str | None
    ) -> Flow[list[D]]:
        wait_ms = None if delay is None else milliseconds(delay, "delay", zero=True)
        mine, leases = self._leases(deliveries)
        self._needs_leases()
        letters = yield from settling.nack(
            self._handle, leases, [_told(error)] * len(mine), wait_ms
        )
        return self._settled(mine, letters)

    def _reject(self, deliveries: Iterable[D], reason: BaseException | str) -> Flow[list[D]]:
        mine, leases = self._leases(deliveries)
        self._needs_leases()
        letters = yield from settling.reject(self._handle, leases, [_told(reason)] * len(mine), "r")
        return self._settled(mine, letters)

    def _release(self, deliveries: Iterable[D], delay: Duration) -> Flow[list[D]]:
        wait_ms = milliseconds(delay, "delay", high_ms=TEN_YEARS_MS, zero=True)
        mine, leases = self._leases(deliveries)
        self._needs_leases()
        letters = yield from settling.release(
            self._handle, leases, [d._place() for d in mine], wait_ms
        )
        return self._settled(mine, letters)

    def _extend(self, deliveries: Iterable[D], lease: Duration | None) -> Flow[list[D]]:
        mine, leases = self._leases(deliveries)
        self._needs_leases()
        lease_ms = _lease(lease) or self._reception.lease_ms or self._handle.settings.lease_ms
        deadlines = yield from settling.extend(self._handle, leases, lease_ms)
        lost = []
        for one, deadline in zip(mine, deadlines, strict=True):
            if deadline is None:
                one._state = LOST
                lost.append(one)
            else:
                one._score = moved_deadline(one._score, deadline)
        return lost

    def _ack_receipts(self, receipts: Iterable[Receipt | str]) -> Flow[list[Receipt]]:
        self._needs_leases()
        read = [one if isinstance(one, Receipt) else Receipt.parse(one) for one in receipts]
        yield from opening.ensure(self._handle)
        leases = []
        for one in read:
            try:
                self._handle.own_id(one.id, "receipt")
            except InvalidValue as error:
                raise InvalidReceipt(str(error)) from None
            leases.append(Lease(one.id.slot, one.id, one.score))
        letters = yield from settling.ack(self._handle, Leases.of(leases))
        return [one for one, letter in zip(read, letters, strict=True) if letter == "0"]

    def _needs_leases(self) -> None:
        if self._pops:
            raise InvalidValue(
                "mode: an at_most_once delivery is settled when it is handed over; there is no "
                "lease to ack, give back or extend. Use mode='at_least_once'"
            )

    def _close(self) -> Flow[None]:
        """Hand back what nobody has settled, at once and without costing a retry."""
        self._closed = True
        left = [d for batch in self._open for d in batch if d._state == OPEN]
        self._open = []
        if left:
            yield from self._release(left, 0)

    def _verdict(self, error: BaseException | None) -> Callable[[list[D]], Flow[list[D]]]:
        """What leaving `with delivery` means."""
        if error is None or self._pops:
            return self._ack
        if isinstance(error, Snooze):
            delay = error.delay
            return lambda mine: self._release(mine, delay)
        if isinstance(error, Reject):
            reason = str(error) or "rejected"
            return lambda mine: self._reject(mine, reason)
        if isinstance(error, Exception):
            return lambda mine: self._nack(mine, None, error)
        return lambda mine: self._release(mine, 0)  # Ctrl-C is not the message's fault


def _lost(lost: Sequence[DeliveryData], verb: str) -> None:
    if lost:
        raise LeaseLost(
            f"{verb}: the lease of {lost[0].id} ended at {lost[0].deadline.isoformat()} and was "
            "rolled back; the message may be with another consumer, nothing was changed. "
            "Give a longer lease, or extend it while you work"
        )


class Delivery(DeliveryData):
    """One attempt to hand a message to a consumer.

    `with delivery:` acks at its end. An exception nacks and goes on its way; `Snooze` and `Reject`
    are carried out and end there; Ctrl-C releases.
    """

    __slots__ = ()

    def ack(self) -> None:
        """Settle it for good. Raises LeaseLost, AlreadySettled."""
        _lost(self._origin.consumer.ack([self]), "ack")

    def nack(
        self, *, delay: Duration | None = None, error: BaseException | str | None = None
    ) -> None:
        """Give it back as failed; costs a retry.

        Args:
            delay: until the retry; None: the topic's policy; 0: at once.
            error: kept for whoever looks at the dead letter.
        """
        _lost(self._origin.consumer.nack([self], delay=delay, error=error), "nack")

    def reject(self, reason: BaseException | str) -> None:
        """Send it to the DeadQueue at once, whatever retries remain."""
        _lost(self._origin.consumer.reject([self], reason), "reject")

    def release(self, *, delay: Duration = 0) -> None:
        """Hand it back unworked, now or for `delay`; costs no retry."""
        _lost(self._origin.consumer.release([self], delay=delay), "release")

    def extend(self, lease: Duration | None = None) -> None:
        """Move the deadline to `lease` from now; None: as long as it was leased for."""
        _lost(self._origin.consumer.extend([self], lease), "extend")

    def __enter__(self) -> Delivery:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._state == OPEN:
            verdict = self._origin.consumer._verdict(error)
            lost = self._origin.consumer._executor.run(verdict([self]))
            if error is None or isinstance(error, Snooze | Reject):
                _lost(lost, "settle")
        return isinstance(error, Snooze | Reject)


class Consumer(_ConsumerBase[Delivery]):
    """Receives deliveries of one topic. For `with`: leaving hands back what nobody has settled.

    Threads may share it.
    """

    _delivery = Delivery

    def __init__(
        self, executor: Executor, handle: Handle, lease: Duration | None, mode: Mode
    ) -> None:
        super().__init__(handle, lease, mode)
        self._executor = executor

    def receive(self, max_messages: int = 1, wait: Duration | None = 0) -> list[Delivery]:
        """Take messages.

        Args:
            max_messages: at most so many, 1 to 1000. It does not wait to gather them.
            wait: how long to wait for the first, seconds or timedelta; 0: not at all; None: for
                ever.

        Returns:
            Deliveries, in the order of their slot; empty when none came in time. A message that
            cannot be decoded goes to the DeadQueue with the reason instead.

        Raises:
            Unavailable, OutcomeUnknown: Redis is away; what was leased meanwhile is rolled back
                later.
        """
        return self._executor.run(self._receive(max_messages, wait))

    def ack(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Settle deliveries for good; returns those whose lease was lost (empty: all is well)."""
        return self._executor.run(self._ack(deliveries))

    def ack_receipts(self, receipts: Iterable[Receipt | str]) -> list[Receipt]:
        """Settle deliveries by their receipts, from any process; returns the lost ones."""
        return self._executor.run(self._ack_receipts(receipts))

    def nack(
        self,
        deliveries: Iterable[Delivery],
        *,
        delay: Duration | None = None,
        error: BaseException | str | None = None,
    ) -> list[Delivery]:
        """Give deliveries back as failed; returns those whose lease was lost."""
        return self._executor.run(self._nack(deliveries, delay, error))

    def reject(self, deliveries: Iterable[Delivery], reason: BaseException | str) -> list[Delivery]:
        """Send deliveries to the DeadQueue; returns those whose lease was lost."""
        return self._executor.run(self._reject(deliveries, reason))

    def release(self, deliveries: Iterable[Delivery], *, delay: Duration = 0) -> list[Delivery]:
        """Hand deliveries back unworked; returns those whose lease was lost."""
        return self._executor.run(self._release(deliveries, delay))

    def extend(
        self, deliveries: Iterable[Delivery], lease: Duration | None = None
    ) -> list[Delivery]:
        """Move deadlines; returns those whose lease was lost."""
        return self._executor.run(self._extend(deliveries, lease))

    def close(self) -> None:
        """Hand back what nobody has settled, and stop listening."""
        if not self._closed:
            try:
                self._executor.run(self._close())
            finally:
                self._executor.deafen(self._reception.listener)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncDelivery(DeliveryData):
    """One attempt to hand a message to a consumer, for `async with`. As `Delivery`."""

    __slots__ = ()

    async def ack(self) -> None:
        """As `Delivery.ack`."""
        _lost(await self._origin.consumer.ack([self]), "ack")

    async def nack(
        self, *, delay: Duration | None = None, error: BaseException | str | None = None
    ) -> None:
        """As `Delivery.nack`."""
        _lost(await self._origin.consumer.nack([self], delay=delay, error=error), "nack")

    async def reject(self, reason: BaseException | str) -> None:
        """As `Delivery.reject`."""
        _lost(await self._origin.consumer.reject([self], reason), "reject")

    async def release(self, *, delay: Duration = 0) -> None:
        """As `Delivery.release`."""
        _lost(await self._origin.consumer.release([self], delay=delay), "release")

    async def extend(self, lease: Duration | None = None) -> None:
        """As `Delivery.extend`."""
        _lost(await self._origin.consumer.extend([self], lease), "extend")

    async def __aenter__(self) -> AsyncDelivery:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._state == OPEN:
            verdict = self._origin.consumer._verdict(error)
            lost = await self._origin.consumer._executor.run(verdict([self]))
            if error is None or isinstance(error, Snooze | Reject):
                _lost(lost, "settle")
        return isinstance(error, Snooze | Reject)


class AsyncConsumer(_ConsumerBase[AsyncDelivery]):
    """Receives deliveries of one topic, for `async with`. As `Consumer`; tasks may share it."""

    _delivery = AsyncDelivery

    def __init__(
        self, executor: AsyncExecutor, handle: Handle, lease: Duration | None, mode: Mode
    ) -> None:
        super().__init__(handle, lease, mode)
        self._executor = executor

    async def receive(
        self, max_messages: int = 1, wait: Duration | None = 0
    ) -> list[AsyncDelivery]:
        """As `Consumer.receive`. Cancelled half-way, it hands back what it had leased."""
        return await self._executor.run(self._receive(max_messages, wait))

    async def ack(self, deliveries: Iterable[AsyncDelivery]) -> list[AsyncDelivery]:
        """As `Consumer.ack`."""
        return await self._executor.run(self._ack(deliveries))

    async def ack_receipts(self, receipts: Iterable[Receipt | str]) -> list[Receipt]:
        """As `Consumer.ack_receipts`."""
        return await self._executor.run(self._ack_receipts(receipts))

    async def nack(
        self,
        deliveries: Iterable[AsyncDelivery],
        *,
        delay: Duration | None = None,
        error: BaseException | str | None = None,
    ) -> list[AsyncDelivery]:
        """As `Consumer.nack`."""
        return await self._executor.run(self._nack(deliveries, delay, error))

    async def reject(
        self, deliveries: Iterable[AsyncDelivery], reason: BaseException | str
    ) -> list[AsyncDelivery]:
        """As `Consumer.reject`."""
        return await self._executor.run(self._reject(deliveries, reason))

    async def release(
        self, deliveries: Iterable[AsyncDelivery], *, delay: Duration = 0
    ) -> list[AsyncDelivery]:
        """As `Consumer.release`."""
        return await self._executor.run(self._release(deliveries, delay))

    async def extend(
        self, deliveries: Iterable[AsyncDelivery], lease: Duration | None = None
    ) -> list[AsyncDelivery]:
        """As `Consumer.extend`."""
        return await self._executor.run(self._extend(deliveries, lease))

    async def close(self) -> None:
        """As `Consumer.close`."""
        if not self._closed:
            try:
                await self._executor.run(self._close())
            finally:
                await self._executor.deafen(self._reception.listener)

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
