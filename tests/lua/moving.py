"""Dead letters on their way to another topic: shared by the tests of the three scripts."""

from __future__ import annotations

from typing import Any

from rmq.features.dead_letters import scripts
from rmq.features.dead_letters.scripts import Arrival
from rmq.kernel.core.ids import member_of
from tests.lua.box import Box

TOKEN, ANOTHER = b"token 01", b"token 02"


def bury(box: Box, count: int = 1, **options: Any) -> list[bytes]:
    given = box.send(count, **options)
    box.clock.advance(1)
    box.reject(*box.take(count))
    return given


def hold(box: Box, *ids: bytes, token: bytes = TOKEN, to: str = "other", slot: int = 3) -> Any:
    return box.run(scripts.redrive_hold(box.keys, token, to, ids, [slot] * len(ids)))


def entry(id: bytes, token: bytes = TOKEN) -> bytes:
    return member_of(id) + token


def arrival(box: Box, id: bytes, token: bytes = TOKEN, **options: Any) -> Arrival:
    return Arrival(entry(id, token), *box.part(**options))


def send(box: Box, *arrivals: Arrival, notes_refusals: bool = True) -> str:
    reply = box.run(scripts.redrive_send(box.handle, box.keys, arrivals, notes_refusals))
    assert reply.now_ms == box.clock.now_ms
    return str(reply.codes)


def settle(box: Box, *outcomes: tuple[bytes, bool]) -> str:
    return str(box.run(scripts.redrive_settle(box.keys, box.session(), outcomes)))
