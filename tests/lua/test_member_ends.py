"""member_ends.lua, and the ends that other scripts leave for it, on a real server."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
import redis

from rmq.features.dead_letters import scripts as dead_letters_scripts
from rmq.features.messages import scripts as messages_scripts
from rmq.kernel.batches.scripts import member_ends
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.core.ids import MessageId, member_of
from rmq.kernel.core.results import BATCH_MARK
from rmq.kernel.follow_ups import scripts as follow_ups_scripts
from rmq.kernel.producer import scripts as producer_scripts
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua.batching import mark
from tests.lua.box import Box


def member(box: Box, keep: int = 0, **headers: str) -> bytes:
    """Send a member of a batch, and return its id."""
    (id,) = box.ids()
    assert send(box, [id], keep, **headers) == ""
    return id


def send(box: Box, ids: list[bytes], keep: int = 0, **headers: str) -> str:
    """Send members. Return a letter for each, or nothing if all were stored."""
    parts = []
    for id in ids:
        packed = msgpack.packb({"rmq-keep": f"{keep}b", **mark(box, MessageId(id)), **headers})
        head = b"\x30\x00\x00\xc8"  # JSON with headers, priority 200
        parts += [head, len(packed).to_bytes(2, "big") + packed + b"1"]
    session = box.session()
    command = producer_scripts.send(box.handle, box.keys, session, ids, parts, [])
    return str(box.run(command).codes)


def ends(box: Box, reported: Any = (), limit: int = 100) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = box.run(member_ends(box.keys, reported, limit))
    return found


def end_of(box: Box, id: bytes, letter: str) -> tuple[bytes, bytes]:
    return b"b" + member_of(id), letter.encode() + mark(box, MessageId(id))[BATCH_MARK].encode()


def acked(box: Box, id: bytes) -> None:
    lease = box.take_one()
    command = follow_ups_scripts.ack_then(
        box.handle, box.keys, box.session(), [lease.id],
        consumer_scripts.encode_receipts([lease.receipt], [1]), {}, lambda reply: reply,
    )  # fmt: skip
    assert box.run(command).codes == "1"


def rejected(box: Box, id: bytes) -> None:
    box.reject(box.take_one())


def cancelled(box: Box, id: bytes) -> None:
    box.run(messages_scripts.cancel(box.handle, box.keys, box.session(), id))


def purged(box: Box, id: bytes) -> None:
    box.run(topic_scripts.purge(box.handle, box.keys, box.session(), "store"))


@pytest.mark.parametrize(
    ("letter", "act"), [("s", acked), ("d", rejected), ("c", cancelled), ("p", purged)]
)
@pytest.mark.parametrize("keep", [0, 60])
def test_the_end_of_a_member_is_stored(box: Box, letter: str, act: Any, keep: int) -> None:
    id = member(box, keep)
    assert ends(box) == []

    act(box, id)

    assert ends(box) == [end_of(box, id, letter)]
    assert (id in box.state()["results"]) is bool(keep)


def test_an_end_that_was_reported_is_forgotten(box: Box) -> None:
    ids = [member(box), member(box)]
    for id in ids:
        rejected(box, id)
    found = ends(box, limit=1)

    rest = ends(box, found)

    assert len(found) == len(rest) == 1
    assert {*found, *rest} == {end_of(box, id, "d") for id in ids}
    assert ends(box, found) == rest  # a second run
    assert ends(box, rest) == []
    assert not {"results", "keeping"} & box.state().keys()


@pytest.mark.parametrize("act", [cancelled, purged])
@pytest.mark.parametrize("is_reported", [False, True])
def test_a_member_is_not_stored_for_a_minute_after_its_end(
    box: Box, act: Any, is_reported: bool
) -> None:
    id = member(box)
    act(box, id)
    found = ends(box)
    if is_reported:
        assert ends(box, found) == []
        assert ends(box, found) == []  # a second run
    box.clock.advance(59)
    before = box.state()

    assert send(box, [id]) == "d"
    assert send(box, [id, *box.ids()]) == "ds"
    assert send(box, [id], **{BATCH_MARK: f"done 0 other {MessageId(id)}"}) == ""

    assert found[0][0] in before["results"]


def test_an_end_is_forgotten_a_minute_after_its_report(box: Box) -> None:
    id = member(box)
    cancelled(box, id)
    ends(box, ends(box))
    box.clock.advance(61)
    rejected_id = member(box)
    rejected(box, rejected_id)

    ends(box, ends(box))

    assert not {"results", "keeping"} & box.state().keys()
    assert send(box, [id]) == ""


def test_an_end_that_changed_since_stays(box: Box) -> None:
    id = member(box)
    rejected(box, id)
    found = ends(box)
    box.run(dead_letters_scripts.redrive(box.handle, box.keys, box.session(), [id]))
    acked(box, id)

    assert ends(box, found) == [end_of(box, id, "s")]


def test_a_dead_letter_that_is_removed_ends_again_for_a_batch_that_waits(box: Box) -> None:
    ids = [member(box, 60), member(box)]
    for id in ids:
        rejected(box, id)
    results = {name: value for name, value in box.state()["results"].items() if name[:1] != b"b"}
    ends(box, ends(box))

    box.run(dead_letters_scripts.trash(box.keys, box.session(), ids[:1], 60_000))
    box.run(topic_scripts.purge(box.handle, box.keys, box.session(), "dead"))

    purged_ends = sorted(end_of(box, id, "p") for id in ids)
    assert ends(box) == purged_ends
    ends(box, ends(box))
    assert box.state()["results"] == results | dict(
        purged_ends
    )  # how it ended for those who wait for its result


def test_ends_outlive_results(box: Box) -> None:
    member(box, 1)
    acked(box, b"")
    box.clock.advance(100)

    box.run(topic_scripts.tidy(box.keys, 100))

    assert len(ends(box)) == 1
    assert [name[:1] for name in box.state()["results"]] == [b"b"]


@pytest.mark.parametrize(("field", "args"), [("limit", ["", "501"]), ("reported", ["", "1", "x"])])
def test_wrong_arguments_change_nothing(box: Box, field: str, args: list[str]) -> None:
    member(box)
    acked(box, b"")
    before = box.state()
    keys = (box.keys.slot, box.keys.results, box.keys.keeping)

    with pytest.raises(redis.ResponseError, match=f"RMQARG {field}"):
        box.raw("member_ends", keys, args)
    assert box.changed(before) == {}
