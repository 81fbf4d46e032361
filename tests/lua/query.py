"""Queries on a slot, for the tests of their scripts."""

from __future__ import annotations

from typing import NamedTuple

from rmq.features.spark import scripts
from rmq.features.spark.scripts import QUERY_DEADLINE_S, QueryLog
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.consumer.scripts import QueryLease, QueryRollbackReply
from rmq.kernel.core.ids import MEMBER_SIZE, ids_of
from tests.lua.box import Box

RUN, OTHER_RUN = "a" * 32, "b" * 32
ME = QueryLease(RUN, "me:1", 600_000, 15_000)
EXACT = ME._replace(exact=True)
OTHER = QueryLease(OTHER_RUN, "other:1", 600_000, 15_000)
RIVAL = ME._replace(owner="rival:1")


class Page(NamedTuple):
    """What query_read returned, with the number and the id of each message."""

    numbers: list[int]
    ids: list[bytes]
    receipts: list[float]
    records: list[bytes]


def receipt(delivery: int, left: int = 16, page: int = 1) -> float:
    """The score in the PrepareQueue of what a query holds; `delivery`: the first of its page."""
    return (QUERY_DEADLINE_S + page) * 1000 + left + delivery % 2048 / 2048


def renew(
    box: Box,
    holder: QueryLease = ME,
    after: int = 0,
    upto: int = 100,
    owns: bool = True,
    report: bytes = b"",
) -> QueryLog:
    return box.run(scripts.query_renew(box.keys, holder, after, upto, owns, report))


def take(
    box: Box, after: int = 0, limit: int = 10, holder: QueryLease = ME, most_bytes: int = 0
) -> QueryLog:
    """Take as a query does: a process becomes the owner before it takes."""
    state = box.state().get(f"query:{holder.run}", {})
    if state.get(b"owner") is None or state[b"exact"] != b"%d" % holder.exact:
        renew(box, holder)
    return box.run(scripts.query_take(box.keys, holder, after, limit, most_bytes))


def read(
    box: Box,
    after: int = 0,
    upto: int = 100,
    limit: int = 10,
    run: str = RUN,
    records: bool = True,
    bytes_read: int = 0,
) -> Page:
    page = box.run(scripts.query_read(box.keys, run, after, upto, limit, records, bytes_read))
    at = range(0, len(page.members), MEMBER_SIZE)
    members = [page.members[n : n + MEMBER_SIZE] for n in at]
    numbers = list(range(page.after + 1, page.after + 1 + len(members)))
    return Page(numbers, ids_of(members, box.keys.middle), page.receipts, page.records)


def lapse(box: Box, limit: int = 10, force: bool = False, run: str = RUN) -> QueryRollbackReply:
    return box.run(consumer_scripts.query_rollback(box.keys, run, limit, force))


def log(box: Box, run: str = RUN) -> dict[bytes, int]:
    """Return the ids that the query holds, each with its number."""
    state = box.state()
    ids: list[bytes] = state.get(f"querylog:{run}", [])
    first = int(state[f"query:{run}"][b"tail"]) - len(ids) + 1 if ids else 0
    return {id: first + place for place, id in enumerate(ids)}
