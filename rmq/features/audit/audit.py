"""`rmq.Audit`, which numbers messages so that lost messages can be found.

When a script removes a message, the script also records the number of the message. A message is
lost if no queue has it and its number is not recorded. `rmq.features.audit.flows` finds lost
messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from rmq.kernel.core.interceptor import Interceptor, call_hook
from rmq.kernel.core.sequence import ProducerSequence
from rmq.kernel.core.validation import Duration, duration_ms

log = logging.getLogger("rmq")

RANGES_MAX = 1000  # maximum number of ranges of missing numbers in a result


class Missing(NamedTuple):
    """A range of missing messages. `rmq.Audit` gives a number to each message.

    Attributes:
        producer: Id of the producer, which is one client in one process: 10 hex digits.
        slot: Index of the slot.
        first: First number of the range.
        last: Last number of the range.
    """

    producer: str
    slot: int
    first: int
    last: int

    def __str__(self) -> str:
        to_last = f"-{self.last}" if self.last > self.first else ""
        return f"{self.producer}.{self.first}{to_last} (slot {self.slot})"


class AuditResult(NamedTuple):
    """The result of an audit of a topic.

    Attributes:
        topic: Name of the topic.
        producers: Number of producers that numbered messages of the topic.
        numbered: Number of messages that the producers reported as accepted.
        seen: Number of messages that a consumer settled.
        accounted: Number of messages that were merged, refused, cancelled, purged, expired, dropped
            or forgotten.
        waiting: Number of waiting messages that a producer with `rmq.Audit` sent.
        in_flight: Number of messages in flight that a producer with `rmq.Audit` sent.
        dead: Number of dead letters that a producer with `rmq.Audit` sent.
        missing: Number of lost messages. RMQ accepted them, no queue has them, and `seen` and
            `accounted` do not count them.
        lost: Numbers of the lost messages, in at most 1000 ranges.
    """

    topic: str
    producers: int
    numbered: int
    seen: int
    accounted: int
    waiting: int
    in_flight: int
    dead: int
    missing: int
    lost: list[Missing]


class Audit(Interceptor):
    """Number every message that a client sends, so that lost messages can be found.

    Pass an `rmq.Audit` to the clients of producers: `rmq.Client(url, interceptors=[rmq.Audit()])`.
    Consumers need no `rmq.Audit`. A worker whose client has `rmq.Audit(every=60.0)` audits its
    topics itself.

    Args:
        every: Interval between two audits of a topic, in seconds or as a timedelta. One worker of
            the topic does each audit. Default: workers do not audit.
        older_than: Minimum time since a message was accepted, in seconds or as a timedelta. Younger
            messages are not reported.
        on_missing: Function that is called with the result of an audit that found missing messages.

    Attributes:
        missing: Number of missing messages of each topic, from the last audits of this process.
    """

    def __init__(
        self,
        every: Duration | None = None,
        *,
        older_than: Duration = 60.0,
        on_missing: Callable[[AuditResult], object] | None = None,
    ) -> None:
        self.every_ms = None if every is None else duration_ms(every, "every", low_ms=1000)
        self.older_ms = duration_ms(older_than, "older_than", zero=True)
        self.on_missing = on_missing
        self.missing: dict[str, int] = {}

    def _make_sequence(self) -> ProducerSequence:
        return ProducerSequence()

    def report(self, topic: str, result: AuditResult | None) -> None:
        """Record the result of an audit. The result is None if another worker did the audit."""
        if result is None:
            self.missing.pop(topic, None)
            return
        self.missing[topic] = result.missing
        if result.missing:
            ranges = ", ".join(map(str, result.lost[:10])) + (
                ", ..." if len(result.lost) > 10 else ""
            )
            log.error(
                "topic %r: %d of %d numbered messages are missing: %s",
                topic, result.missing, result.numbered, ranges,
            )  # fmt: skip
            if self.on_missing is not None:
                call_hook(self.on_missing, result)
