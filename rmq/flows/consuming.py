"""What a consumer says, as conversations for either executor: receive, settle, hand back.

Here a reply becomes deliveries, and a delivery's state follows what became of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Literal, TypeVar

from rmq import codec, commands, failure, record
from rmq.claim import UNSURE
from rmq.delivery import LOST, OPEN, SETTLED, DeliveryData, Origin, Reject, Retry, Snooze
from rmq.errors import AlreadySettled, DecodeError, InvalidReceipt, InvalidType, InvalidValue
from rmq.flows import Flow, claiming, opening, operating, receiving, settling
from rmq.flows.receiving import Reception
from rmq.flows.settling import Lease, Leases
from rmq.handle import Handle
from rmq.keys import SlotKeys
from rmq.message import Receipt
from rmq.replies import Batch
from rmq.score import moved_deadline
from rmq.settings import LEASE_MAX_MS, LEASE_MIN_MS
from rmq.units import TEN_YEARS_MS, Duration, milliseconds

Mode = Literal["at_least_once", "at_most_once"]
D = TypeVar("D", bound=DeliveryData)
TIDY_FROM = 256  # unsettled deliveries, before a consumer looks for those that lapsed
LAPSED_S = 60.0  # so long after its lease nothing can be handed back any more

# First byte of a record whose body begins at byte 9 -> how to read the body.
_PLAIN = {number << 5: one.decode for number, one in codec.BY_NUMBER.items()}


def _lease(value: Duration | None) -> int | None:
    return None if value is None else milliseconds(value, "lease", LEASE_MIN_MS, LEASE_MAX_MS)


class ConsumerFlows(Generic[D]):
    """The conversations of a consumer, for either executor to run."""

    _delivery: type[D]

    def __init__(
        self, handle: Handle, lease: Duration | None, mode: Mode, ordered: bool = False
    ) -> None:
        if mode not in ("at_least_once", "at_most_once"):
            raise InvalidValue(f"mode: {mode!r}; give 'at_least_once' or 'at_most_once'")
        if not isinstance(ordered, bool):
            raise InvalidType(f"ordered: {type(ordered).__name__}; give True or False")
        if ordered and mode == "at_most_once":
            raise InvalidValue(
                "ordered: an at_most_once delivery is settled when it is handed over, so nothing "
                "tells when the next one may go. Use mode='at_least_once'"
            )
        self._handle = handle
        self._pops = mode == "at_most_once"
        self._reception = Reception(handle, _lease(lease), self._pops, ordered)
        self._open: dict[bytes, D] = {}  # by message id: to be handed back at the end
        self._tidy_at = TIDY_FROM
        self._closed = False
        self._receiving = threading.Lock()

    def _receive(self, max_messages: int, wait: Duration | None) -> Flow[list[D]]:
        if self._closed:
            raise InvalidValue("consumer: it is closed; make another with topic.consumer()")
        if not self._receiving.acquire(blocking=False):
            raise InvalidValue(
                "consumer: receive is running already, in another thread or task; "
                "give each its own topic.consumer()"
            )
        try:
            found: list[D] = []
            # A batch of undecodable messages alone is not an answer.
            while not found and not self._reception.interrupted:
                batches = yield from receiving.receive(self._reception, max_messages, wait)
                if not batches:
                    break
                for keys, batch in batches:
                    yield from self._open_batch(keys, batch, found)
        finally:
            self._receiving.release()
        if found and not self._pops:
            self._keep(found)
        return found

    def _keep(self, deliveries: Iterable[D]) -> None:
        """Remember deliveries until they are settled; those that lapsed unsettled are forgotten."""
        self._open.update({one._id: one for one in deliveries})
        if len(self._open) > self._tidy_at:
            long_ago = time.monotonic() - LAPSED_S
            for one in list(self._open.values()):
                if one._row < 0 and one._origin.until < long_ago:  # a worker renews what has a row
                    self._forget(one)
            self._tidy_at = 2 * len(self._open) + TIDY_FROM

    def _forget(self, one: D) -> None:
        """Let go of a delivery, so that its body can be freed."""
        kept = self._open.pop(one._id, None)
        if kept is not None and kept is not one:
            self._open.setdefault(one._id, kept)  # the same message, delivered again since

    def _open_batch(self, keys: SlotKeys, batch: Batch, found: list[D]) -> Flow[None]:
        """Make deliveries of a batch; what cannot be decoded goes to the DeadQueue instead."""
        unreadable = self._read(keys, batch, found)
        if self._pops:
            for lease, told, entry in unreadable:
                yield commands.bury(keys, lease.id, entry, told)
        elif unreadable:
            leases = Leases.of([lease for lease, _, _ in unreadable])
            told_all = [told for _, told, _ in unreadable]
            yield from settling.reject(self._handle, leases, told_all, "u")

    def _face(self) -> object:
        """What the verbs of a delivery are called on."""
        return self

    def _read(
        self, keys: SlotKeys, batch: Batch, found: list[D]
    ) -> list[tuple[Lease, bytes, bytes]]:
        """Make deliveries of a batch; what cannot be decoded is returned with the reason."""
        unreadable = []
        retries, lefts, ids = self._handle.settings.max_retries, batch.lefts, batch.ids
        base, fence, left = batch.deadline_s * 1000, batch.first_delivery - 1, retries
        until = self._reception.visited + (self._reception.lease_ms or 0) / 1000
        origin = Origin(self._face(), keys, batch.newest, retries, until)
        make, keep = self._delivery, found.append
        for position, entry in enumerate(batch.records):
            fence += 1
            if not entry:
                continue  # a replayed delivery that is no longer ours
            if lefts:
                left = lefts[position]
            score = base + left + (fence & 2047) / 2048  # score.receipt_score, in the hot loop
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
        lost = []
        for one, letter in zip(deliveries, letters, strict=True):
            one._state = LOST if letter == "0" else SETTLED
            if letter == "0":
                lost.append(one)
            self._forget(one)
        return lost

    def _ack(self, deliveries: Iterable[D]) -> Flow[list[D]]:
        mine, leases = self._leases(deliveries)
        if self._pops:
            return self._settled(mine, "1" * len(mine))
        marks = [
            record.number_of(one._entry) if one._entry[0] & record.HEADERS else b"" for one in mine
        ]
        if any(marks):
            leases = leases._replace(marks=marks)
        letters = yield from settling.ack(self._handle, leases, claiming.finish(self._handle, mine))
        return self._settled(mine, letters)

    def _nack(
        self, deliveries: Iterable[D], delay: Duration | None, error: BaseException | str | None
    ) -> Flow[list[D]]:
        wait_ms = None if delay is None else milliseconds(delay, "delay", zero=True)
        mine, leases = self._leases(deliveries)
        self._needs_leases()
        letters = yield from settling.nack(
            self._handle, leases, [failure.tell(error)] * len(mine), wait_ms,
            claiming.unclaim(self._handle, mine),
        )  # fmt: skip
        return self._settled(mine, letters)

    def _reject(
        self, deliveries: Iterable[D], reason: BaseException | str, kind: str = "r"
    ) -> Flow[list[D]]:
        mine, leases = self._leases(deliveries)
        self._needs_leases()
        letters = yield from settling.reject(
            self._handle, leases, [failure.tell(reason)] * len(mine), kind,
            claiming.unclaim(self._handle, mine),
        )  # fmt: skip
        return self._settled(mine, letters)

    def _release(self, deliveries: Iterable[D], delay: Duration) -> Flow[list[D]]:
        wait_ms = milliseconds(delay, "delay", high_ms=TEN_YEARS_MS, zero=True)
        mine, leases = self._leases(deliveries)
        self._needs_leases()
        letters = yield from settling.release(
            self._handle, leases, [d._place() for d in mine], wait_ms,
            claiming.unclaim(self._handle, mine),
        )  # fmt: skip
        return self._settled(mine, letters)

    def _extend(self, deliveries: Iterable[D], lease: Duration | None) -> Flow[list[D]]:
        mine, leases = self._leases(deliveries)
        self._needs_leases()
        lease_ms = _lease(lease) or self._reception.lease_ms or self._handle.settings.lease_ms
        beside = claiming.renew(self._handle, claiming.held(mine), lease_ms)
        until = time.monotonic() + lease_ms / 1000
        deadlines = yield from settling.extend(self._handle, leases, lease_ms, beside)
        lost = []
        for one, deadline in zip(mine, deadlines, strict=True):
            if deadline is None:
                one._state = LOST
                lost.append(one)
                self._forget(one)
            else:
                one._score = moved_deadline(one._score, deadline)
                one._origin = one._origin._replace(until=until)
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
        for receipt, letter in zip(read, letters, strict=True):
            delivery = self._open.get(receipt.id)
            if delivery is not None and delivery._score == receipt.score:
                self._settled([delivery], letter)
        return [one for one, letter in zip(read, letters, strict=True) if letter == "0"]

    def _needs_leases(self) -> None:
        if self._pops:
            raise InvalidValue(
                "mode: an at_most_once delivery is settled when it is handed over; there is no "
                "lease to ack, give back or extend. Use mode='at_least_once'"
            )

    def _claim(self, deliveries: Sequence[D]) -> Flow[None]:
        """Claim the keys of deliveries whose claims are made, for as long as their leases."""
        self._needs_leases()
        claims = [one._claim for one in deliveries if one._claim and one._claim.state == UNSURE]
        lease_ms = self._reception.lease_ms or self._handle.settings.lease_ms
        if claims:
            yield from claiming.claim(self._handle, claims, lease_ms)

    def _close(self) -> Flow[None]:
        """Hand back what nobody has settled, at once and without costing a retry."""
        self._closed = True
        left = [one for one in list(self._open.values()) if one._state == OPEN]
        self._open = {}
        if left:
            yield from self._release(left, 0)

    def _verdict(self, error: BaseException | None) -> Callable[[list[D]], Flow[list[D]]]:
        """What leaving `with delivery` means."""
        if error is None or self._pops:
            return self._ack
        if isinstance(error, Snooze):
            delay = error.delay
            return lambda mine: self._release(mine, delay)
        if isinstance(error, Retry):
            wait = error.delay
            return lambda mine: self._nack(mine, wait, error.__cause__ or "asked for a retry")
        if isinstance(error, Reject):
            reason = failure.text_of(error) or "rejected"
            return lambda mine: self._reject(mine, reason)
        if isinstance(error, Exception):
            return lambda mine: self._nack(mine, None, error)
        return lambda mine: self._release(mine, 0)  # Ctrl-C is not the message's fault
