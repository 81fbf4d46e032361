"""Names of a slot's three queues, as a person may type them."""

from __future__ import annotations

from rmq.core.message import QueueName
from rmq.errors import InvalidValue

_NAMES: dict[str, QueueName] = {
    "store": "store",
    "waiting": "store",
    "prepare": "prepare",
    "in flight": "prepare",
    "dead": "dead",
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
        "give store (or waiting), prepare (or in-flight), or dead"
    )
