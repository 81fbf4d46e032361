"""Build the commands for batches. `lua/lib/batches/batch.lua` describes the data in Redis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import clock
from rmq.kernel.transport.flow.steps import Command, script_call
from rmq.kernel.transport.lua import script_loader

ADD_MAX = 400  # ids of one call of `batch_add`
END_MAX = 250  # ends of one call of `batch_end` or `member_ends`: about 0.5 ms of Redis
OPEN, WAITS, NEW, NOT_A_MEMBER, NOT_FOUND = ".", "!", "n", "x", "l"
OUTCOMES: Mapping[str, str] = {
    "s": "succeeded",
    "h": "handed_over",
    "d": "dead",
    "c": "cancelled",
    "e": "expired",
    "p": "purged",
    "o": "dropped",
    "l": "lost",
}
STATES = {"o": "open", "c": "closed", "d": "done"}
COUNT_DIGITS = 10
COUNTS_BYTES = COUNT_DIGITS * (len(OUTCOMES) + 1)  # of the counts in the callback
_FIELDS = (
    "#state", "#open", "#all", "#topics", "#target", "#dead", "#cancelled", "#created", "#touched",
    "#ended", "#timeout", "#keep", *(f"#{letter}" for letter in OUTCOMES),
)  # fmt: skip


class OpenReply(NamedTuple):
    """The reply to the script `batch_open`, which creates a batch."""

    created: bool
    state: str
    dead: str
    target: str  # slot of the callback: `<topic>:<index>`


class CloseReply(NamedTuple):
    """The reply to the script `batch_close`, which closes a batch.

    The states are empty if the batch does not exist.
    """

    before: str
    state: str
    open: int


class EndReply(NamedTuple):
    """The reply to the script `batch_end`, which records how members of a batch have ended.

    The state is empty if the batch does not exist.
    """

    state: str
    open: int
    ended: int  # number of members that have ended in this call


class AddReply(NamedTuple):
    """The reply to the script `batch_add`, which adds messages to a batch.

    Attributes:
        state: State of the batch. Empty if the batch does not exist.
        codes: One letter for each message. NEW, OPEN and WAITS are constants of this module. Any
            other letter says how the member has ended. If the batch is closed, `letters` is empty
            and nothing was added.
    """

    state: str
    codes: str


def batch_open(
    keys: SlotKeys,
    name: str,
    target: str,
    callback: bytes,
    counts_at: int,
    dead: str,
    timeout_ms: int,
    keep_ms: int,
) -> Command[OpenReply]:
    """Create a batch, or read the existing batch of this name."""
    return Command(
        script_loader.load("batch_open"),
        (keys.slot, keys.batch(name)),
        [clock.now_us, target, callback, counts_at, dead, timeout_ms, keep_ms],
        lambda reply: OpenReply(
            reply[0] == 1, reply[1].decode(), reply[2].decode(), reply[3].decode()
        ),
    )


def batch_add(
    keys: SlotKeys, name: str, topic: str, ids: Iterable[MessageId], by: str = ""
) -> Command[AddReply]:
    """Add messages to a batch, at most ADD_MAX in one call.

    If a member of the batch adds the messages, the argument `by` is the id of this member.
    """
    return Command(
        script_loader.load("batch_add"),
        (keys.slot, keys.batch(name)),
        [clock.now_us, topic, by, *map(str, ids)],
        lambda reply: AddReply(reply[0].decode(), reply[1].decode()),
    )


def batch_close(keys: SlotKeys, name: str, cancelled: bool = False) -> Command[CloseReply]:
    """Close a batch of messages. If `cancelled` is True, also record that it was cancelled."""
    return Command(
        script_loader.load("batch_close"),
        (keys.slot, keys.batch(name), keys.pending, keys.targets),
        [clock.now_us, int(cancelled)],
        lambda reply: CloseReply(reply[0].decode(), reply[1].decode(), reply[2]),
    )


def batch_end(
    keys: SlotKeys, name: str, ends: Sequence[tuple[str, str]], touched_ms: int | None = None
) -> Command[EndReply]:
    """Report to a batch how members have ended, at most END_MAX members in one call.

    Each pair in `ends` has a message id and a letter. If `touched_ms` is given, Redis records the
    ends only if the batch has not changed since this time.
    """
    touched = "" if touched_ms is None else touched_ms
    return Command(
        script_loader.load("batch_end"),
        (keys.slot, keys.batch(name), keys.pending, keys.targets),
        [clock.now_us, touched, *(text for pair in ends for text in pair)],
        lambda reply: EndReply(reply[0].decode(), reply[1], reply[2]),
    )


def member_ends(
    keys: SlotKeys, reported: Iterable[tuple[bytes, bytes]], limit: int
) -> Command[list[tuple[bytes, bytes]]]:
    """Return how members of batches have ended, as a slot has recorded it.

    The call first deletes the records that the caller has already reported to the batches.
    """

    def parse(reply: list[bytes]) -> list[tuple[bytes, bytes]]:
        return list(zip(reply[::2], reply[1::2], strict=True))

    args = [clock.now_us, limit, *(text for pair in reported for text in pair)]
    return script_call("member_ends", keys, args, parse)


class BatchFields(NamedTuple):
    """The fields of a batch."""

    state: str
    open: int
    all: int
    topics: tuple[str, ...]
    target: str
    dead: str
    cancelled: bool
    created_ms: int
    touched_ms: int
    ended_ms: int
    timeout_ms: int
    keep_ms: int
    counts: dict[str, int]  # by the names in OUTCOMES


def read_batch(keys: SlotKeys, name: str) -> Command[BatchFields | None]:
    """Read the fields of a batch. The result is None if the batch does not exist."""
    return Command(script_loader.plain("HMGET"), (keys.batch(name),), _FIELDS, fields_of)


def fields_of(reply: Sequence[bytes | None]) -> BatchFields | None:
    """Decode the fields of a batch, or return None if the batch does not exist."""
    if reply[0] is None:
        return None
    texts = [(value or b"").decode("utf-8", "replace") for value in reply]
    numbers = [int(text) if text.isdigit() else 0 for text in texts]
    counts = dict(zip(OUTCOMES.values(), numbers[12:], strict=True))
    return BatchFields(
        texts[0], numbers[1], numbers[2], tuple(texts[3].split()), texts[4], texts[5],
        texts[6] == "1", numbers[7], numbers[8], numbers[9], numbers[10], numbers[11],
        counts,
    )  # fmt: skip


def counts_of(text: str) -> tuple[dict[str, int], bool]:
    """Read the counts that a callback message has.

    Returns:
        Number of members by outcome, and whether the batch was cancelled.
    """
    numbers = [int(text[at : at + COUNT_DIGITS]) for at in range(0, len(text), COUNT_DIGITS)]
    return dict(zip(OUTCOMES.values(), numbers, strict=False)), bool(numbers[-1])
