"""Build the commands that read results, and that store the progress and the steps of deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from rmq.kernel.core.ids import member_of, members_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import clock
from rmq.kernel.transport.flow.steps import Command, script_call

RESULT_MAX = 1000  # messages in one call of `result`
_PLACES = {"s": "waiting", "p": "in_flight", "d": "dead", "g": "gone"}


class ResultReply(NamedTuple):
    """The reply to the script `result` about one message.

    Attributes:
        place: "waiting", "in_flight", "dead" (even if it is in the trash), or "gone".
        keeps: Whether the message's record says that the result is kept. False if the record is
            gone.
        entry: Encoded result, or encoded progress of a message that waits or is in flight. Empty if
            there is no result and no progress. `entry.decode` decodes the bytes.
        until_ms: Time until which the result is kept, epoch ms, or 0 if there is no result.
    """

    place: str
    keeps: bool
    entry: bytes
    until_ms: int


class ProgressReply(IntEnum):
    """The reply to the script `progress`, which stores the progress of a handler.

    If the reply is not STORED, the progress was not stored.
    """

    LOST = 0  # the lease has expired, or the delivery is settled
    STORED = 1
    NOT_KEPT = 2  # the message keeps no result
    CANCELLED = 3  # the cancellation of the delivery was requested


def result(keys: SlotKeys, ids: Sequence[bytes]) -> Command[list[ResultReply]]:
    """Read the results of up to RESULT_MAX messages of one slot.

    The reply is limited to about 1 MiB, so it may have fewer items than `ids`, but at least one.
    Call the function again for the remaining ids.
    """

    def parse(reply: list[Any]) -> list[ResultReply]:
        rows = zip(reply[::4], reply[1::4], reply[2::4], reply[3::4], strict=True)
        return [
            ResultReply(_PLACES[letter.decode()], keeps == 1, entry, until_ms)
            for letter, keeps, entry, until_ms in rows
        ]

    return script_call("result", keys, [clock.now_us, *members_of(ids)], parse)


def progress(keys: SlotKeys, id: bytes, receipt: float, details: bytes) -> Command[ProgressReply]:
    """Store the progress of a delivery.

    The argument `details` is the progress as `entry.encode_progress` returns it.
    """
    return script_call(
        "progress", keys, [clock.now_us, member_of(id), repr(receipt), details], ProgressReply
    )


class StepCode(IntEnum):
    """The code of a reply to the script `step`, which stores a step of a handler.

    If the code is not STORED, nothing was changed.
    """

    LOST = 0  # the lease has expired, or the delivery is settled
    STORED = 1
    DONE = 2  # the step is done already
    CANCELLED = 3  # the cancellation of the delivery was requested
    FULL = 4  # the steps of the message have no room for more


class StepReply(NamedTuple):
    """The reply to the script `step`, which stores a step of a handler.

    The reply has a code. If the call requested them, it also has the steps before the call.
    """

    code: StepCode
    entry: bytes


def step(
    keys: SlotKeys, id: bytes, receipt: float, item: tuple[bytes, bytes, bytes], most: int,
    wants_entry: bool = False,
) -> Command[StepReply]:  # fmt: skip
    """Store a finished part (step) of a handler's work, or the position that the handler saved.

    The argument `item` has the state, the name and the data of the step or cursor. If the state is
    empty, the call only reads.
    """
    args = [clock.now_us, member_of(id), repr(receipt), *item, most, "1" if wants_entry else ""]
    return script_call("step", keys, args, lambda reply: StepReply(StepCode(reply[0]), reply[1]))
