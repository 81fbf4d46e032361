"""HTTP routes of events: signal an event, so that suspended messages continue."""

from __future__ import annotations

from typing import Any, Literal

from rmq.http_framework.operation import RequestContext, Table
from rmq.http_framework.requests import Answer, Request, Seconds, show
from rmq.kernel.core.access import Role

TABLE = Table("events")


class Signal(Request):
    """An event to signal.

    Attributes:
        key: Key of the event, 1 to 255 bytes.
        body: Body of the event. A handler finds it in `d.event.body`.
        keep: Seconds for which RMQ keeps the event for messages that start to wait later.
    """

    key: str
    body: Any = None
    keep: Seconds = 86400


class Signalled(Answer):
    """The result of a signal, with the fields of `rmq.SignalResult`.

    Attributes:
        state: "stored" if this was the first signal for the key. "already" if the key already had
            an event. The signal then changed nothing.
        delivered: Number of messages that continue because of this request.
    """

    state: Literal["stored", "already"]
    delivered: int


@TABLE.post("/events", role=Role.OPERATOR)
async def signal_event(context: RequestContext, body: Signal) -> Signalled:
    """Signal an event, so that the messages that wait for its key continue.

    You can repeat the request, because only the first signal for a key has an effect.
    """
    found = await context.client.signal(body.key, body.body, keep=body.keep)
    return show(found, Signalled)
