"""The background work of `rmq server` that sends the messages of schedules in every topic."""

from __future__ import annotations

import time

from rmq.features.schedules.dispatch import POLL_S, Dispatch
from rmq.kernel.core.codec import JSON
from rmq.kernel.handlers.handler import Handlers
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport.single.blocking import Transport


class Schedules:
    """Sends the due messages of schedules. Several servers together send each message only once."""

    name = "schedules"
    # Any server may send, because the script sends each message only once. So messages do not wait
    # for a leader.
    needs_leadership = False

    def __init__(self, transport: Transport, prefix: str) -> None:
        sessions = ReplaySessions()
        self._dispatch = Dispatch(
            prefix, transport, Handlers(),
            make_context=lambda name: TopicContext(prefix, name, JSON, sessions, {}),
        )  # fmt: skip
        self._due_at: dict[str, float] = {}  # next due time by topic, on the monotonic clock

    @property
    def every_s(self) -> float:
        """Seconds until the next schedule is due, at most POLL_S."""
        wait_s = min(self._due_at.values(), default=float("inf")) - time.monotonic()
        return max(0.0, min(POLL_S, wait_s))

    def run_once(self) -> int:
        """Send due messages. Return the number of messages."""
        sent, waits = self._dispatch.send_due()
        now = time.monotonic()
        self._due_at = {topic: now + wait_s for topic, wait_s in waits.items()}
        return sent
