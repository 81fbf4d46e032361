"""result.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.features.dead_letters import scripts as dead_letters_scripts
from rmq.kernel.core.ids import member_of
from rmq.kernel.results.entry import encode_success
from rmq.kernel.results.scripts import ResultReply, progress, result
from tests.lua.box import Box
from tests.lua.following import ack_then

NONE = ResultReply("gone", False, b"", 0)


def read(box: Box, *ids: bytes) -> list[ResultReply]:
    """Read results, and check that this changes nothing."""
    before = box.state()
    replies = box.run(result(box.keys, ids))
    assert box.changed(before) == {}
    return replies


def entry(box: Box, letter: bytes, details: bytes = b"") -> bytes:
    """An entry of this moment."""
    return letter + box.clock.now_ms.to_bytes(6, "big") + details


def test_it_says_where_each_message_is_and_whether_it_keeps_its_result(box: Box) -> None:
    dead, waiting, in_flight, plain = (
        box.one(keep=60, priority=900), box.one(keep=60), box.one(priority=800), box.one(),
    )  # fmt: skip
    box.reject(box.take_one())
    box.redis.delete(box.keys.results)  # as if it was not kept any more
    assert box.take_one().id == in_flight

    assert read(box, waiting, in_flight, dead, plain, box.ids()[0]) == [
        ResultReply("waiting", True, b"", 0),
        ResultReply("in_flight", False, b"", 0),
        ResultReply("dead", True, b"", 0),
        ResultReply("waiting", False, b"", 0),
        NONE,
    ]

    box.run(dead_letters_scripts.trash(box.keys, box.session(), [dead], 1000, None))
    assert read(box, dead) == [ResultReply("dead", True, b"", 0)]


def test_a_result_is_read_until_its_keeping_ends(box: Box) -> None:
    id = box.one(keep=60)
    given = encode_success("worker", 1, 7, 2, b"value")
    assert ack_then(box, [box.take_one()], results=[given]).codes == "1"
    stored = entry(box, b"s", given[1:])
    until = box.clock.now_ms + 60_000

    assert read(box, id) == [ResultReply("gone", False, stored, until)]
    box.clock.advance(59.999)
    assert read(box, id) == [ResultReply("gone", False, stored, until)]
    box.clock.advance(0.001)
    assert read(box, id) == [NONE]


def test_a_message_that_lives_has_progress_and_no_result(box: Box) -> None:
    id = box.one(keep=60)
    lease = box.take_one()
    box.run(progress(box.keys, id, lease.receipt, b"half"))
    running = entry(box, b"r", b"half")
    assert read(box, id) == [ResultReply("in_flight", True, running, 0)]
    box.nack(lease)
    assert read(box, id) == [ResultReply("waiting", True, running, 0)]

    # An entry of an earlier message with this id.
    box.redis.hset(box.keys.results, member_of(id), entry(box, b"s"))
    box.redis.zadd(box.keys.keeping, {member_of(id): box.clock.now_ms + 9})
    assert read(box, id) == [ResultReply("waiting", True, b"", 0)]


def test_progress_of_a_message_that_is_gone_is_no_result(box: Box) -> None:
    box.one(keep=60)
    (id,) = box.ids()
    box.redis.hset(box.keys.results, member_of(id), entry(box, b"r"))

    assert read(box, id) == [NONE]


def test_a_reply_has_at_most_1_mib_of_entries_and_one_at_least(box: Box) -> None:
    ids = [box.one(keep=60) for _ in range(4)]
    leases = box.take(4)
    results = [b"s" + bytes(300_000 - 1)] * 4
    assert ack_then(box, leases, results=results).codes == "1111"

    assert [len(reply.entry) for reply in read(box, *ids)] == [300_006] * 3
    assert len(read(box, *ids[3:])) == 1


def test_large_records_are_read_up_to_4_mib(box: Box) -> None:
    ids = box.send(5, body=bytes(1_500_000), keep=60)

    assert [reply.place for reply in read(box, *ids)] == ["waiting"] * 2
    assert len(read(box, *ids[4:])) == 1


def test_members_are_checked(box: Box) -> None:
    for given in ([], [b"short"], box.ids(1001)):
        command = result(box.keys, box.ids())
        command.args[1:] = [id if len(id) < 16 else member_of(id) for id in given]
        with pytest.raises(redis.ResponseError, match="RMQARG id"):
            box.run(command)
