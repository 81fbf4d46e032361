"""Drop dead letters past their topic's retention, the trash, and what a slot remembers for a time.

A topic keeps its dead letters for ever unless its setting `dead_retention` says otherwise. What is
dropped is counted (`dead_dropped`) and logged.
"""

from __future__ import annotations

import logging
import time

from rmq.errors import TopicNotFound, TopicVanished
from rmq.protocol.flows import tidy
from rmq.server.survey import Survey
from rmq.transport import Transport

log = logging.getLogger("rmq")

EVERY_S = 15.0
WITH_DEAD_S = 60.0  # between two looks at a topic that has dead letters and a retention
WITHOUT_S = 1200.0  # between two looks at any other topic: sessions and ids that were remembered


class Retention:
    """Tidies topics: those that have something to drop every minute, others seldom."""

    name = "retention"
    every_s = EVERY_S
    needs_leadership = True

    def __init__(self, transport: Transport, survey: Survey) -> None:
        self._transport = transport
        self._survey = survey
        self._tidied_at: dict[str, float] = {}  # by topic, by the monotonic clock

    def run_once(self) -> int:
        """Drop what is past its time; return how many dead letters."""
        topics, now, dropped = self._survey.topics, time.monotonic(), 0
        self._tidied_at = {name: at for name, at in self._tidied_at.items() if name in topics}
        for name, counts in topics.items():
            settings = counts.context.settings
            total = counts.total
            has_old = total["trash"] > 0 or (settings.dead_retention_ms > 0 and total["dead"] > 0)
            wait_s = WITH_DEAD_S if has_old else WITHOUT_S
            if now - self._tidied_at.get(name, -WITHOUT_S) < wait_s:
                continue
            try:
                count = self._transport.run(tidy.tidy(counts.context))
            except (TopicNotFound, TopicVanished) as error:
                log.debug("topic %r: %s", name, error)
                continue
            self._tidied_at[name] = now
            if count:
                log.info("topic %r: dropped %d dead letters past their retention", name, count)
            dropped += count
        return dropped
