"""A batch under test: its keys and its commands."""

from __future__ import annotations

from typing import Any

from rmq.kernel.batches import scripts
from rmq.kernel.batches.scripts import COUNTS_BYTES
from rmq.kernel.core.ids import MessageId, make, member_of
from rmq.kernel.core.results import BATCH_MARK
from tests.lua.box import Box

NAME = "import-7"
TARGET = "done:1"
HEAD = b"\x20\x00\x00\xc8"  # JSON, priority 200
CALLBACK_ID = MessageId(bytes(range(1, 17)))
COUNTS_AT = 13 + 4 + 3
CALLBACK = member_of(CALLBACK_ID) + HEAD + b"abc" + b"0" * COUNTS_BYTES + b"body"


def open_batch(box: Box, dead: str = "count", timeout_ms: int = 0, **given: Any) -> Any:
    options: dict[str, Any] = {"callback": CALLBACK, "counts_at": COUNTS_AT, "target": TARGET}
    options |= {"keep_ms": 60_000} | given
    return box.run(
        scripts.batch_open(
            box.keys, NAME, options["target"], options["callback"], options["counts_at"], dead,
            timeout_ms, options["keep_ms"],
        )
    )  # fmt: skip


def ids(count: int = 1) -> list[MessageId]:
    return make(0, 7, count)


def add(box: Box, given: list[MessageId], topic: str = "rows", by: str = "") -> Any:
    return box.run(scripts.batch_add(box.keys, NAME, topic, given, by))


def end(box: Box, *pairs: tuple[MessageId, str], touched_ms: int | None = None) -> Any:
    """Report ends. Return the state of the batch, and its number of open members."""
    ends = [(str(id), letter) for id, letter in pairs]
    reply = box.run(scripts.batch_end(box.keys, NAME, ends, touched_ms))
    return reply[:2]


def close(box: Box, cancelled: bool = False) -> Any:
    return box.run(scripts.batch_close(box.keys, NAME, cancelled))


def fields(box: Box) -> dict[str, str]:
    """The fields of the batch."""
    found = box.redis.hgetall(box.keys.batch(NAME))
    return {name.decode(): value.decode("latin-1") for name, value in found.items()}


def pending(box: Box) -> list[bytes]:
    """The pending entries of the slot, without their numbers."""
    found = box.redis.zrange(box.keys.pending, 0, -1)
    return [entry.split(b":", 3)[0] + b":" + entry.split(b":", 3)[3] for entry in found]


def called(*counts: int, cancelled: bool = False) -> bytes:
    """The pending entry of the callback with these counts, in the order of OUTCOMES."""
    numbers = [*counts, *([0] * (8 - len(counts))), int(cancelled)]
    text = b"".join(b"%010d" % number for number in numbers)
    return b"done:" + CALLBACK[:COUNTS_AT] + text + CALLBACK[COUNTS_AT + COUNTS_BYTES :]


def mark(box: Box, id: MessageId) -> dict[str, str]:
    """The headers of a member whose batch is in the slot of the box."""
    return {BATCH_MARK: f"{box.handle.name} {box.index} {NAME} {id}"}
