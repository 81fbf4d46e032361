"""The audit: `rmq.Audit` numbers messages as they are sent, so that lost ones are found.

Scripts account for the number of a message when they remove it: when it is acked, cancelled, purged
or dropped. A number that is not accounted for, and that no message in any queue has, was lost.
`rmq.features.audit.flows` looks for such numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from rmq.kernel.core.interceptor import Interceptor, call_hook
from rmq.kernel.core.sequence import ProducerSequence
from rmq.kernel.core.validation import Duration, duration_ms

log = logging.getLogger("rmq")

RANGES_MAX = 1000  # ranges of missing numbers that a result names


class Missing(NamedTuple):
    """A range of numbers whose messages are missing.

    Attributes:
        producer: the producer that gave the numbers: 10 hex digits, of one client in one process.
        slot: the index of the slot.
        first: the first number.
        last: the last number.
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
        topic: the name of the topic.
        producers: how many producers numbered messages of the topic.
        numbered: messages that they reported as accepted.
        seen: numbers of messages that a consumer settled.
        accounted: numbers of messages that were merged, refused, cancelled, purged, expired,
            dropped or forgotten.
        waiting: numbered messages that wait.
        in_flight: numbered messages under a lease.
        dead: numbered messages that are dead letters.
        missing: numbers that were accepted, are not accounted for, and that no message has.
        lost: the missing numbers, in at most 1000 ranges.
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
    """Numbers every message that its clients send, so that lost ones are found.

    Give it to the clients of producers: `rmq.Client(url, interceptors=[rmq.Audit()])`. Consumers
    do not need it; a worker whose client has `rmq.Audit(every=60.0)` audits its topics itself.

    Args:
        every: how often the workers of a client audit their topics, together; seconds or
            timedelta; None: never.
        older_than: they report only messages that were accepted at least so long ago.
        on_missing: called with the result of such an audit if messages are missing.

    Attributes:
        missing: by topic, how many messages the last audit of a worker of this process missed.
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
        """Take note of the result of an audit; None: another worker did the audit."""
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
