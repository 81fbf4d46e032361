"""Define messages as callers see them: Outgoing, SendResult, Receipt and Message."""

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
from rmq.kernel.core.steps import Step, decode_steps
from rmq.kernel.core.validation import Duration, Moment, nearest

SendStatus = Literal["stored", "merged", "duplicate"]
Merge = Literal["first", "last", "collect"]


@dataclass(slots=True)
class Outgoing:
    """A message to send, for `send_many`.

    Args:
        body: Any value that the topic's codec can write.
        priority: 17 to 1 048 575. A larger priority is delivered first. Default: the topic's
            `default_priority`. A message with `delay` or `at` has no priority by default.
        delay: Time until the message is due, seconds or timedelta. With 0, the message is due
            immediately.
        at: Due time: an aware datetime, or epoch ms. You cannot combine it with `delay`. A message
            with a past time is due immediately. A time more than a year ago is refused as a
            mistake.
        merge_key: Waiting messages with the same key become one message. If you give a key, also
            give a `time_range`.
        time_range: How long a message with a merge key waits for other messages, seconds or
            timedelta.
        merge: Which body RMQ keeps: "first", "last", or "collect" (a list of all bodies). A list
            may have 256 KiB, or `max_body` if this is less. If a body does not fit, RMQ starts a
            new list with it. Every merge writes the whole list again. So adding a body to a full
            list costs Redis ten times as much as starting a list. A smaller `max_body` limits this
            cost.
        extend: Whether every merge restarts the wait of `time_range`. The total wait is at most
            `max_wait`.
        max_wait: Longest wait of a message that merges, from the arrival of its first body, seconds
            or timedelta. You must give it with `extend`.
        slot_basis: Text that selects the slot of the topic. Messages with the same basis are in the
            same slot, and so in order. Default: the merge key. Without a merge key, RMQ chooses a
            slot.
        headers: At most 32 names and values of type str, at most 4 KiB in total.
        expires: Time after the due time within which the message may be delivered, seconds or
            timedelta. Default: the topic's setting.
        id: Id of the message. Give it to repeat an earlier send. Default: a new id. RMQ recognizes
            a repeated send while the message exists. RMQ recognizes some ids for the topic's
            `dedup_window` after the message is settled: ids from `new_id`, from the outbox, and
            from a send with a `durability`.
        dedup_key: Your name for this message, 1 to 200 bytes of UTF-8. RMQ derives the id from the
            key. While a message with this key is stored, a second send is a "duplicate": RMQ stores
            nothing, and the result has the id of the first message. After the first message is
            settled, a send is still a duplicate for the topic's `dedup_window`. The key selects the
            slot, unless you give a `slot_basis`. Always give the same `slot_basis` with the same
            key. You cannot combine `dedup_key` with `id` or `merge_key`.
        retry: Retry policy of this message. It overrides all other policies.
        max_runtime: Longest run of a handler for this message, seconds or timedelta.
        type: Message type, 1 to 128 characters (A-Z a-z 0-9 . _ - : /). A worker chooses the
            handler by this type. Messages of different types do not merge. If the type is None, the
            default handler receives the message.
        group: Name of the message's group, 1 to 200 bytes of UTF-8 without control characters. The
            topic's setting `groups` says how groups are delivered. The group's name selects one
            slot for all messages of the group. If you also give a `slot_basis`, it must be equal to
            the group. You cannot combine `group` with `merge_key`.
        share_key: Tenant of the message. All groups with the same share key together get as many
            deliveries as one group without a share key. Default: each group counts separately. You
            must also give `group`.
        weight: Number of deliveries that the group or share key gets for each delivery of a group
            with weight 1, from 1 to 64. Default: the weight in the topic's setting `groups`. You
            must also give `group`.
        keep_result: Time for which the result is kept after the message has ended, seconds or
            timedelta, 1 s to 30 days. Default: the option `results` of the topic object. Without
            this option, no result is kept.
        marks: Headers that RMQ itself adds. Their names begin with `rmq-`.
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
    keep_result: Duration | None = None
    marks: dict[str, str] | None = None


# Names of send options in other queues.
_ALIASES = {"countdown": "delay", "eta": "at", "ttl": "expires", "key": "slot_basis"}


def refuse_unknown(options: Mapping[str, object]) -> None:
    """Raise InvalidType for an unknown send option, and suggest a similar option."""
    name = next(iter(options))
    names = [*[each.name for each in fields(Outgoing)][1:-1], "durability", "timeout"]
    near = f"; it is {_ALIASES[name]} here" if name in _ALIASES else nearest(name, names)
    raise InvalidType(f"send: there is no option {name!r}{near}; known are {', '.join(names)}")


class SendResult(NamedTuple):
    """The result of a send.

    Attributes:
        id: Id of the sent message. You need it to repeat the send, and to cancel or get the
            message.
        status: "stored", "merged" or "duplicate". "merged" means that RMQ added the message to a
            waiting message, whose id is `into`. "duplicate" means that the message was sent before,
            and RMQ stored nothing.
        slot: Index of the slot of the topic that has the message.
        offset: Number of the message among all messages that the slot has accepted. If RMQ stored
            nothing, this is the number of the slot's newest message.
        into: Id of the waiting message that this message was merged into.
        durable: Durability reached: "memory", "replicated" or "fsync".
    """

    id: MessageId
    status: SendStatus
    slot: int
    offset: int
    into: MessageId | None = None
    durable: str = "memory"

    @property
    def message_id(self) -> MessageId:
        """The id of the stored message: `into` if the message was merged, otherwise `id`."""
        return self.into or self.id


@dataclass(frozen=True, slots=True)
class Receipt:
    """The proof of one delivery of a message.

    `str()` returns a receipt as text, and `parse` reads this text.
    """

    id: MessageId
    score: float

    def __str__(self) -> str:
        return f"{self.id}:{self.score!r}"

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """Read a receipt from its text.

        Raises:
            InvalidReceipt: The text is not a receipt that RMQ made.
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
        """The time when the lease ends, by the server's clock.

        The value is None for a worker's delivery, because workers have shared leases.
        `Delivery.deadline` then has the end of the lease.
        """
        return None if shared_lease(self.score) else moment(receipt_deadline_ms(self.score))

    @property
    def retries_left(self) -> int:
        """Number of retries that remain after this delivery."""
        return receipt_retries_left(self.score)


@dataclass(frozen=True, slots=True)
class Message:
    """A message as Redis stores it, read by `get` or `peek`.

    Attributes:
        id: Message id.
        queue: Queue that has the message: "store" (waiting), "prepare" (in flight) or "dead".
        slot: Index of the slot of the topic that has the message.
        offset: Number of the message among all messages that the slot has accepted.
        body: The decoded body, or raw bytes if it cannot be decoded (see `unreadable`).
        priority: Priority. None for a message with a due time and no priority.
        due: Due time. None for a message that was due when it was sent.
        expires: Time after which the message is no longer delivered, or None.
        merge_key: Merge key, or None.
        headers: The message's headers.
        deliveries: Number of times that the message was delivered to a consumer.
        deadline: End of the lease of a message in flight. None if a query has the message, or if
            the worker's shared lease has ended.
        died: Time when the message became a dead letter, or None.
        failure: Last failure, or None.
        score: Score of the message in its sorted set, as `redis-cli` shows it.
        unreadable: Reason why the body could not be decoded, or an empty string.
        type: Message type, or None.
        group: Name of the group, or None.
        share_key: Share key that the message was sent with, or None.
        weight: Weight that the message was sent with, or None without a group.
        failure_entry: Failed attempts as Redis stores them. `attempts` decodes them.
        step_entry: Steps and events as Redis stores them, read by `get` only. `steps` decodes them.
        waits_for: Key of the event for which the message is suspended, read by `get` only, or None.
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
    step_entry: bytes = field(default=b"", repr=False)
    waits_for: str | None = None

    @property
    def steps(self) -> tuple[Step, ...]:
        """The recorded parts of a handler's work (steps), the saved cursor, and the events.

        Steps are sorted by the time when they began, and events by the time when they arrived. RMQ
        decodes them at each access. `peek` does not read them.
        """
        return tuple(decode_steps(self.step_entry))

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The failed attempts to handle this message, newest first.

        The list includes attempts before a redrive. RMQ keeps the last attempt, and up to 50
        earlier attempts with at most 8 KiB in total. If the `number` of the oldest attempt in the
        list is above 1, RMQ has dropped older attempts. RMQ decodes the attempts at each access.
        """
        return failure_entries.attempts(self.failure_entry)

    @property
    def held(self) -> bool:
        """Whether the message waits for other messages of its group, or for a stopped group."""
        return self.queue == "store" and self.score < 0

    @property
    def held_by_query(self) -> bool:
        """Whether the message is in flight for a query, such as Spark's.

        The lease then belongs to the query.
        """
        return self.queue == "prepare" and self.score >= HELD_MIN


QueueName = Literal["store", "prepare", "dead", "trash"]
QueueWord = Literal[
    "store", "prepare", "dead", "trash", "waiting", "in_flight", "in flight", "in-flight"
]

TRASH_KEEP_S = 86_400  # default time in which purged dead letters can be restored

_NAMES: dict[str, QueueName] = {
    "store": "store",
    "waiting": "store",
    "prepare": "prepare",
    "in flight": "prepare",
    "dead": "dead",
    "trash": "trash",
}


def parse_queue(text: object, field: str = "queue") -> QueueName:
    """Return the queue for a name that a user has written.

    The name "in flight" may have - or _ instead of the space.

    Raises:
        InvalidValue: No queue has this name.
    """
    if isinstance(text, str):
        name = _NAMES.get(text.lower().replace("-", " ").replace("_", " "))
        if name is not None:
            return name
    raise InvalidValue(
        f"{field}: {text!r} is not a queue; "
        "give store (or waiting), prepare (or in-flight), dead, or trash"
    )
