"""Messages as callers see them: Outgoing, SendResult, Receipt, Message; the names of queues."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal, NamedTuple

from rmq.errors import InvalidReceipt, InvalidType, InvalidValue
from rmq.kernel.core import failure as failure_entries
from rmq.kernel.core.failure import Attempt, Failure
from rmq.kernel.core.ids import TEXT_SIZE, MessageId
from rmq.kernel.core.retry import RetryPolicy
from rmq.kernel.core.score import (
    HELD_MIN,
    TIMED_MIN,
    moment,
    receipt_deadline_ms,
    receipt_retries_left,
    shared_lease,
)
from rmq.kernel.core.validation import Duration, Moment, nearest

SendStatus = Literal["stored", "merged", "duplicate"]
Merge = Literal["first", "last", "collect"]


@dataclass(slots=True)
class Outgoing:
    """A message to send, for `send_many`.

    Args:
        body: a value that the topic's codec can write.
        priority: 17 to 1 048 575, larger first; None: the topic's default, or none for a timed
            message.
        delay: seconds or timedelta until it may be taken; 0: at once.
        at: when it may be taken: an aware datetime, or epoch ms. Not with `delay`. A time that has
            passed is due at once; one more than a year ago is refused as a mistake.
        merge_key: messages with one key that wait at the same time become one; needs `time_range`.
        time_range: how long a merging message waits for others, seconds or timedelta.
        merge: which body survives: "first", "last", or "collect" (all of them, as a list; one of
            256 KiB, or of max_body where that is less, is full, and the next body opens another).
            Every merge writes the whole list again, so the last ones of a full list cost Redis
            ten times as much as the first; a smaller max_body bounds that.
        extend: every merge starts `time_range` again, up to `max_wait`.
        max_wait: the longest a merging message waits from its first arrival; needed with `extend`.
        slot_basis: messages with one basis share a slot and its order; default: the merge key, or
            none.
        headers: at most 32 names and values, str, 4 KiB in all.
        expires: how long after it is due it may still be taken; None: the topic's setting.
        id: the id of an earlier attempt at this send; None: a new one. A copy is recognized while
            the message exists, and, if the id is from `new_id`, from the outbox or from a send with
            a `durability`, for the topic's `dedup_window` after it is settled.
        dedup_key: the sender's name for this message, 1 to 200 bytes of UTF-8; the id is derived
            from it. While a message of that key is stored, and for the topic's
            `dedup_window` after it is settled, another one is a "duplicate": nothing is stored, and
            the result has the id of the first. With a window of 0, only while it is stored. The
            key chooses the slot, unless slot_basis does, which must then be the same whenever the
            key is. Not with `id` or `merge_key`.
        retry: how long this message waits after a handler failed; it overrides all other policies.
        max_runtime: how long one run of a handler may take for this message.
        type: what kind of message it is, 1 to 128 of A-Z a-z 0-9 . _ - : /, by which a worker
            chooses the handler. Messages of two types do not merge. None: the default handler.
        group: the name of its group, 1 to 200 bytes of UTF-8 without control characters: see the
            topic's setting `groups`. All of a group is in the slot that its name chooses, so a
            slot_basis that is given too must be the same. Not with merge_key.
        share_key: the name by which it takes part in sharing, if not by its group: a tenant with
            many groups has one share. Needs `group`.
        weight: 1 to 64: how much more often than others of weight 1 its group or share key gets
            its turn; None: as the topic's setting says. Needs `group`.
        marks: headers that RMQ itself adds; their names begin with `rmq-`.
    """

    body: Any
    priority: int | None = None
    delay: Duration | None = None
    at: Moment | None = None
    merge_key: str | None = None
    time_range: Duration | None = None
    merge: Merge = "first"
    extend: bool = False
    max_wait: Duration | None = None
    slot_basis: str | bytes | None = None
    headers: Mapping[str, str] | None = None
    expires: Duration | None = None
    id: MessageId | str | bytes | None = None
    dedup_key: str | bytes | None = None
    retry: RetryPolicy | None = None
    max_runtime: Duration | None = None
    type: str | None = None
    group: str | None = None
    share_key: str | None = None
    weight: int | None = None
    marks: dict[str, str] | None = None


def is_plain(out: Outgoing) -> bool:
    """Whether a message is a body and perhaps a priority, as most are."""
    return (
        out.delay is None
        and out.at is None
        and out.slot_basis is None
        and out.headers is None
        and out.type is None
        and out.group is None
        and out.share_key is None
        and out.weight is None
        and out.marks is None
        and out.retry is None
        and out.max_runtime is None
        and out.id is None
        and out.dedup_key is None
        and out.expires is None
        and out.merge_key is None
        and out.time_range is None
        and out.max_wait is None
        and out.merge == "first"
        and not out.extend
    )


# Names that other queues give to options of a send.
_OF_OTHERS = {"countdown": "delay", "eta": "at", "ttl": "expires", "key": "slot_basis"}


def refuse_unknown(options: Mapping[str, object]) -> None:
    """Refuse a send with options that it does not have; the error names the one that fits."""
    name = next(iter(options))
    names = [*[each.name for each in fields(Outgoing)][1:-1], "durability", "timeout"]
    near = f"; it is {_OF_OTHERS[name]} here" if name in _OF_OTHERS else nearest(name, names)
    raise InvalidType(f"send: there is no option {name!r}{near}; known are {', '.join(names)}")


class SendResult(NamedTuple):
    """The result of a send.

    Attributes:
        id: the id of the sent message; keep it to send again, to cancel or to get the message.
        status: "stored", "merged" (into the waiting message `into`), or "duplicate" (nothing
            added).
        slot: the index of its slot.
        offset: the slot's acceptance number after this send; of a stored message, its own.
        into: the id of the waiting message that it merged into.
        durable: the level reached: "memory", "replicated" or "fsync".
    """

    id: MessageId
    status: SendStatus
    slot: int
    offset: int
    into: MessageId | None = None
    durable: str = "memory"

    @property
    def message_id(self) -> MessageId:
        """The id of the message that now carries the body: `into` where it merged, else `id`."""
        return self.into or self.id


@dataclass(frozen=True, slots=True)
class Receipt:
    """The name of one delivery of one message. `str()` and `parse` convert it to text and back."""

    id: MessageId
    score: float

    def __str__(self) -> str:
        return f"{self.id}:{self.score!r}"

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """Read a receipt from its text.

        Raises:
            InvalidReceipt: the text is not a receipt that RMQ made.
        """
        if not isinstance(text, str) or len(text) > 64 or ":" not in text:
            raise InvalidReceipt(
                f"receipt: {str(text)[:64]!r} is not a receipt; pass d.receipt unchanged"
            )
        try:
            name, number = text[:TEXT_SIZE], float(text[TEXT_SIZE + 1 :])
            receipt = cls(MessageId.parse(name, "receipt"), number)
        except ValueError as error:
            raise InvalidReceipt(
                f"receipt: {text!r} is not a receipt; pass d.receipt unchanged"
            ) from error
        if not math.isfinite(number) or number < TIMED_MIN or receipt.retries_left > 16:
            raise InvalidReceipt(f"receipt: {text!r} is not a receipt; pass d.receipt unchanged")
        return receipt

    @property
    def deadline(self) -> datetime | None:
        """The time at which the lease ends, by the server's clock; None for a worker's delivery.

        Such a delivery shares its lease with others: see `Delivery.deadline`.
        """
        return None if shared_lease(self.score) else moment(receipt_deadline_ms(self.score))

    @property
    def retries_left(self) -> int:
        """How many retries remain after this delivery."""
        return receipt_retries_left(self.score)


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it is stored in Redis, read by `get` or `peek`.

    Attributes:
        id: its id.
        queue: "store" (waiting), "prepare" (in flight) or "dead".
        slot: the index of its slot.
        offset: its acceptance number in the slot.
        body: decoded; the raw bytes where they cannot be decoded (see `unreadable`).
        priority: None for a timed message without one.
        due: when it may be taken; None for a message that was due when sent.
        expires: until when it may be taken, or None.
        merge_key: of a merging message, or None.
        headers: its headers.
        deliveries: how often it has been handed to a consumer.
        deadline: the end of its lease while in flight; None if a query holds it, or if the lease
            has ended that it shared.
        died: when, for a dead letter.
        failure: its last failure, or None.
        score: the sorted-set score, as `redis-cli` shows it.
        unreadable: the reason why the body is raw bytes, or ''.
        type: its type, or None.
        group: the name of its group, or None.
        share_key: the name by which its group takes part in sharing, or None.
        weight: the weight of its group that it was sent with, or None without a group.
        failure_entry: its failures as Redis has them; `attempts` reads it.
    """

    id: MessageId
    queue: QueueName
    slot: int
    offset: int
    body: Any
    priority: int | None
    due: datetime | None
    expires: datetime | None
    merge_key: str | None
    headers: Mapping[str, str]
    deliveries: int
    deadline: datetime | None
    died: datetime | None
    failure: Failure | None
    score: float
    unreadable: str = ""
    type: str | None = None
    group: str | None = None
    share_key: str | None = None
    weight: int | None = None
    failure_entry: bytes = field(default=b"", repr=False)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The attempts to handle it that failed, the newest first; read anew each time.

        They include those before a redrive. At most 51 are kept, and as many as 8 KiB hold with
        the errors of earlier ones: an oldest number above 1 says that there were more.
        """
        return failure_entries.attempts(self.failure_entry)

    @property
    def held(self) -> bool:
        """Whether it waits behind others of its group, or for its group to go on."""
        return self.queue == "store" and self.score < 0

    @property
    def held_by_query(self) -> bool:
        """Whether a query, such as Spark's, has it in flight; then the lease is the query's."""
        return self.queue == "prepare" and self.score >= HELD_MIN


QueueName = Literal["store", "prepare", "dead", "trash"]
QueueWord = Literal[
    "store", "prepare", "dead", "trash", "waiting", "in_flight", "in flight", "in-flight"
]

TRASH_KEEP_S = 86_400  # for which purged dead letters can be restored, by default

_NAMES: dict[str, QueueName] = {
    "store": "store",
    "waiting": "store",
    "prepare": "prepare",
    "in flight": "prepare",
    "dead": "dead",
    "trash": "trash",
}


def parse_queue(text: object, field: str = "queue") -> QueueName:
    """Return the queue that a text names; "in flight" may have - or _ for the space.

    Raises:
        InvalidValue: it names no queue.
    """
    if isinstance(text, str):
        name = _NAMES.get(text.lower().replace("-", " ").replace("_", " "))
        if name is not None:
            return name
    raise InvalidValue(
        f"{field}: {text!r} names no queue; "
        "give store (or waiting), prepare (or in-flight), dead, or trash"
    )
