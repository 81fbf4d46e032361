"""Commands that take, renew, finish and give up claims on business keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq.core.keys import SlotKeys
from rmq.protocol import clock, scripts
from rmq.protocol.steps import Command

_STATES = {"f": "first", "d": "done", "b": "busy"}


def _claim_keys(keys: SlotKeys, names: Sequence[bytes]) -> list[bytes]:
    return [keys.claim_stem + name for name in names]


def _claim_reply(reply: list[Any]) -> list[tuple[str, int, int]]:
    times = list(zip(reply[1::2], reply[2::2], strict=True))[::-1]
    return [
        (_STATES[letter], *(times.pop() if letter == "b" else (0, 0)))
        for letter in reply[0].decode()
    ]


def _booleans(reply: bytes) -> list[bool]:
    return [letter == ord("1") for letter in reply]


def claim(
    keys: SlotKeys, names: Sequence[bytes], owners: Sequence[bytes], hold_ms: int
) -> Command[list[tuple[str, int, int]]]:
    """Take claims of one slot, each for its owner.

    The value of each: "first", it is the owner's; "done"; or "busy", with the ms since another
    owner claimed it and the ms until that claim ends.
    """
    return Command(
        scripts.load("claim"),
        _claim_keys(keys, names),
        [clock.now_us, hold_ms, *owners],
        _claim_reply,
    )


def renew(
    keys: SlotKeys, names: Sequence[bytes], owners: Sequence[bytes], hold_ms: int
) -> Command[list[bool]]:
    """Hold claims for longer; for each, whether it is still its owner's."""
    return Command(scripts.load("renew"), _claim_keys(keys, names), [hold_ms, *owners], _booleans)


def finish(
    keys: SlotKeys, names: Sequence[bytes], owners: Sequence[bytes], ttls_ms: Sequence[int]
) -> Command[list[bool]]:
    """Mark claims as consumed for their time to live; for each, whether it was its owner's."""
    return Command(
        scripts.load("finish"),
        _claim_keys(keys, names),
        [clock.now_us, *owners, *ttls_ms],
        _booleans,
    )


def unclaim(keys: SlotKeys, names: Sequence[bytes], owners: Sequence[bytes]) -> Command[list[bool]]:
    """Give up claims that are being consumed; for each, whether it was its owner's."""
    return Command(scripts.load("unclaim"), _claim_keys(keys, names), list(owners), _booleans)
