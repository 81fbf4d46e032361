"""For the codec `Offloaded`: write large bodies to an object store before the messages are sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from rmq.errors import QueueFull, RMQError, TopicPaused
from rmq.kernel.core import object_store
from rmq.kernel.core.codec import Coded, Offloaded
from rmq.kernel.core.message import Outgoing, SendResult
from rmq.kernel.core.object_store import Reference
from rmq.kernel.producer.encode import encode
from rmq.kernel.topic import clock, opening, scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, InThread

Stored = Flow[Sequence[SendResult]]
Object = tuple[Reference, bytes]


def send(
    context: TopicContext,
    codec: Offloaded,
    store: Callable[[Iterable[Outgoing]], Stored],
    messages: Iterable[Outgoing],
) -> Stored:
    """Write large bodies to the object store, then send the messages with references to them.

    The argument `store` is the function that sends the messages. RMQ checks all messages before it
    writes the first object.

    If Redis refuses a message, its object is removed. If the outcome of a send is unknown, its
    objects stay. `sweep_offloaded` later removes objects that no message uses.
    """
    if time.monotonic() >= context.current_until:
        yield from opening.ensure_open(context)
    outs, objects = list(messages), dict[int, Object]()
    yield from opening.follow_ids(context, (out.id for out in outs if isinstance(out, Outgoing)))
    for index, out in enumerate(outs):
        if isinstance(out, Outgoing) and out.merge_key is None:
            outs[index], found = offload(context, codec, out)
            if found is not None:
                objects[index] = found
                encode(context, context.settings, outs[index])
    if not objects:
        return (yield from store(outs))
    yield InThread(partial(object_store.write_all, codec.store, list(objects.values())))
    try:
        results = yield from store(outs)
    except (QueueFull, TopicPaused) as error:
        refused = [at for at, result in enumerate(error.results) if result is None]
        yield from remove([objects[at][0] for at in refused if at in objects])
        raise
    with suppress(RMQError):  # the messages are stored
        yield from remove((yield from _unused(context, objects, results)))
    return results


def offload(
    context: TopicContext, codec: Offloaded, out: Outgoing
) -> tuple[Outgoing, Object | None]:
    """Encode the body of a message, and replace a large body by a reference.

    The caller must write the returned object before it sends the message.

    Returns:
        The new message. Also the object to store, or None if the body is small.
    """
    data = codec.encode(out.body)
    if len(data) <= min(codec.above, context.settings.max_body):
        return replace(out, body=Coded(data)), None
    reference = codec.store.new_reference(context.name, context.identity, clock.now_ms(), data)
    return replace(out, body=Coded(object_store.FIRST + reference.packed)), (reference, data)


def _unused(
    context: TopicContext,
    objects: Mapping[int, Object],
    results: Sequence[SendResult],
) -> Flow[list[Reference]]:
    """Return references to objects that no message needs, because the send was a duplicate.

    A duplicate may be a repeat of this send after a lost reply. If the first message is already
    settled, the object is removed twice, which is harmless.
    """
    unused = []
    for at, (reference, _) in objects.items():
        result = results[at]
        if result.status == "duplicate" and result.id.slot < len(context.slots):
            member = yield scripts.get(context.slots[result.id.slot], result.id)
            if member is None or reference.packed not in member.record:
                unused.append(reference)
    return unused


def remove(references: list[Reference]) -> Flow[None]:
    """Remove objects from the store.

    If an object cannot be removed now, RMQ removes it later with other unused objects.
    """
    if references:
        yield InThread(partial(object_store.remove_all, references))
