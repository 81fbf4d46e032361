"""Define RMQ's internal part of a delivery, and the protocols for the shared leases of a worker.

A worker has one shared lease for all its deliveries of a slot.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

from rmq.kernel.core import record
from rmq.kernel.core.groups import GROUP_MARK, group_in
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.score import moment, receipt_deadline_ms, receipt_retries_left
from rmq.kernel.core.steps import Event, Step, decode_steps, split_events
from rmq.kernel.delivery.claim import Claim

OPEN, SETTLED, LOST = 0, 1, 2


class Cancellation(threading.Event):
    """An event that is set when a program asks to cancel a delivery.

    Attributes:
        since: Time of the request by the monotonic clock, or infinity if there is no request.
    """

    since = float("inf")

    def set(self) -> None:
        """Record that a program has asked to cancel the delivery."""
        self.since = min(self.since, time.monotonic())
        super().set()


_making_cancellation = threading.Lock()


class BatchOrigin(NamedTuple):
    """The data that all deliveries of one batch have in common."""

    keys: SlotKeys
    newest: int  # acceptance number of the slot's newest message
    retries: int  # retries of a new message
    until: float  # earliest end of their leases, by the monotonic clock, unless renewed
    lease: SharedLease | None = None  # their shared lease; None: each delivery has its own


@dataclass(slots=True, eq=False)
class InnerDelivery:
    """RMQ's internal part of a delivery: its record, its lease, and whether it is settled.

    A program gets a `Delivery` or an `AsyncDelivery` that contains this object.

    Attributes:
        origin: Data that all deliveries of the batch have in common.
        raw_id: The 16 bytes of the message's id.
        score: Number in the receipt. Redis stores it as the score of the delivery.
        record: The stored message.
        fence: Delivery number.
        body: The decoded body. In a handler, it is converted to the annotated type.
        state: OPEN, SETTLED or LOST.
        unconfirmed: Name of the method whose call has no reply so far, for example "ack", or "".
        settling_calls: Number of running calls that settle this delivery.
        claim: Claim on the message's business key, or None.
        follow_ups: Messages that the ack stores, as a FollowUpList of
            `rmq.kernel.follow_ups.encode`, or empty.
        cancellation: Event that is set when the delivery is cancelled. None if it was not needed
            yet.
        started: Start of the handler by the monotonic clock, or 0 if it is unknown.
        result: Result that the ack stores, as `rmq.kernel.results.entry` encodes it, or empty.
        progress_at: Time of the next permitted report of progress, by the monotonic clock.
        steps: Steps of earlier attempts by name, and the cursor under the name ''. None if they
            were not read yet.
        steps_called: Names of the steps that this attempt has called.
        events: Events that the message has waited for, by key. The last event is the newest. None
            if there are no events.
        entry_bytes: Size of the steps and events, if the message has waited for an event.
    """

    origin: BatchOrigin
    raw_id: bytes
    score: float
    record: bytes
    fence: int
    body: Any
    state: int = OPEN
    unconfirmed: str = ""
    settling_calls: int = 0
    claim: Claim | None = None
    follow_ups: Any = ()
    cancellation: Cancellation | None = None
    started: float = 0.0
    result: bytes = b""
    progress_at: float = 0.0
    steps: dict[str, Step] | None = None
    steps_called: frozenset[str] = frozenset()
    events: dict[str, Event] | None = None
    entry_bytes: int = 0

    def add_steps(self, entries: Mapping[bytes, bytes]) -> None:
        """Store the steps and events of this message, if `entries` has them."""
        entry = entries.get(self.raw_id)
        if entry is not None:
            self.steps, self.events = split_events(decode_steps(entry))
            self.entry_bytes = len(entry)

    @property
    def is_cancelled(self) -> bool:
        """Whether a program has asked to cancel the delivery, as far as this process knows."""
        return self.cancellation is not None and self.cancellation.is_set()

    def cancelled(self) -> Cancellation:
        """Return the event that is set when a program asks to cancel the delivery.

        Any thread may call this method.
        """
        with _making_cancellation:
            if self.cancellation is None:
                self.cancellation = Cancellation()
            return self.cancellation

    @property
    def keeps_result(self) -> bool:
        """Whether RMQ keeps the result of the message."""
        return record.keep_of(self.record) > 0

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
        """The time at which the lease ends. `DeliveryData.deadline` says by which clock."""
        if self.origin.lease is None:
            return moment(receipt_deadline_ms(self.score))
        left_s = self.origin.lease.safe_until() - time.monotonic()
        return datetime.now(UTC) + timedelta(seconds=max(0.0, left_s))

    @property
    def due(self) -> datetime | None:
        """The due time of the message, or None if the message was due when it was sent."""
        due_ms = record.read(self.record).due_ms
        return moment(due_ms) if due_ms else None

    @property
    def type(self) -> str | None:
        """The message's type, or None if the message was sent without a type."""
        return record.type_of(self.record)

    @property
    def group(self) -> str | None:
        """The name of the message's group, or None if the message has no group."""
        return group_in(self.marks.get(GROUP_MARK))

    @property
    def marks(self) -> Mapping[str, str]:
        """The headers that RMQ has added."""
        return record.marks(record.headers_of(self.record))

    @property
    def lost(self) -> bool:
        """Whether the lease is gone, as far as this process can see."""
        lease = self.origin.lease
        return self.state == LOST or (self.state == OPEN and lease is not None and lease.is_lost())

    @property
    def claim_lost(self) -> bool:
        """Whether the last `extend` or `ack` found that the claim on the business key was gone."""
        return self.claim is not None and self.claim.lost

    def queue_position(self) -> int:
        """Return the message's priority, or its due time in epoch ms."""
        return record.queue_position(self.record)


class SharedLease(Protocol):
    """A lease that this process has for many deliveries of a slot.

    Attributes:
        number: Number of the lease in its slot.
        until: The lease is valid at least until this time, by the monotonic clock. 0 if the lease
            is lost.
    """

    number: int
    until: float

    def is_lost(self) -> bool:
        """Return whether the lease is gone, or has ended by this process's clock."""

    def safe_until(self) -> float:
        """Return the time until which the lease is surely valid, by the monotonic clock."""


class SharedLeases(Protocol):
    """The shared leases of a consumer, one lease for each slot.

    A shared lease is used instead of a lease for each delivery.
    """

    @property
    def leases(self) -> Mapping[int, SharedLease]:
        """The leases that are renewed, by slot.

        The next batch of a slot uses the lease of this slot.
        """

    def number(self, slot: int) -> int:
        """Return the number of the lease for the next batch of a slot, or 0 to open a new lease."""

    def received(self, slot: int, number: int, since: float, lease_ms: int) -> SharedLease:
        """Record the lease of a received batch, and return the lease.

        Args:
            slot: Index of the slot.
            number: Number of the lease.
            since: Start of the call that received the batch, by the monotonic clock.
            lease_ms: Duration of the lease, ms.
        """

    def add(self, deliveries: Iterable[InnerDelivery]) -> None:
        """Add deliveries. Their leases are renewed from now on."""

    def remove(self, deliveries: Iterable[InnerDelivery]) -> None:
        """Remove settled or lost deliveries."""

    def retire(self, slot: int) -> None:
        """Stop renewing the lease of a slot, because one of its deliveries cannot be settled."""
