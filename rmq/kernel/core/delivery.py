"""Deliveries: their data, and the exceptions by which a handler settles them.

The verbs that settle a delivery are in `rmq.kernel.consumer.consumer`. The protocols for a worker's
shared leases are here.
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
    """Raise in a handler or `with delivery` to try again after `delay`, at no cost of a retry."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay = delay


class Reject(Exception):
    """Raise in a handler or `with delivery` to make the message a dead letter, with the reason."""


class Retry(Exception):
    """Raise in a handler or `with delivery` to fail the message and retry it after `delay`.

    It costs a retry. None: the delay of the retry policy.
    """

    def __init__(self, delay: Duration | None = None) -> None:
        super().__init__() if delay is None else super().__init__(delay)
        self.delay = delay


class BatchOrigin(NamedTuple):
    """The data that the deliveries of one batch share."""

    keys: SlotKeys
    newest: int  # acceptance number of the slot's newest message
    retries: int  # retries of a new message
    until: float  # earliest end of their leases, by the monotonic clock, unless renewed
    lease: SharedLease | None = None  # their shared lease; None: each delivery has its own


class HeldDelivery:
    """RMQ's own view of a delivery: its record, its lease, and whether it is settled.

    A program sees it through a `Delivery` or an `AsyncDelivery`, which can be made at any time.

    Attributes:
        origin: Data that is common to the batch.
        raw_id: The 16 bytes of the message's id.
        score: Score of the receipt.
        record: The stored message.
        fence: Delivery number.
        body: The decoded body; in a handler, after its conversion.
        state: OPEN, SETTLED or LOST.
        unconfirmed: Verb that was sent but whose reply was not read, or "".
        settling_calls: Number of running calls that settle it.
        claim: Claim on its business key, or None.
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
        """Number of retries that remain after this delivery."""
        return receipt_retries_left(self.score)

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1 for the first delivery, 2 for the first retry."""
        return max(1, self.origin.retries - self.retries_left + 1)

    @property
    def deadline(self) -> datetime:
        """The time at which the lease ends; see `DeliveryData.deadline`."""
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
        """The message's type; None if it was sent without a type."""
        return record.type_of(self.record)

    @property
    def group(self) -> str | None:
        """The name of the message's group; None if it was sent without a group."""
        return group_in(self.marks.get(GROUP_MARK))

    @property
    def marks(self) -> Mapping[str, str]:
        """The headers that RMQ itself added."""
        return record.marks(record.headers_of(self.record))

    @property
    def lost(self) -> bool:
        """Whether its lease is gone, as far as this process can see."""
        lease = self.origin.lease
        return self.state == LOST or (self.state == OPEN and lease is not None and lease.is_lost())

    @property
    def claim_lost(self) -> bool:
        """Whether its claim was gone at the last extend or ack."""
        return self.claim is not None and self.claim.lost

    def queue_position(self) -> int:
        """Return its position among waiting messages: the priority, or the due time in epoch ms."""
        return record.place_of(self.record)


class DeliveryData:
    """The data of a delivery; all but the body is decoded from the record at each access."""

    __slots__ = ("_held", "_settle_with")

    def __init__(self, held: HeldDelivery, settle_with: Any) -> None:
        self._held = held
        self._settle_with = settle_with

    def __eq__(self, other: object) -> bool:
        """Return whether both objects are of the same delivery."""
        return isinstance(other, DeliveryData) and other._held is self._held

    def __hash__(self) -> int:
        return hash(self._held)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} attempt {self.attempt}>"

    @property
    def body(self) -> Any:
        """The message's body; in a handler, converted to the annotated type."""
        return self._held.body

    @body.setter
    def body(self, body: Any) -> None:
        self._held.body = body

    @property
    def fence(self) -> int:
        """The delivery number; it grows with every delivery of a slot."""
        return self._held.fence

    @property
    def id(self) -> MessageId:
        """The message's id, as `send` returned it; the same in each delivery."""
        return self._held.id

    @property
    def topic(self) -> str:
        """The name of the topic from which the message was received."""
        return self._held.origin.keys.topic

    @property
    def slot(self) -> int:
        """The index of the message's slot, from 0; the same for messages with one `slot_basis`."""
        return self._held.origin.keys.index

    @property
    def receipt(self) -> Receipt:
        """The receipt of this delivery; `str()` gives its text form."""
        return Receipt(self._held.id, self._held.score)

    @property
    def retries_left(self) -> int:
        """Number of retries that remain after this delivery."""
        return self._held.retries_left

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1 for the first delivery, 2 for the first retry."""
        return self._held.attempt

    @property
    def deadline(self) -> datetime:
        """The time at which the lease ends, by the server's clock.

        A worker renews leases. There it is the time until which the lease is surely valid, by
        the clock of this machine.
        """
        return self._held.deadline

    @property
    def priority(self) -> int | None:
        """The message's priority; None for a timed message without a priority."""
        return int.from_bytes(self._held.record[1:4], "big") or None

    @property
    def due(self) -> datetime | None:
        """The time at which a timed message was due; None for a message that was due when sent."""
        return self._held.due

    @property
    def headers(self) -> Mapping[str, str]:
        """The sender's headers, read-only; RMQ's own headers are in `marks`."""
        return record.user_headers(record.headers_of(self._held.record))

    @property
    def type(self) -> str | None:
        """The message type, which selects the handler; None if it was sent without a type."""
        return self._held.type

    @property
    def group(self) -> str | None:
        """The name of the message's group; None if it was sent without a group."""
        return self._held.group

    @property
    def share_key(self) -> str | None:
        """The tenant whose turns the group uses; None: the group's own turns."""
        return share_in(self.marks.get(GROUP_MARK))

    @property
    def marks(self) -> Mapping[str, str]:
        """The headers that RMQ itself added; their names begin with `rmq-`."""
        return self._held.marks

    @property
    def schedule_time(self) -> datetime | None:
        """The time for which a schedule sent this message; None if no schedule sent it."""
        text = self.marks.get(record.SCHEDULE_TIME_MARK)
        return moment(int(text)) if text else None

    @property
    def merge_key(self) -> str | None:
        """The key by which the message merged while it waited; None if it had no key."""
        return record.read(self._held.record).merge_key or None

    @property
    def offset(self) -> int:
        """The message's acceptance number in its slot, as `send` returned it."""
        low = record.read(self._held.record).offset_low
        return record.offset_of(low, self._held.origin.newest)

    @property
    def is_settled(self) -> bool:
        """Whether this delivery has ended: settled, given back, or lost."""
        return self._held.state != OPEN

    @property
    def lost(self) -> bool:
        """Whether the lease is gone: another consumer may have the message, so stop the work.

        In a worker, which renews leases, this is always current. Elsewhere it changes only after
        a verb failed.
        """
        return self._held.lost

    @property
    def claim_lost(self) -> bool:
        """Whether the claim on the business key was gone at the last extend or ack."""
        return self._held.claim_lost


def held_of(delivery: DeliveryData) -> HeldDelivery:
    """Return RMQ's own view of a delivery."""
    return delivery._held


def settle_with_of(delivery: DeliveryData) -> Any:
    """Return the `rmq.kernel.consumer.one_delivery.SettleWith` that settles a delivery."""
    return delivery._settle_with


def held_all(deliveries: Iterable[DeliveryData]) -> list[HeldDelivery]:
    """Return RMQ's own view of each delivery.

    Raises:
        InvalidType: An item is not a delivery.
    """
    held = []
    for delivery in deliveries:
        if not isinstance(delivery, DeliveryData):
            raise InvalidType(f"deliveries: {type(delivery).__name__}; give what receive returned")
        held.append(held_of(delivery))
    return held


def count_settling(deliveries: Iterable[HeldDelivery], change: int) -> None:
    """Count a call that settles these deliveries: 1 when it begins, -1 if it failed."""
    for delivery in deliveries:
        delivery.settling_calls += change


class SharedLease(Protocol):
    """The lease of all deliveries that this process took from a slot under one number."""

    def is_lost(self) -> bool:
        """Return whether the lease is gone, or has ended as far as this process can see."""

    def safe_until(self) -> float:
        """Return the time until which the lease is surely valid, by the monotonic clock."""


class SharedLeases(Protocol):
    """The shared leases of a consumer, by slot."""

    def number(self, slot: int) -> int:
        """Return the number of the lease for the next take; 0: open a new lease."""

    def taken(self, slot: int, number: int, since: float, lease_ms: int) -> SharedLease:
        """Register the lease of a batch that was taken by a call that began at `since`."""

    def handed_over(self, slot: int, number: int) -> SharedLease:
        """Return the lease of a handed-over batch, even if the lease is no longer used."""

    def hold(self, deliveries: Iterable[HeldDelivery]) -> None:
        """Count delivered messages in; from now on their leases are renewed."""

    def forget(self, deliveries: Iterable[HeldDelivery]) -> None:
        """Count settled or lost deliveries out."""

    def retire(self, slot: int) -> None:
        """Stop renewing the lease of a slot whose delivery cannot be settled."""
