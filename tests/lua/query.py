"""Queries on a slot, for the tests of their scripts."""

from __future__ import annotations

from typing import Any

from rmq.protocol.commands import query as query_commands
from rmq.protocol.commands.query import FAR_S, Holder, Lapsed, Log, Page
from tests.lua.box import Box

RUN, OTHER_RUN = "a" * 32, "b" * 32
ME = Holder(RUN, "me:1", 600_000, 15_000)
EXACT = ME._replace(exact=True)
OTHER = Holder(OTHER_RUN, "other:1", 600_000, 15_000)
RIVAL = ME._replace(owner="rival:1")


def receipt(delivery: int, left: int = 16) -> float:
    """The score in the PrepareQueue of what a query holds."""
    return FAR_S * 1000 + left + delivery % 2048 / 2048


def taking(box: Box, after: int = 0, limit: int = 10, holder: Holder = ME) -> Any:
    return query_commands.take(box.keys, holder, after, limit)


def take(box: Box, after: int = 0, limit: int = 10, holder: Holder = ME) -> Log:
    return box.run(taking(box, after, limit, holder))


def read(box: Box, after: int = 0, upto: int = 100, limit: int = 10, run: str = RUN) -> Page:
    return box.run(query_commands.read(box.keys, run, after, upto, limit))


def lapse(box: Box, limit: int = 10, force: bool = False, run: str = RUN) -> Lapsed:
    return box.run(query_commands.lapse(box.keys, run, limit, force))


def log(box: Box, run: str = RUN) -> dict[bytes, int]:
    """What the query holds, and its numbers."""
    state = box.state()
    ids: list[bytes] = state.get(f"querylog:{run}", [])
    first = int(state[f"query:{run}"][b"tail"]) - len(ids) + 1 if ids else 0
    return {id: first + place for place, id in enumerate(ids)}
