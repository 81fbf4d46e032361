"""The background work of `rmq server` that reads the queries of all topics for `/metrics`."""

from __future__ import annotations

import time
from typing import NamedTuple

from rmq.features.spark import held
from rmq.features.spark.held import HeldQuery
from rmq.http_framework.survey import Survey, SurveyedService, TopicCounts
from rmq.kernel.transport.single.blocking import Transport

EVERY_S = 5.0
WITHOUT_S = 600.0  # time between two reads of a topic without messages in flight
PER_TOPIC = 50  # maximum number of queries that are read of a topic


class _Look(NamedTuple):
    at: float  # time of the reading, by the monotonic clock
    delivered: int
    has_queries: bool


class Queries(SurveyedService):
    """Reads the queries of all topics each time that the server has read the message counts.

    A topic without queries and without messages in flight costs no extra command. The server finds
    a new query when the query takes its first message, or after at most ten minutes.

    Attributes:
        held: Queries by topic. Topics without queries are omitted.
    """

    name = "queries"
    every_s = EVERY_S

    def __init__(self, transport: Transport, survey: Survey) -> None:
        super().__init__(transport, survey)
        self._seen = -1  # number of the last reading of counts that was handled
        self._looks: dict[str, _Look] = {}
        self.held: dict[str, list[HeldQuery]] = {}

    def run_once(self) -> int:
        """Read the streaming queries of all topics. Return the number of queries."""
        seen, topics, now = self._survey.passes, self._survey.topics, time.monotonic()
        if seen == self._seen:
            return 0
        looks = {name: look for name, look in self._looks.items() if name in topics}
        asked = {
            name: counts
            for name, counts in topics.items()
            if self._may_have_some(looks.get(name), counts, now)
        }
        found = self._transport.run(held.watch(asked.values(), PER_TOPIC))
        for name, counts in asked.items():
            looks[name] = _Look(now, counts.total["delivered"], name in found)
        self.held, self._looks, self._seen = found, looks, seen
        return sum(map(len, found.values()))

    def _may_have_some(self, look: _Look | None, counts: TopicCounts, now: float) -> bool:
        total = counts.total
        return (
            look is None
            or look.has_queries
            or total["in_flight"] > 0
            or total["delivered"] != look.delivered
            or now - look.at >= WITHOUT_S
        )
