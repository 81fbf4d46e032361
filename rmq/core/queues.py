"""The names of a slot's three queues and its trash, and the words that a person may type."""

from __future__ import annotations

from typing import Literal

from rmq.errors import InvalidValue

QueueName = Literal["store", "prepare", "dead", "trash"]
QueueWord = Literal[
    "store", "prepare", "dead", "trash", "waiting", "in_flight", "in flight", "in-flight"
]

TRASH_KEEP_S = 86_400  # for which purged dead letters can be restored, unless told otherwise

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
