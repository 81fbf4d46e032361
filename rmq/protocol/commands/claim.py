"""Builders and readers for the scripts of claims; `rmq.commands` passes them on."""

from __future__ import annotations

from collections.abc import Sequence

from rmq.core.keys import SlotKeys
from rmq.core.replies import claimed
from rmq.protocol import scripts
from rmq.protocol.command import Command, now


def _claims(keys: SlotKeys, names: Sequence[bytes]) -> list[bytes]:
    return [keys.claim_stem + name for name in names]


def _yes(reply: bytes) -> list[bool]:
    return [letter == ord("1") for letter in reply]


def claim(
    keys: SlotKeys, names: Sequence[bytes], owners: Sequence[bytes], hold_ms: int
) -> Command[list[tuple[str, int, int]]]:
    """Take claims of one slot, each for its owner.

    Answers for each: "first", it is the owner's; "done"; or "busy", with the ms since another
    owner claimed it and the ms until that claim ends.
    """
    return Command(scripts.load("claim"), _claims(keys, names), [now(), hold_ms, *owners], claimed)


def renew(
    keys: SlotKeys, names: Sequence[bytes], owners: Sequence[bytes], hold_ms: int
) -> Command[list[bool]]:
    """Hold claims for longer; for each, whether it is still its owner's."""
    return Command(scripts.load("renew"), _claims(keys, names), [hold_ms, *owners], _yes)


def finish(
    keys: SlotKeys, names: Sequence[bytes], owners: Sequence[bytes], ttls_ms: Sequence[int]
) -> Command[list[bool]]:
    """Mark claims as consumed, to be remembered so long; for each, whether its owner did."""
    return Command(scripts.load("finish"), _claims(keys, names), [now(), *owners, *ttls_ms], _yes)


def unclaim(keys: SlotKeys, names: Sequence[bytes], owners: Sequence[bytes]) -> Command[list[bool]]:
    """Let go of claims that are being consumed; for each, whether it was its owner's."""
    return Command(scripts.load("unclaim"), _claims(keys, names), list(owners), _yes)
