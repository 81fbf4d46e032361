"""The three queues of a slot: their names, the words that people use, and a parser for both."""

from __future__ import annotations

from typing import Literal, get_args

from rmq.errors import InvalidValue

QueueName = Literal["store", "prepare", "dead"]
QueueWord = Literal["store", "prepare", "dead", "waiting", "in_flight", "in flight", "in-flight"]

QUEUES: tuple[QueueName, ...] = get_args(QueueName)
IN_WORDS: dict[QueueName, str] = {"store": "waiting", "prepare": "in flight", "dead": "dead"}
_BY_WORD: dict[str, QueueName] = {
    **{name: name for name in QUEUES},
    "waiting": "store",
    "in flight": "prepare",
    "in_flight": "prepare",
    "in-flight": "prepare",
}


def parse_queue(text: object, field: str = "place") -> QueueName:
    """Return the queue that a text names: by its name, or by the word that people use.

    Raises:
        InvalidValue: neither a name nor a word of a queue.
    """
    queue = _BY_WORD.get(text) if isinstance(text, str) else None
    if queue is None:
        raise InvalidValue(
            f"{field}: {text!r}; give one of {', '.join(QUEUES)}, or waiting, in_flight, dead"
        )
    return queue
