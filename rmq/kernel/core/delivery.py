"""Deliveries: the data of one, and the exceptions by which a handler settles it.

The verbs that settle a delivery are in `rmq.kernel.consumer.consumer`. A worker has shared
leases; what flows and deliveries see of them is here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

from rmq.errors import InvalidType
from rmq.kernel.core import record
from rmq.kernel.core.claim import Claim
from rmq.kernel.core.groups import GROUP_MARK, group_in, share_in
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.message import Receipt
from rmq.kernel.core.score import moment, receipt_deadline_ms, receipt_retries_left
from rmq.kernel.core.validation import Duration

OPEN, SETTLED, LOST = 0, 1, 2


class Snooze(Exception):
    """Raised in a handler or `with delivery`: hand the message back for `delay`; costs no retry."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay = delay


class Reject(Exception):
    """Raised in a handler or `with delivery`: dead-letter the message, with the reason."""


class Retry(Exception):
    """Raised in a handler or `with delivery`: give the message back as failed, for `delay`.

    It costs a retry. None: the delay of the retry policy.
    """

    def __init__(self, delay: Duration | None = None) -> None:
        super().__init__() if delay is None else super().__init__(delay)
        self.delay = delay


class BatchOrigin(NamedTuple):
    """The data that the deliveries of one batch share."""

    keys: SlotKeys
    newest: int  # acceptance number of the slot's newest message
    retries: int  # of a fresh message
    until: float  # the end of their leases at the earliest, by the monotonic clock, unless renewed
    lease: SharedLease | None = None  # that they share; None: each has its own


class HeldDelivery:
    """A delivery as RMQ itself holds it: the record, the lease, and how far it is settled.

    A program sees it through a `Delivery` or an `AsyncDelivery`, which can be made at any time.

    Attributes:
        origin: of its batch.
        raw_id: the 16 bytes of the message's id.
        score: of its receipt.
        record: the stored message.
        fence: the delivery number.
        body: decoded; as the handler gets it, once it was converted.
        state: OPEN, SETTLED or LOST.
        unconfirmed: the verb that was sent and whose reply was not read.
        settling_calls: Number of running calls that settle it.
        claim: on its business key.
    """

    __slots__ = (
        "body", "claim", "fence", "origin", "raw_id", "record", "score", "settling_calls", "state",
        "unconfirmed",
    )  # fmt: skip

    def __init__(
        self, origin: BatchOrigin, raw_id: bytes, score: float, entry: bytes, fence: int, body: Any
    ) -> None:
        self.origin = origin
        self.raw_id = raw_id
        self.score = score
        self.record = entry
        self.state = OPEN
        self.unconfirmed = ""
        self.settling_calls = 0
        self.claim: Claim | None = None
        self.fence = fence
        self.body = body

    @property
    def id(self) -> MessageId:
        """The message's id."""
        return MessageId(self.raw_id)

    @property
    def retries_left(self) -> int:
        """How many retries remain after this delivery."""
        return receipt_retries_left(self.score)

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1 for the first delivery, 2 for the first retry."""
        return max(1, self.origin.retries - self.retries_left + 1)

    @property
    def deadline(self) -> datetime:
        """The time at which the lease ends; as `DeliveryData.deadline`."""
        if self.origin.lease is None:
            return moment(receipt_deadline_ms(self.score))
        left_s = self.origin.lease.safe_until() - time.monotonic()
        return datetime.now(UTC) + timedelta(seconds=max(0.0, left_s))

    @property
    def due(self) -> datetime | None:
        """The time at which a timed message was due; None for a message that was due when sent."""
        due_ms = record.read(self.record).due_ms
        return moment(due_ms) if due_ms else None

    @property
    def type(self) -> str | None:
        """The message's type; None: it was sent without one."""
        return record.type_of(self.record)

    @property
    def group(self) -> str | None:
        """The name of the message's group; None: it was sent without one."""
        return group_in(self.marks.get(GROUP_MARK))

    @property
    def marks(self) -> Mapping[str, str]:
        """The headers that RMQ itself added."""
        return record.marks(record.headers_of(self.record))

    @property
    def lost(self) -> bool:
        """Whether its lease is gone, as far as is known."""
        lease = self.origin.lease
        return self.state == LOST or (self.state == OPEN and lease is not None and lease.is_lost())

    @property
    def claim_lost(self) -> bool:
        """Whether its claim was gone when it was extended or acked."""
        return self.claim is not None and self.claim.lost

    def queue_position(self) -> int:
        """Return its place among waiting messages: the priority, or the due time in epoch ms."""
        return record.place_of(self.record)


class DeliveryData:
    """The data of a delivery. All but the body is read from the record when it is asked for."""

    __slots__ = ("_held", "_settle_with")

    def __init__(self, held: HeldDelivery, settle_with: Any) -> None:
        self._held = held
        self._settle_with = settle_with

    def __eq__(self, other: object) -> bool:
        """Whether it is the same delivery: there may be several objects of one."""
        return isinstance(other, DeliveryData) and other._held is self._held

    def __hash__(self) -> int:
        return hash(self._held)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} attempt {self.attempt}>"

    @property
    def body(self) -> Any:
        """Its body; in a handler, as the annotation asks for it."""
        return self._held.body

    @body.setter
    def body(self, body: Any) -> None:
        self._held.body = body

    @property
    def fence(self) -> int:
        """Its delivery number: each delivery of a slot has a larger one than those before."""
        return self._held.fence

    @property
    def id(self) -> MessageId:
        """The message's id: the same at each delivery, and the one that `send` returned."""
        return self._held.id

    @property
    def topic(self) -> str:
        """The name of the topic from which the message was received."""
        return self._held.origin.keys.topic

    @property
    def slot(self) -> int:
        """The index of its slot, from 0; messages of one `slot_basis` have the same one."""
        return self._held.origin.keys.index

    @property
    def receipt(self) -> Receipt:
        """The receipt of this delivery; `str()` gives its text form."""
        return Receipt(self._held.id, self._held.score)

    @property
    def retries_left(self) -> int:
        """How many retries remain after this delivery."""
        return self._held.retries_left

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1 for the first delivery, 2 for the first retry."""
        return self._held.attempt

    @property
    def deadline(self) -> datetime:
        """The time at which the lease ends, by the server's clock.

        In a worker, which renews leases: until when it surely holds, by the clock of this machine.
        """
        return self._held.deadline

    @property
    def priority(self) -> int | None:
        """Its priority; None for a timed message without one."""
        return int.from_bytes(self._held.record[1:4], "big") or None

    @property
    def due(self) -> datetime | None:
        """The time at which a timed message was due; None for a message that was due when sent."""
        return self._held.due

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of its producer, read-only; those of RMQ itself are in `marks`."""
        return record.user_headers(record.headers_of(self._held.record))

    @property
    def type(self) -> str | None:
        """Its type, by which a worker chooses the handler; None: it was sent without one."""
        return self._held.type

    @property
    def group(self) -> str | None:
        """The name of its group; None: it was sent without one."""
        return self._held.group

    @property
    def share_key(self) -> str | None:
        """The name by which its group shares; None: by its own."""
        return share_in(self.marks.get(GROUP_MARK))

    @property
    def marks(self) -> Mapping[str, str]:
        """The headers that RMQ itself added: their names begin with `rmq-`."""
        return self._held.marks

    @property
    def schedule_time(self) -> datetime | None:
        """The time of a schedule for which it was sent; None where no schedule sent it."""
        text = self.marks.get(record.SCHEDULE_TIME_MARK)
        return moment(int(text)) if text else None

    @property
    def merge_key(self) -> str | None:
        """The key by which it merged while it waited; None: it was sent without one."""
        return record.read(self._held.record).merge_key or None

    @property
    def offset(self) -> int:
        """Its acceptance number in the slot, as `send` returned it."""
        low = record.read(self._held.record).offset_low
        return record.offset_of(low, self._held.origin.newest)

    @property
    def is_settled(self) -> bool:
        """Whether this delivery has ended: acked, given back, or lost."""
        return self._held.state != OPEN

    @property
    def lost(self) -> bool:
        """Whether its lease is gone: another consumer may have the message; stop working on it.

        In a worker, which renews leases, this is always up to date; elsewhere it is known after
        a verb failed.
        """
        return self._held.lost

    @property
    def claim_lost(self) -> bool:
        """Whether the claim on its business key was gone when it was extended or acked."""
        return self._held.claim_lost


def held_of(delivery: DeliveryData) -> HeldDelivery:
    """Return the delivery that a program sees through this one."""
    return delivery._held


def settle_with_of(delivery: DeliveryData) -> Any:
    """Return what settles a delivery: a `SettleWith` of rmq.kernel.consumer.one_delivery."""
    return delivery._settle_with


def held_all(deliveries: Iterable[DeliveryData]) -> list[HeldDelivery]:
    """Return those that a program sees through these.

    Raises:
        InvalidType: one is no delivery.
    """
    held = []
    for delivery in deliveries:
        if not isinstance(delivery, DeliveryData):
            raise InvalidType(f"deliveries: {type(delivery).__name__}; give what receive returned")
        held.append(held_of(delivery))
    return held


def count_settling(deliveries: Iterable[HeldDelivery], change: int) -> None:
    """Count a call that settles these deliveries: 1 when it begins, -1 when it failed."""
    for delivery in deliveries:
        delivery.settling_calls += change


class SharedLease(Protocol):
    """The lease of all deliveries that this process took of a slot under one number."""

    def is_lost(self) -> bool:
        """Return whether it is gone, or has ended as far as this process knows."""

    def safe_until(self) -> float:
        """Return until when it surely holds, by the monotonic clock."""


class SharedLeases(Protocol):
    """The shared leases of a consumer, by slot."""

    def number(self, slot: int) -> int:
        """Return the number of the lease to take under; 0: open one."""

    def taken(self, slot: int, number: int, since: float, lease_ms: int) -> SharedLease:
        """Note the lease under which a batch was taken by a call that began at `since`."""

    def handed_over(self, slot: int, number: int) -> SharedLease:
        """Return the lease of a batch that was handed over; it may be one that is used no more."""

    def hold(self, deliveries: Iterable[HeldDelivery]) -> None:
        """Count deliveries that are handed over; their leases are renewed from now on."""

    def forget(self, deliveries: Iterable[HeldDelivery]) -> None:
        """Count deliveries no longer: they are settled, or lost."""

    def retire(self, slot: int) -> None:
        """Renew the lease of a slot no more: a delivery of it cannot be settled."""
