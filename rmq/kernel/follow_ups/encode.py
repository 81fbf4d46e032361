"""Check and encode a follow-up, which is a message that the ack of another message stores."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgpack

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core import ids, object_store, record
from rmq.kernel.core.body_limits import CALL_BYTES
from rmq.kernel.core.codec import JSON, Offloaded
from rmq.kernel.core.ids import MessageId, member_of
from rmq.kernel.core.interceptor import start_hooks
from rmq.kernel.core.message import Outgoing, SendResult
from rmq.kernel.core.object_store import Reference
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.delivery.dispositions import Reject
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.follow_ups.scripts import slot_name
from rmq.kernel.producer import encode as producer, offloading
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Await, Flow, InThread

DEPTH_MARK = "rmq-depth"  # header: number of acks that led to this message


class EncodedFollowUp(NamedTuple):
    """An encoded follow-up: its id, its target slot, and the bytes that scripts store."""

    id: MessageId
    target: str
    message: bytes  # member, head, and the rest of the record
    reference: Reference | None = None  # its body, if that is in a store


def target_of(context: TopicContext, topic: str) -> tuple[TopicContext, bool]:
    """Return the context of a follow-up's target topic, with its settings.

    Also return whether this program has declared the topic.
    """
    found = context.targets.get(topic)
    if found is None and topic == context.name:
        found = context.targets[topic] = context, True
    elif found is None:
        declared = next((each for each in list(context.siblings) if each.name == topic), None)
        known = declared
        if known is None:
            known = TopicContext(context.prefix, topic, JSON, context.sessions, {}, context.hooks)
            known.siblings, known.result_signals = context.siblings, context.result_signals
        found = context.targets[topic] = known, declared is not None
    return found


def encode(
    context: TopicContext, delivery: InnerDelivery, topic: Any, out: Outgoing
) -> Flow[EncodedFollowUp]:
    """Check and encode a follow-up, and give it an id.

    A follow-up is a message that the ack of a delivery stores. RMQ calls interceptors as it does
    for a send.

    Args:
        context: Topic of the delivery.
        delivery: The delivery whose ack stores the follow-up.
        topic: Target topic, as a name or a Topic.
        out: Message to encode.

    Raises:
        TopicNotFound: The target topic does not exist, and this program has not declared it.
        Reject: The chain of follow-ups is too long. The delivery becomes a dead letter.
    """
    name = getattr(topic, "name", topic)
    if not isinstance(name, str):
        raise InvalidType(f"topic: {type(topic).__name__}; give the name of a topic, or a topic")
    if out.merge_key is not None or out.time_range is not None:
        raise InvalidValue(
            "merge_key: a follow-up does not merge with other messages; leave it out, or send the "
            "message in the handler"
        )
    depth = _depth_of(delivery) + 1
    if _is_too_deep(context, depth):
        raise Reject(
            f"then: this message is follow-up number {depth - 1} in a row, and the max_depth of "
            f"topic {context.name!r} is {context.settings.max_depth}; a handler may send to its "
            "own topic without an end"
        )
    target, is_declared = target_of(context, name)
    if time.monotonic() >= target.current_until:
        yield from opening.ensure_open(target, create=is_declared)
    yield from opening.follow_ids(target, (out.id,))
    out = replace(out, marks={**(out.marks or {}), DEPTH_MARK: str(depth)})
    hooks = context.hooks
    for awaitable in start_hooks(hooks.before_send, name, out):
        yield Await(awaitable)
    try:
        encoded = yield from _encode(target, delivery, out)
    except BaseException as error:
        for awaitable in start_hooks(hooks.after_send, name, out, error):
            yield Await(awaitable)
        raise
    result = SendResult(encoded.id, "stored", encoded.id.slot, 0)
    for awaitable in start_hooks(hooks.after_send, name, out, result):
        yield Await(awaitable)
    return encoded


def encode_plain(
    context: TopicContext, delivery: InnerDelivery, topic: Any, out: Outgoing
) -> EncodedFollowUp | None:
    """Encode a simple follow-up without a call to Redis.

    A simple follow-up has no options except a priority, and the settings of its topic are known.
    Return None for any other follow-up, or if there are interceptors.
    """
    name = getattr(topic, "name", topic)
    found = context.targets.get(name) if isinstance(name, str) else None
    if found is None or context.hooks.chain or not producer.is_plain(out):
        return None
    target, depth = found[0], _depth_of(delivery) + 1
    if _is_too_deep(context, depth) or time.monotonic() >= target.current_until:
        return None
    settings = target.settings
    if settings.expires_ms or target.keep_s or type(target.codec) is Offloaded:
        return None
    head, body = producer.encode_plain(target.codec, settings, out)
    slot = _slot_in(target, delivery)
    id, member = ids.make_one(slot, target.check)
    message = b"%b%b%b" % (member, _start_of(head, depth), body)
    return EncodedFollowUp(id, slot_name(target.name, slot), message)


@lru_cache(1024)
def _start_of(head: bytes, depth: int) -> bytes:
    headers = record.length_prefixed(msgpack.packb({DEPTH_MARK: str(depth)}))
    return bytes((head[0] | record.HEADERS,)) + head[1:] + headers


def _slot_in(target: TopicContext, delivery: InnerDelivery) -> int:
    """Choose a slot for a follow-up whose options do not select a slot."""
    origin = delivery.origin.keys
    if target.name == origin.topic and origin.index < target.settings.slots:
        return origin.index  # the ack can store it at once
    return next(target.spread)


def _is_too_deep(context: TopicContext, depth: int) -> bool:
    return 0 < context.settings.max_depth < depth


def _depth_of(delivery: InnerDelivery) -> int:
    return depth_in(delivery.marks) if delivery.record[0] & record.HEADERS else 0


def depth_in(headers: Mapping[str, str]) -> int:
    """Return the position of a message in its chain of follow-ups, or 0 for any other message.

    The headers of the message have this position.
    """
    text = headers.get(DEPTH_MARK, "")
    return int(text) if text.isdigit() else 0


def _encode(target: TopicContext, delivery: InnerDelivery, out: Outgoing) -> Flow[EncodedFollowUp]:
    found: offloading.Object | None = None
    if isinstance(target.codec, Offloaded):
        out, found = offloading.offload(target, target.codec, out)
    message = producer.encode(target, target.settings, out)
    slot = message.slot if message.slot >= 0 else _slot_in(target, delivery)
    id = message.id or ids.make_one(slot, target.check)[0]
    head, envelope = record.with_headers(message.head, message.envelope, message.headers)
    text = b"".join((member_of(id), head, envelope, message.body))
    if isinstance(target.codec, Offloaded) and found is not None:
        yield InThread(partial(object_store.write_all, target.codec.store, [found]))
    return EncodedFollowUp(id, slot_name(target.name, slot), text, found and found[0])


class FollowUpList(list[Any]):
    """The follow-ups of a delivery: target slot, message, target slot, message, and so on.

    The list has no object for each follow-up, because many small objects make Python's garbage
    collector slow.

    Attributes:
        size: Number of bytes that the follow-ups use in a call.
        references: Bodies of the follow-ups that are in an object store.
    """

    __slots__ = ("references", "size")

    size: int
    references: tuple[Reference, ...]

    def plus(self, follow_up: EncodedFollowUp) -> FollowUpList:
        """Return a new list with one more follow-up.

        Raises:
            InvalidValue: The new list would have more follow-ups, or more bytes, than one ack can
                store.
        """
        _, target, message, reference = follow_up
        more = FollowUpList(self)
        more += target, message
        more.size = size = self.size + producer.RECORD_BYTES + len(message)
        more.references = self.references if reference is None else (*self.references, reference)
        if len(more) > 2 * BATCH_MAX or size > CALL_BYTES:
            raise InvalidValue(
                f"then: {len(more) // 2} follow-ups of {size} bytes for one delivery; an ack takes "
                f"at most {BATCH_MAX} follow-ups of {CALL_BYTES} bytes in all"
            )
        return more


NO_FOLLOW_UPS = FollowUpList()
NO_FOLLOW_UPS.size, NO_FOLLOW_UPS.references = 0, ()
