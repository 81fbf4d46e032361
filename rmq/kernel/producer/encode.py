"""Check and encode messages that have no id yet, for all kinds of sends."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import Any

import msgpack

from rmq.errors import InvalidType, InvalidValue, PayloadTooLarge
from rmq.kernel.core import ids, record
from rmq.kernel.core.body_limits import body_too_large
from rmq.kernel.core.codec import Codec, Offloaded
from rmq.kernel.core.delivery_limits import HEADERS_BYTES, HEADERS_MAX
from rmq.kernel.core.groups import GROUP_MARK, WEIGHT_MAX, check_group, mark_of
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.message import Outgoing
from rmq.kernel.core.results import BATCH_MARK, KEEP_MARK, keep_seconds
from rmq.kernel.core.retry import parse_policy
from rmq.kernel.core.settings import Settings
from rmq.kernel.core.validation import (
    check_due_ms,
    check_epoch_ms,
    check_int,
    check_message_type,
    check_priority,
    duration_ms,
    utf8,
)
from rmq.kernel.topic import clock
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.slot_choice import slot_of

MERGE_KEY_BYTES = 1024
RECORD_BYTES = 64  # most bytes of a call per message, without body and headers
RETRY_MARK, RUNTIME_MARK = "rmq-retry", "rmq-max-runtime"  # values: text of a policy; ms


class EncodedMessage:
    """A message that was checked and encoded with the settings of its topic.

    It has no headers yet.
    """

    settings: Settings
    head: bytes
    body: bytes
    envelope = b""
    headers = b""
    basis: str | bytes | None = None
    slot = -1  # -1: no slot was chosen
    id: MessageId | None = None
    merge_key = ""
    mode = ""
    max_wait_ms = 0
    is_plain = False  # whether it has no option but a priority

    @classmethod
    def plain(cls, settings: Settings, head: bytes, body: bytes, headers: bytes) -> EncodedMessage:
        """Create the object from the results of `encode_plain` and `encode_type`."""
        message = cls()
        message.settings, message.head, message.body = settings, head, body
        message.headers, message.is_plain = headers, not headers
        return message

    @property
    def size(self) -> int:
        """Maximum number of bytes that the message adds to a call to Redis."""
        return RECORD_BYTES + len(self.envelope) + len(self.headers) + len(self.body)


def encode(
    context: TopicContext, settings: Settings, out: Outgoing, allow_past: bool = False
) -> EncodedMessage:
    """Check and encode a message. If `allow_past` is True, a due time of any age is accepted.

    Raises:
        InvalidValue, InvalidType, EncodeError, PayloadTooLarge: The message cannot be sent.
    """
    if not isinstance(out, Outgoing):
        raise InvalidType(f"messages: {type(out).__name__}; give rmq.Outgoing(body, ...)")
    if out.type is not None:
        check_message_type(out.type)
    message = EncodedMessage()
    message.settings = settings
    due = _check_merge(out, message) or _check_due(out, allow_past)
    # In a topic with groups, timed messages get a priority when they become due.
    priority = 0 if due and settings.groups is None else settings.default_priority
    if out.priority is not None:
        priority = check_priority(out.priority)
    expires = settings.expires_ms
    if out.expires is not None:
        expires = duration_ms(out.expires, "expires")
    group = group_mark(context.name, settings, out)
    keep_s = context.keep_s if out.keep_result is None else keep_seconds(out.keep_result)
    if group or out.headers or out.marks or out.retry is not None or out.max_runtime is not None:
        message.headers = encode_headers(out, group, keep_s)
    elif keep_s or out.type is not None:
        message.headers = _encode_marks(keep_s, out.type)
    message.body = context.codec.encode(out.body)
    if len(message.body) > settings.max_body:
        raise _too_large(context.codec, message.body, settings)
    message.head, message.envelope = record.envelope(
        context.codec.number,
        priority,
        due_ms=due or None,
        expires_ms=expires,
        merge_key=message.merge_key,
        collects=message.mode == "collect",
    )
    basis = basis_of(out.group, out.slot_basis)
    if basis is not None:
        message.basis = basis
        message.slot = slot_of(message.basis, settings.slots)
    elif message.merge_key:
        assert out.merge_key is not None  # checked above
        message.basis = out.merge_key
        message.slot = slot_of(out.merge_key, settings.first_slots)
    if out.dedup_key is not None:
        if out.id is not None or message.merge_key:
            raise InvalidValue("dedup_key: given with id or merge_key; give one of them")
        key = ids.key_bytes(out.dedup_key)
        basis = key if message.basis is None else message.basis
        message.id = ids.derive(key, slot_of(basis, settings.first_slots), context.check)
        message.slot = message.id.slot
    elif out.id is not None:
        message.id = context.check_id(out.id)
        is_resized = settings.layout is not None  # the id may be from before a resize
        if message.slot not in (-1, message.id.slot) and not is_resized:
            raise InvalidValue(
                f"id: {message.id} belongs to slot {message.id.slot}, and slot_basis or group "
                f"{message.basis!r} to slot {message.slot}; give the same as in the first send"
            )
        message.slot = message.id.slot
    return message


def basis_of(group: str | None, slot_basis: str | bytes | None) -> str | bytes | None:
    """Return the text that selects the slot of a message: its group or its `slot_basis`, or None.

    Raises:
        InvalidValue: The message has both, and they differ.
    """
    if group is None:
        return slot_basis
    if slot_basis not in (None, group, check_group(group).encode()):
        raise InvalidValue(
            f"slot_basis: {slot_basis!r:.80} with group {group!r:.80}; the group chooses the slot: "
            "leave slot_basis out"
        )
    return group


def is_plain(out: Outgoing, typed: bool = False) -> bool:
    """Return whether a message has a body and no option except a priority, as most messages do.

    If `typed` is True, the message may also have a type. If the topic object has the option
    `results`, no message is plain.
    """
    return (
        out.delay is None
        and out.at is None
        and out.slot_basis is None
        and out.headers is None
        and (typed or out.type is None)
        and out.group is None
        and out.share_key is None
        and out.weight is None
        and out.marks is None
        and out.retry is None
        and out.max_runtime is None
        and out.keep_result is None
        and out.id is None
        and out.dedup_key is None
        and out.expires is None
        and out.merge_key is None
        and out.time_range is None
        and out.max_wait is None
        and out.merge == "first"
        and not out.extend
    )


def encode_plain(codec: Codec, settings: Settings, out: Outgoing) -> tuple[bytes, bytes]:
    """Check and encode a message that has no options except a priority.

    Return the first four bytes of the record, and the encoded body.
    """
    priority = settings.default_priority if out.priority is None else check_priority(out.priority)
    body = codec.encode(out.body)
    if len(body) > settings.max_body:
        raise _too_large(codec, body, settings)
    return record.head(codec.number, 0, priority), body


def encode_type(message_type: str) -> bytes:
    """Check a message type, and encode it as the only header of a message."""
    return _encode_marks(0, check_message_type(message_type))


def _too_large(codec: Codec, body: bytes, settings: Settings) -> PayloadTooLarge:
    offloads = isinstance(codec, Offloaded)
    return body_too_large(codec.name, len(body), settings.max_body, offloads=offloads)


@lru_cache(4096)
def _encode_marks(keep_s: int, message_type: str | None) -> bytes:
    marks = {} if message_type is None else {record.TYPE_MARK: message_type}
    packed: bytes = msgpack.packb(_keep_mark(keep_s) | marks)
    return packed


def _keep_mark(keep_s: int) -> dict[str, str]:
    return {KEEP_MARK: str(keep_s)} if keep_s else {}


def encode_headers(out: Outgoing, group: str = "", keep_s: int = 0) -> bytes:
    """Encode the headers of a message.

    RMQ's headers with a fixed position come first. Then come the sender's headers, and then RMQ's
    other headers. The argument `keep_s` is the time for which the result is kept, in seconds, or 0.
    """
    headers: Any = {} if out.headers is None else out.headers
    if not hasattr(headers, "items"):
        raise InvalidType(f"headers: {type(headers).__name__}; give a mapping of str to str")
    if len(headers) > HEADERS_MAX:
        raise InvalidValue(f"headers: {len(headers)} entries; give at most {HEADERS_MAX}")
    for name, text in headers.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise InvalidType(f"headers: {name!r}: {text!r}; names and values are str")
        if not name or name.startswith(record.RESERVED):
            raise InvalidValue(f"headers: {name!r}; names are not empty and do not begin with rmq-")
    try:
        first = _keep_mark(keep_s)
        if out.marks and BATCH_MARK in out.marks:  # scripts find it behind the mark for results
            first = {KEEP_MARK: f"{keep_s}b", BATCH_MARK: out.marks[BATCH_MARK]}
        first |= {GROUP_MARK: group} if group else {}
        packed: bytes = msgpack.packb(first | dict(headers) | _marks(out))
    except UnicodeEncodeError as error:
        raise InvalidValue(f"headers: {error}; give text that UTF-8 can carry") from error
    if len(packed) > HEADERS_BYTES:
        raise InvalidValue(f"headers: {len(packed)} bytes; give at most {HEADERS_BYTES}")
    return packed


def group_mark(topic: str, settings: Settings, out: Outgoing) -> str:
    """Check the group of a message, and return its header, or '' if the message has no group."""
    if out.group is None:
        if out.share_key is not None or out.weight is not None:
            name = "weight" if out.share_key is None else "share_key"
            raise InvalidValue(f"{name}: given without group; give group as well")
        return ""
    group = check_group(out.group)
    if settings.groups is None:
        raise InvalidValue(
            f"group: topic {topic!r} has no groups, so group {group!r:.80} would have no order. "
            "Send without group, or create another topic with groups=rmq.Groups() (rmq topic "
            "create NAME --groups order)"
        )
    if out.merge_key is not None:
        raise InvalidValue("group: given with merge_key; a merged message has no place in a group")
    share = None if out.share_key is None else check_group(out.share_key, "share_key")
    if out.weight is not None:
        return mark_of(group, share, check_int(out.weight, "weight", 1, WEIGHT_MAX))
    weight = settings.groups.weights.get(group if share is None else share, 1)
    return mark_of(group, share, weight)


def _marks(out: Outgoing) -> dict[str, str]:
    marks = dict(out.marks or {})
    if out.retry is not None:
        marks[RETRY_MARK] = parse_policy(out.retry).to_redis()
    if out.max_runtime is not None:
        marks[RUNTIME_MARK] = str(duration_ms(out.max_runtime, "max_runtime"))
    if out.type is not None:
        marks[record.TYPE_MARK] = out.type
    return marks


def _check_due(out: Outgoing, allow_past: bool) -> int:
    """Check the due time or the delay of a message.

    Returns:
        The due time in epoch ms, or the delay in ms, or 0 if the message is due immediately.
    """
    if out.delay is not None and out.at is not None:
        raise InvalidValue("delay and at: both given; give one")
    if out.delay is not None:
        return duration_ms(out.delay, "delay", zero=True)
    if out.at is not None:
        return check_epoch_ms(out.at, "at", True) if allow_past else _due_ms(out.at)
    return 0


def _due_ms(at: Any) -> int:
    return check_due_ms(at, "at", clock.now_ms())


@lru_cache(4096, typed=True)  # most messages have the same range
def _range_ms(time_range: object) -> int:
    return duration_ms(time_range, "time_range")


def _check_merge(out: Outgoing, message: EncodedMessage) -> int:
    """Check the merge options of a message.

    Returns:
        The time range in ms, or 0 without a merge key.
    """
    if out.merge_key is None and out.time_range is None:
        if out.extend or out.max_wait is not None or out.merge != "first":
            raise InvalidValue("merge, extend, max_wait: they need merge_key and time_range")
        return 0
    if out.merge_key is None or out.time_range is None:
        given, missing = ("merge_key", "time_range")
        if out.merge_key is None:
            given, missing = missing, given
        raise InvalidValue(f"{given}: given without {missing}; a merge needs both")
    if out.delay is not None or out.at is not None:
        raise InvalidValue("delay, at: a merging message waits for its time_range; leave them out")
    if not isinstance(out.merge_key, str):
        raise InvalidType(f"merge_key: {type(out.merge_key).__name__}; give a str")
    if not 1 <= len(utf8(out.merge_key, "merge_key")) <= MERGE_KEY_BYTES:
        raise InvalidValue(f"merge_key: give 1 to {MERGE_KEY_BYTES} bytes of UTF-8")
    if out.merge_key.startswith("\0"):
        raise InvalidValue(
            "merge_key: it begins with NUL, as the stored keys of types do; leave it out"
        )
    if out.merge not in ("first", "last", "collect"):
        raise InvalidValue(f"merge: {out.merge!r}; give 'first', 'last' or 'collect'")
    if type(out.time_range) in (float, int, timedelta):
        time_range = _range_ms(out.time_range)
    else:  # the value may not be hashable
        time_range = duration_ms(out.time_range, "time_range")
    if out.extend:
        if out.max_wait is None:
            raise InvalidValue("extend: give max_wait too; else merges may delay it forever")
        message.max_wait_ms = duration_ms(out.max_wait, "max_wait", low_ms=time_range)
    elif out.max_wait is not None:
        raise InvalidValue("max_wait: it limits extend; give extend=True too")
    message.merge_key, message.mode = record.merge_key_of_type(out.merge_key, out.type), out.merge
    return time_range
