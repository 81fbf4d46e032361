"""Send with interceptors around: each message is a copy that they may change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rmq.errors import InvalidType, NotDurable, QueueFull
from rmq.flows import Await, Flow, sending
from rmq.flows.sending import Asked
from rmq.handle import Handle
from rmq.interceptor import each
from rmq.message import Outgoing, SendResult


def send_many(
    handle: Handle, messages: Iterable[Outgoing], asked: Asked | None, timeout: float
) -> Flow[list[SendResult]]:
    """As `sending.send_many`, with the hooks of the client's interceptors before and after."""
    hooks = handle.hooks
    if not hooks.before_send and not hooks.after_send:
        return (yield from sending.send_many(handle, messages, asked, timeout))
    ours = []
    for out in messages:
        if not isinstance(out, Outgoing):
            raise InvalidType(f"messages: {type(out).__name__}; give rmq.Outgoing(body, ...)")
        ours.append(replace(out, marks=dict(out.marks) if out.marks else None))
    for out in ours:
        for waiting in each(hooks.before_send, handle.name, out):
            yield Await(waiting)
    try:
        results = yield from sending.send_many(handle, ours, asked, timeout)
    except BaseException as error:
        told = error.results if isinstance(error, QueueFull | NotDurable) else []
        for place, out in enumerate(ours):
            one = told[place] if place < len(told) else None
            for waiting in each(hooks.after_send, handle.name, out, one or error):
                yield Await(waiting)
        raise
    for out, result in zip(ours, results, strict=True):
        for waiting in each(hooks.after_send, handle.name, out, result):
            yield Await(waiting)
    return results


def send(handle: Handle, out: Outgoing, asked: Asked | None, timeout: float) -> Flow[SendResult]:
    """Send one message."""
    results = yield from send_many(handle, (out,), asked, timeout)
    return results[0]
