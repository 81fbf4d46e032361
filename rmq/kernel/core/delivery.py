"""Deliveries: the data of one, and the exceptions by which a handler settles it.

The verbs that settle a delivery are in `rmq.kernel.consumer.consumer`. A worker has shared
leases; what flows and deliveries see of them is here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

from rmq.kernel.core import record
from rmq.kernel.core.claim import Claim
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.message import Receipt
from rmq.kernel.core.record import Record
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

    consumer: Any  # the Consumer, AsyncConsumer or worker's consumer that settles them
    keys: SlotKeys
    newest: int  # acceptance number of the slot's newest message
    retries: int  # of a fresh message
    until: float  # the end of their leases at the earliest, by the monotonic clock, unless renewed
    lease: SharedLease | None = None  # that they share; None: each has its own


class DeliveryData:
    """The data of a delivery. All but the body is read from the record when it is asked for."""

    __slots__ = (
        "_claim",
        "_id",
        "_origin",
        "_record",
        "_score",
        "_state",
        "_unconfirmed",
        "body",
        "fence",
    )  # fmt: skip

    def __init__(
        self, origin: BatchOrigin, id: bytes, score: float, entry: bytes, fence: int, body: Any
    ) -> None:
        self._origin = origin
        self._id = id
        self._score = score
        self._record = entry
        self._state = OPEN
        self._unconfirmed = ""  # the verb that was sent and whose reply was not read
        self._claim: Claim | None = None  # on its business key
        self.fence = fence
        self.body = body

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} attempt {self.attempt}>"

    def _read(self) -> Record:
        return record.read(self._record)

    @property
    def id(self) -> MessageId:
        """The message's id: the same at each delivery, and the one that `send` returned."""
        return MessageId(self._id)

    @property
    def topic(self) -> str:
        """The name of the topic from which the message was received."""
        return self._origin.keys.topic

    @property
    def slot(self) -> int:
        """The index of its slot, from 0; messages of one `slot_basis` have the same one."""
        return self._origin.keys.index

    @property
    def receipt(self) -> Receipt:
        """The receipt of this delivery; `str()` gives its text form."""
        return Receipt(MessageId(self._id), self._score)

    @property
    def retries_left(self) -> int:
        """How many retries remain after this delivery."""
        return receipt_retries_left(self._score)

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1 for the first delivery, 2 for the first retry."""
        return self._origin.retries - self.retries_left + 1

    @property
    def deadline(self) -> datetime:
        """The time at which the lease ends, by the server's clock.

        In a worker, which renews leases: until when it surely holds, by the clock of this machine.
        """
        if self._origin.lease is None:
            return moment(receipt_deadline_ms(self._score))
        left_s = self._origin.lease.safe_until() - time.monotonic()
        return datetime.now(UTC) + timedelta(seconds=max(0.0, left_s))

    @property
    def priority(self) -> int | None:
        """Its priority; None for a timed message without one."""
        return int.from_bytes(self._record[1:4], "big") or None

    @property
    def due(self) -> datetime | None:
        """The time at which a timed message was due; None for a message that was due when sent."""
        due_ms = self._read().due_ms
        return moment(due_ms) if due_ms else None

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of its producer, read-only; those of RMQ itself are in `marks`."""
        return record.user_headers(record.headers_of(self._record))

    @property
    def type(self) -> str | None:
        """Its type, by which a worker chooses the handler; None: it was sent without one."""
        return record.type_of(self._record)

    @property
    def marks(self) -> Mapping[str, str]:
        """The headers that RMQ itself added: their names begin with `rmq-`."""
        return record.marks(record.headers_of(self._record))

    @property
    def schedule_time(self) -> datetime | None:
        """The time of a schedule for which it was sent; None where no schedule sent it."""
        text = self.marks.get(record.SCHEDULE_TIME_MARK)
        return moment(int(text)) if text else None

    @property
    def merge_key(self) -> str | None:
        """The key by which it merged while it waited; None: it was sent without one."""
        return self._read().merge_key or None

    @property
    def offset(self) -> int:
        """Its acceptance number in the slot, as `send` returned it."""
        return record.offset_of(self._read().offset_low, self._origin.newest)

    @property
    def is_settled(self) -> bool:
        """Whether this delivery has ended: acked, given back, or lost."""
        return self._state != OPEN

    @property
    def lost(self) -> bool:
        """Whether its lease is gone: another consumer may have the message; stop working on it.

        In a worker, which renews leases, this is always up to date; elsewhere it is known after
        a verb failed.
        """
        return self._state == LOST or (
            self._state == OPEN and self._origin.lease is not None and self._origin.lease.is_lost()
        )

    @property
    def claim_lost(self) -> bool:
        """Whether the claim on its business key was gone when it was extended or acked."""
        return self._claim is not None and self._claim.lost

    def _queue_position(self) -> int:
        """Return its place among waiting messages: the priority, or the due time in epoch ms."""
        return int.from_bytes(self._record[1:4], "big") or int.from_bytes(self._record[8:14], "big")


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

    def hold(self, deliveries: Iterable[Any]) -> None:
        """Count deliveries that are handed over; their leases are renewed from now on."""

    def forget(self, deliveries: Iterable[Any]) -> None:
        """Count deliveries no longer: they are settled, or lost."""

    def retire(self, slot: int) -> None:
        """Renew the lease of a slot no more: a delivery of it cannot be settled."""
