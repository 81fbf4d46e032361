"""Decide how to settle messages whose type has no handler in this worker."""

from __future__ import annotations

import logging

from rmq.kernel.core.validation import format_duration
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.handlers.handler import TopicHandlers
from rmq.kernel.topic import clock
from rmq.worker.settling.disposition import Disposition

log = logging.getLogger("rmq")

SHORTEST_S, LONGEST_S = 0.1, 60.0  # wait before an unhandled message is delivered again
TYPE_KNOWN_MIN_MS = 60_000  # how long a process must know a type before it rejects a message
TYPES_MAX = 1000  # types that a process remembers


class Unhandled:
    """Decides how to settle messages whose type has no handler in this worker.

    Another worker may have a handler for the type. So RMQ releases these messages, and they lose no
    retry. The wait before the next delivery doubles from SHORTEST_S to LONGEST_S. After the time in
    the topic's setting `unhandled`, the messages become dead letters. But a process must have known
    the type for at least TYPE_KNOWN_MIN_MS before it rejects such a message. So after all workers
    were stopped for a long time, the worker with the handler has time to start.
    """

    def __init__(self, handlers: TopicHandlers) -> None:
        self._context = handlers.context
        self._first_seen_ms: dict[str | None, int] = {}  # by type, epoch ms

    def disposition(self, delivery: InnerDelivery) -> Disposition:
        """Decide whether to release a message without a handler for a while, or to reject it."""
        message_type, now_ms = delivery.type, clock.now_ms()
        first_seen_ms = self._first_seen_ms.get(message_type)
        if first_seen_ms is None:
            first_seen_ms = self._note_first_seen(message_type, now_ms)
        known_ms = now_ms - first_seen_ms
        age_ms = _age_ms(delivery, now_ms, known_ms)
        limit_ms = self._context.settings.unhandled_ms
        if limit_ms and age_ms >= limit_ms and known_ms >= min(limit_ms, TYPE_KNOWN_MIN_MS):
            return Disposition("reject", None, self._reason(message_type, limit_ms), "n")
        wait_s = min(age_ms, known_ms) / 1000
        return Disposition("release", min(max(wait_s, SHORTEST_S), LONGEST_S))

    def _note_first_seen(self, message_type: str | None, now_ms: int) -> int:
        """Return when this process first received a message of this type.

        The first message of a type is logged.
        """
        if len(self._first_seen_ms) >= TYPES_MAX:
            del self._first_seen_ms[next(iter(self._first_seen_ms))]
        self._first_seen_ms[message_type] = now_ms
        limit_ms = self._context.settings.unhandled_ms
        end = (
            "for ever" if not limit_ms else f"and are dead after {format_duration(limit_ms / 1000)}"
        )
        log.warning(
            "topic %r: this worker has no handler for %s; they wait for a worker that has one, %s",
            self._context.name, _described(message_type), end,
        )  # fmt: skip
        return now_ms

    def _reason(self, message_type: str | None, limit_ms: int) -> str:
        redrive = f"rmq dlq redrive {self._context.name} --reason unhandled"
        if message_type is not None:
            redrive += f" --type {message_type}"
        return (
            f"no handler for {_described(message_type)} within "
            f"{format_duration(limit_ms / 1000)}; start a worker that has one, and then send them "
            f"back: {redrive}"
        )


def _described(message_type: str | None) -> str:
    return (
        "messages without a type" if message_type is None else f"messages of type {message_type!r}"
    )


def _age_ms(delivery: InnerDelivery, now_ms: int, known_ms: int) -> int:
    """Return for how many ms a message has been due, by this machine's clock.

    The message id normally contains the time. An id that comes from a dedup key contains no time.
    Without a time, return for how long this process has known the message type. If a test sets the
    clock, RMQ also ignores the time in the id.
    """
    due = delivery.due or (None if clock.now_us else delivery.id.made_at)
    return known_ms if due is None else max(0, now_ms - round(due.timestamp() * 1000))
