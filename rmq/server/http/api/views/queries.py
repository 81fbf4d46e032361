"""Queries, sinks and claims as they are shown."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from rmq.protocol.flows.query_admin import HeldQuery, Sink
from rmq.server.http.api.views.answer import Answer


class QueryList(Answer):
    """Queries that hold messages of a topic."""

    queries: list[HeldQuery]


class SinkList(Answer):
    """The last batch that each query has published to a topic."""

    sinks: list[Sink]


class Claim(Answer):
    """The claim on a business key."""

    state: Literal["consuming", "consumed"]
    message_id: str
    delivery: int
    since: datetime
    left_s: float | None
