"""lib/settle/attempts.lua on a real server: what is kept of attempts, and how Python reads it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgpack
import pytest
import redis

from rmq.features.dead_letters import scripts
from rmq.features.spark import scripts as queries_scripts
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.core import failure
from rmq.kernel.core.ids import member_of
from tests.lua.box import Box
from tests.lua.failures import failure as encoded, item
from tests.lua.query import EXACT, RUN, lapse, take

ITEMS_MOST, HISTORY_BYTES = 50, 8192


def told(error: str, frames: str = "frames\n", worker: str = "w:1") -> bytes:
    """Return an error as a consumer sends it."""
    return msgpack.packb([error, f"{frames}{error}\n", worker])


def fail(box: Box, error: bytes = b"why") -> int:
    """Nack the next message; return when, epoch ms."""
    box.nack(box.take_one(), told=error)
    at = box.clock.now_ms
    box.clock.advance(1)
    return at


def die(box: Box, errors: list[bytes]) -> None:
    """Nack the only message until it is dead, with these errors in turn."""
    for error in errors:
        fail(box, error)


def redrive(box: Box, id: bytes) -> None:
    assert box.run(scripts.redrive(box.handle, box.keys, box.session(), [id])) == "1"


def entry_of(box: Box, id: bytes) -> bytes:
    return box.state()["failures"][id]


def history_size(entry: bytes) -> int:
    """Return the bytes of the items of an entry that has some."""
    assert entry[3] & 1
    return int.from_bytes(entry[13:15], "big")


def read(box: Box, id: bytes) -> list[tuple[int | None, str, str, str, str]]:
    return [
        (x.number, x.reason, x.error, x.traceback, x.worker)
        for x in failure.attempts(entry_of(box, id))
    ]


def test_equal_failures_are_kept_as_eight_bytes_each(box):
    id = box.one()
    times = [fail(box, told("KeyError: 'a'")) for _ in range(3)]

    entry = entry_of(box, id)

    items = [item("f", at) for at in reversed(times[:-1])]
    assert entry == box.failure(14, 3, "f", told("KeyError: 'a'"), at=times[-1], items=items)
    assert history_size(entry) == 2 * 8
    assert [round(x.at.timestamp() * 1000) for x in failure.attempts(entry)] == times[::-1]
    frames = "frames\nKeyError: 'a'\n"
    assert read(box, id) == [(n, "failed", "KeyError: 'a'", frames, "w:1") for n in (3, 2, 1)]


def test_attempts_with_errors_of_their_own_share_frames_and_worker(box):
    id = box.one()
    times = [fail(box, told(f"Timeout: {n} s")) for n in (30, 31)]

    items = [item("f", times[0], 4 + 16, b"Timeout: 30 s")]
    assert entry_of(box, id) == box.failure(
        15, 2, "f", told("Timeout: 31 s"), at=times[1], items=items
    )
    assert read(box, id) == [
        (2, "failed", "Timeout: 31 s", "frames\nTimeout: 31 s\n", "w:1"),
        (1, "failed", "Timeout: 30 s", "frames\nTimeout: 30 s\n", "w:1"),
    ]


def test_attempts_that_differ_in_all_keep_all(box):
    id = box.one()
    at = fail(box, told("A: 1", "one\n", "a:1"))
    fail(box, told("B: 2", "two\n", "b:2"))

    assert item("f", at, 0, b"A: 1", b"one\nA: 1\n", b"a:1") in entry_of(box, id)
    assert read(box, id) == [
        (2, "failed", "B: 2", "two\nB: 2\n", "b:2"),
        (1, "failed", "A: 1", "one\nA: 1\n", "a:1"),
    ]


def test_the_error_before_the_last_is_cut_at_its_end_and_its_traceback_at_its_beginning(box):
    id = box.one()
    fail(box, msgpack.packb(["e" * 1025, "x" + "t" * 2048, "w" * 257]))
    assert [len(part) for part in read(box, id)[0][2:]] == [1025, 2049, 257]
    fail(box, told("B"))

    assert read(box, id)[1][2:] == ("e" * 1024, "t" * 2048, "w" * 256)


@pytest.mark.parametrize("size", [1024, 1025])
def test_a_long_error_at_the_end_of_a_traceback_is_read_as_it_was(box, size):
    id = box.one()
    fail(box, told("a" * size, "f" * 900))
    fail(box, told("b" * size, "f" * 900))
    fail(box, told("c" * size, "g" * 900))

    newest, second, third = read(box, id)
    assert newest[2:4] == ("c" * size, "g" * 900 + "c" * size + "\n")
    assert second[2:4] == ("b" * 1024, "f" * 900 + "b" * size + "\n")
    assert third[2:4] == ("a" * 1024, "f" * 900 + "a" * size + "\n")


def test_a_cut_inside_of_a_character_loses_that_character_alone(box):
    id = box.one()
    fail(box, msgpack.packb(["x" + "ä" * 600, "ä" * 1100 + "x", ""]))
    fail(box, told("B"))

    assert read(box, id)[1][2:4] == ("x" + "ä" * 511, "ä" * 1023 + "x")


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xc1",
        b"\x05",
        b"\x93\x01\x02\x03",
        b"\x92\xa5ab",
        b"\xc1\x01" + b"\xff" * 30,
        b"\x80",
    ],
)
def test_errors_that_are_no_msgpack_are_kept_and_harm_nothing(box, garbage):
    id = box.one()
    fail(box, garbage)
    fail(box, told("B"))
    fail(box, garbage)
    fail(box, garbage)

    assert [x.number for x in failure.attempts(entry_of(box, id))] == [4, 3, 2, 1]
    assert read(box, id)[2][2] == "B"
    assert failure.decode(entry_of(box, id)).deliveries == 4


def test_items_are_bounded_in_bytes_and_the_oldest_go(box):
    id = box.one()
    die(box, [told(f"E{n}", str(n) * 1500) for n in range(10, 27)])

    attempts = failure.attempts(entry_of(box, id))

    assert HISTORY_BYTES - 3400 < history_size(entry_of(box, id)) <= HISTORY_BYTES
    assert [x.number for x in attempts] == [17, 16, 15, 14]
    assert [x.error for x in attempts] == ["E26", "E25", "E24", "E23"]


def test_items_are_bounded_in_number_over_redrives(box):
    id = box.one()
    for _ in range(4):
        die(box, [told("E")] * 17)
        redrive(box, id)
    die(box, [told("E")] * 2)

    attempts = failure.attempts(entry_of(box, id))

    assert len(attempts) == ITEMS_MOST + 1
    assert history_size(entry_of(box, id)) == ITEMS_MOST * 8
    numbers = [x.number for x in attempts if x.number]
    assert numbers == list(range(4 * 17 + 2, 4 * 17 + 2 - len(numbers), -1))
    assert sum(x.reason == "redriven" for x in attempts) == ITEMS_MOST + 1 - len(numbers) == 3


def test_one_equal_item_at_the_bound_is_dropped_for_one_that_comes(box):
    """The bound is exact: with 50 items the last one is still there."""
    id = box.one()
    die(box, [told("first"), *[told("E")] * 16])
    for _ in range(2):
        redrive(box, id)
        die(box, [told("E")] * 15)
        box.reject(box.take_one(), reason="u")
        box.clock.advance(1)
    assert len(failure.attempts(entry_of(box, id))) == ITEMS_MOST + 1
    assert failure.attempts(entry_of(box, id))[-1][0] == 1

    redrive(box, id)

    assert len(failure.attempts(entry_of(box, id))) == ITEMS_MOST + 1
    assert failure.attempts(entry_of(box, id))[-1][0] == 2


WHOLE = encoded(15, 2, "f", told("E"), at=1_790_000_000_000, items=[item("f", 1)])
DAMAGED = {
    "empty": b"",
    "a byte": b"\xff",
    "cut in its head": WHOLE[:9],
    "cut in its counts": WHOLE[:13],
    "cut in its items": WHOLE[:20],
    "another format": b"\xff\xfff\xc1" + WHOLE[3:],
    "text": b"\xff\xff" + b"somebody wrote this by hand",
}


def damage(box: Box, id: bytes, entry: bytes, is_new: bool = False) -> None:
    assert box.redis.hset(box.keys.failures, member_of(id), entry) == is_new


@pytest.mark.parametrize("entry", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_entry_is_one_attempt_and_its_message_goes_on(box, entry):
    id = box.one()
    fail(box)
    damage(box, id, entry)
    assert failure.decode(entry) == (failure.Failure("failed", 1, "unreadable") if entry else None)

    fail(box, told("New: y"))

    assert read(box, id) == [
        (2, "failed", "New: y", "frames\nNew: y\n", "w:1"),
        (1, "failed", "unreadable", "", ""),
    ]
    damaged = failure.attempts(entry_of(box, id))[1]
    assert damaged.at == datetime.fromtimestamp(0, UTC)
    box.ack(box.take_one())
    assert "failures" not in box.state()


def expire(box: Box) -> None:
    box.clock.advance(5)
    assert box.take() == []


def roll_back(box: Box) -> None:
    box.take_one(lease_ms=1000)
    box.clock.advance(2)
    box.rollback()


@pytest.mark.parametrize("entry", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize(
    ("settle", "reasons"),
    [
        (lambda box: box.reject(box.take_one()), ["rejected"]),
        (roll_back, ["lease ran out"]),
        (expire, ["expired"]),
    ],
    ids=["reject", "rollback", "drop_expired"],
)
def test_a_damaged_entry_is_moved_by_every_verb(box, entry, settle, reasons):
    id = box.one(expires=5000)
    fail(box)
    damage(box, id, entry)

    settle(box)

    found = read(box, id)
    assert [x[1] for x in found] == [*reasons, "failed"]
    assert found[-1][2] == "unreadable"


@pytest.mark.parametrize("entry", DAMAGED.values(), ids=DAMAGED)
def test_a_dead_letter_with_a_damaged_entry_is_redriven(box, entry):
    id = box.one()
    box.reject(box.take_one())
    damage(box, id, entry)

    redrive(box, id)

    assert [x[:3] for x in read(box, id)] == [(None, "redriven", ""), (1, "failed", "unreadable")]
    assert box.take_one().left == 16


@pytest.mark.parametrize("entry", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("kind", [{"priority": 20}, {"due": 1000}], ids=["priority", "timed"])
def test_a_message_with_a_damaged_entry_has_no_more_retries_than_its_topic_gives(box, entry, kind):
    """Such as one whose StoreQueue somebody has mended by hand."""
    id = box.one(**kind)
    box.clock.advance(2)
    damage(box, id, entry, is_new=True)

    lease = box.take_one()

    assert 0 <= lease.left <= 16
    box.nack(lease)
    assert read(box, id)[1][2] == "unreadable"


def test_a_lease_that_ran_out_shows_no_error_and_keeps_that_of_the_attempt_before(box):
    id = box.one()
    fail(box, told("E"))
    for _ in range(2):
        box.take_one(lease_ms=1000)
        box.clock.advance(2)
        box.rollback()

    assert failure.decode(entry_of(box, id)).error == "E"
    assert read(box, id) == [
        (3, "lease ran out", "", "", ""),
        (2, "lease ran out", "", "", ""),
        (1, "failed", "E", "frames\nE\n", "w:1"),
    ]
    fail(box, told("F", "g\n"))
    assert [x[2] for x in read(box, id)] == ["F", "", "", "E"]


def test_a_repeated_nack_adds_no_attempt(box):
    id = box.one()
    fail(box)
    lease, session = box.take_one(), box.session()

    assert box.twice(lambda: box.nack_command([lease], session)) == "r"
    assert box.twice(lambda: box.nack_command([lease], box.session())) == "0"

    assert [x[0] for x in read(box, id)] == [2, 1]


def test_a_repeated_redrive_is_noted_once(box):
    id = box.one()
    box.reject(box.take_one())
    session = box.session()

    assert box.twice(lambda: scripts.redrive(box.handle, box.keys, session, [id])) == "1"

    assert [x[:2] for x in read(box, id)] == [(None, "redriven"), (1, "rejected")]


def test_attempts_go_on_counting_after_a_redrive(box):
    id = box.one()
    die(box, [told("E")] * 17)
    redrive(box, id)
    assert failure.decode(entry_of(box, id)) is None
    assert failure.attempts(entry_of(box, id))[0].number is None

    lease = box.take_one()
    assert lease.left == 16
    box.nack(lease, told=told("E"))

    assert failure.decode(entry_of(box, id)).deliveries == 1
    assert [x[:2] for x in read(box, id)][:3] == [
        (18, "failed"), (None, "redriven"), (17, "failed"),
    ]  # fmt: skip
    assert history_size(entry_of(box, id)) == 18 * 8, "the error is there once"
    box.ack(box.take_one())
    assert "failures" not in box.state()


def test_a_message_that_expires_keeps_its_attempts(box):
    id = box.one(expires=5000)
    fail(box, told("E"))
    box.clock.advance(5)
    assert box.take() == []

    assert failure.decode(entry_of(box, id)) == failure.Failure("expired", 1)
    assert read(box, id) == [
        (None, "expired", "", "", ""),
        (1, "failed", "E", "frames\nE\n", "w:1"),
    ]


def test_what_a_query_gives_back_is_one_attempt(box):
    (id,) = box.send(1)
    take(box, holder=EXACT)
    lapse(box, force=True)
    noted = entry_of(box, id)
    box.clock.advance(1)

    box.rollback()

    assert entry_of(box, id) == noted
    assert [x[0] for x in read(box, id)] == [1]
    assert "lease of query" in failure.attempts(noted)[0].error


def test_a_query_does_not_settle_what_somebody_else_had_and_lost(box):
    (id,) = box.send(1)
    take(box, holder=EXACT)
    lapse(box, force=True)
    box.rollback()
    box.take_one(lease_ms=1000)
    box.clock.advance(2)
    box.rollback()

    settling = queries_scripts.query_settle(box.handle, box.keys, EXACT, 0, 1, 10)
    assert box.run(settling) == queries_scripts.QuerySettleReply(0, 0, missing=1)
    assert box.order() == [id]
    assert [x[:2] for x in read(box, id)] == [(2, "lease ran out"), (1, "lease ran out")]
    assert RUN in read(box, id)[1][2]


def test_at_maxmemory_attempts_are_added_and_deaths_noted(tight):
    id = tight.one()
    fail(tight, told("A", "a" * 3000))
    tight.rollback()  # all scripts are loaded now
    lease = tight.take_one()
    tight.redis.config_set("maxmemory-policy", "noeviction")
    tight.redis.config_set("maxmemory", 1)
    with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
        tight.redis.set("one", "more")

    try:
        assert tight.nack(lease, told=told("B", "b" * 3000)) == "r"
        tight.take_one(lease_ms=1000)
        tight.clock.advance(2)
        assert tight.rollback() == consumer_scripts.RollbackReply(1, 0, False)
    finally:
        tight.redis.config_set("maxmemory", 0)

    assert [x[:3] for x in read(tight, id)] == [
        (3, "lease ran out", ""), (2, "failed", "B"), (1, "failed", "A"),
    ]  # fmt: skip


def test_a_message_without_failures_has_no_entry(box):
    box.send(3)
    box.ack(*box.take(2))
    box.release(box.take_one())

    assert "failures" not in box.state()
