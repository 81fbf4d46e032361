"""Send with interceptors around: each message is a copy that they may change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rmq.core.interceptor import each
from rmq.core.message import Outgoing, SendResult
from rmq.core.topic_context import TopicContext
from rmq.errors import InvalidType, NotDurable, QueueFull
from rmq.protocol.flows import send as send_flow
from rmq.protocol.flows.send import Asked
from rmq.protocol.steps import Await, Flow


def send_many(
    context: TopicContext, messages: Iterable[Outgoing], asked: Asked | None, timeout: float
) -> Flow[list[SendResult]]:
    """As `sending.send_many`, with the hooks of the client's interceptors before and after."""
    hooks = context.hooks
    if not hooks.before_send and not hooks.after_send:
        return (yield from send_flow.send_many(context, messages, asked, timeout))
    ours = []
    for out in messages:
        if not isinstance(out, Outgoing):
            raise InvalidType(f"messages: {type(out).__name__}; give rmq.Outgoing(body, ...)")
        ours.append(replace(out, marks=dict(out.marks) if out.marks else None))
    for out in ours:
        for waiting in each(hooks.before_send, context.name, out):
            yield Await(waiting)
    try:
        results = yield from send_flow.send_many(context, ours, asked, timeout)
    except BaseException as error:
        told = error.results if isinstance(error, QueueFull | NotDurable) else []
        for place, out in enumerate(ours):
            one = told[place] if place < len(told) else None
            for waiting in each(hooks.after_send, context.name, out, one or error):
                yield Await(waiting)
        raise
    for out, result in zip(ours, results, strict=True):
        for waiting in each(hooks.after_send, context.name, out, result):
            yield Await(waiting)
    return results


def send(
    context: TopicContext, out: Outgoing, asked: Asked | None, timeout: float
) -> Flow[SendResult]:
    """Send one message."""
    results = yield from send_many(context, (out,), asked, timeout)
    return results[0]
