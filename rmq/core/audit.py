"""The loss audit: `rmq.Audit` numbers what is sent; what is missing later can then be told.

An accepted message has a number until it is acked, cancelled, purged, or dropped as its topic says;
the scripts account for it as they remove it. A number that is not accounted for, and that no
message in any queue has, was lost. `rmq.protocol.flows.audit` looks for such.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from rmq.core.interceptor import Interceptor, call_hook
from rmq.core.sequence import ProducerSequence
from rmq.core.validation import Duration, duration_ms

log = logging.getLogger("rmq")

RANGES_MAX = 1000  # ranges of missing numbers that a result names


class Missing(NamedTuple):
    """Numbers in a row that are missing.

    Attributes:
        producer: who numbered them: 10 hex digits, of one client in one process.
        slot: the index of the slot.
        first: the first of them.
        last: the last of them.
    """

    producer: str
    slot: int
    first: int
    last: int

    def __str__(self) -> str:
        several = f"-{self.last}" if self.last > self.first else ""
        return f"{self.producer}.{self.first}{several} (slot {self.slot})"


class Audited(NamedTuple):
    """What an audit of a topic found.

    Attributes:
        topic: its name.
        producers: how many are known to have numbered messages of it.
        numbered: messages that they have told were accepted.
        seen: of all numbers, settled by a consumer.
        accounted: merged into others, refused, cancelled, purged, expired, dropped, forgotten.
        waiting: numbered messages in the StoreQueue.
        in_flight: in the PrepareQueue.
        dead: in the DeadQueue.
        missing: numbers that were accepted, are not accounted for, and that no message has.
        lost: which ones, in ranges; at most 1000 of them.
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
    """Numbers every message that its clients send, so that lost ones are noticed.

    Give it to the clients of producers: `rmq.Client(url, interceptors=[rmq.Audit()])`. Consumers
    need none; a worker whose client has `rmq.Audit(every=60.0)` audits its topics by itself.

    Args:
        every: how often the workers of a client audit their topics, together; seconds or
            timedelta; None: never.
        older_than: what they report was accepted at least so long ago.
        on_missing: called with what such an audit found where messages are missing.

    Attributes:
        missing: by topic, what the last audit of a worker of this process found missing.
    """

    def __init__(
        self,
        every: Duration | None = None,
        *,
        older_than: Duration = 60.0,
        on_missing: Callable[[Audited], object] | None = None,
    ) -> None:
        self.every_ms = None if every is None else duration_ms(every, "every", low_ms=1000)
        self.older_ms = duration_ms(older_than, "older_than", zero=True)
        self.on_missing = on_missing
        self.missing: dict[str, int] = {}

    def _make_sequence(self) -> ProducerSequence:
        return ProducerSequence()

    def report(self, topic: str, found: Audited | None) -> None:
        """Take note of what an audit found; None: another worker has seen to it."""
        if found is None:
            self.missing.pop(topic, None)
            return
        self.missing[topic] = found.missing
        if found.missing:
            shown = ", ".join(map(str, found.lost[:10])) + (", ..." if len(found.lost) > 10 else "")
            log.error(
                "topic %r: %d of %d numbered messages are missing: %s",
                topic, found.missing, found.numbered, shown,
            )  # fmt: skip
            if self.on_missing is not None:
                call_hook(self.on_missing, found)
