"""Queries on a slot, for the tests of their scripts."""

from __future__ import annotations

from rmq.features.queries import scripts
from rmq.features.queries.scripts import QUERY_DEADLINE_S, QueryPage
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.consumer.scripts import QueryLease, QueryLog, QueryRollbackReply
from tests.lua.box import Box

RUN, OTHER_RUN = "a" * 32, "b" * 32
ME = QueryLease(RUN, "me:1", 600_000, 15_000)
EXACT = ME._replace(exact=True)
OTHER = QueryLease(OTHER_RUN, "other:1", 600_000, 15_000)
RIVAL = ME._replace(owner="rival:1")


def receipt(delivery: int, left: int = 16) -> float:
    """The score in the PrepareQueue of what a query holds."""
    return QUERY_DEADLINE_S * 1000 + left + delivery % 2048 / 2048


def take(box: Box, after: int = 0, limit: int = 10, holder: QueryLease = ME) -> QueryLog:
    return box.run(scripts.query_take(box.keys, holder, after, limit))


def read(box: Box, after: int = 0, upto: int = 100, limit: int = 10, run: str = RUN) -> QueryPage:
    return box.run(scripts.query_read(box.keys, run, after, upto, limit))


def lapse(box: Box, limit: int = 10, force: bool = False, run: str = RUN) -> QueryRollbackReply:
    return box.run(consumer_scripts.query_rollback(box.keys, run, limit, force))


def log(box: Box, run: str = RUN) -> dict[bytes, int]:
    """Return the ids that the query holds, each with its number."""
    state = box.state()
    ids: list[bytes] = state.get(f"querylog:{run}", [])
    first = int(state[f"query:{run}"][b"tail"]) - len(ids) + 1 if ids else 0
    return {id: first + place for place, id in enumerate(ids)}
