"""reject.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.features.messages import scripts as messages_scripts
from rmq.kernel.follow_ups.scripts import AckThenReply
from tests.lua.box import GONE, Box
from tests.lua.failures import item
from tests.lua.following import TARGET, by_target, follow_up, own, text_of

CLAIM_MS = 5000


@pytest.mark.parametrize("reason", ["r", "u"])
def test_reject_buries_at_once_with_its_reason(box, reason):
    id = box.one()
    lease = box.take_one()
    before = box.state()
    session = box.session()

    assert box.run(box.reject_command([lease], session, reason, b"no")) == "d"

    assert box.changed(before, replay=True) == {
        ("slot", "dead_lettered"): "1",
        ("prepare", id): GONE,
        ("dead", id): box.clock.now_ms,
        ("failures", id): box.failure(0, 1, reason, b"no"),
        (f"replay:{session.name[1:].decode()}",): b"1:d",
    }


def test_reject_tells_how_often_it_was_delivered(box):
    id = box.one()
    items = []
    for _ in range(4):
        box.nack(box.take_one())
        items.insert(0, item("f", box.clock.now_ms))
    box.reject(box.take_one())

    assert box.state()["failures"][id] == box.failure(0, 5, "r", b"why", items=items)


def test_only_the_held_ones_of_a_batch_are_buried(box):
    box.send(3)
    a, b, c = box.take(3)
    box.ack(b)
    before = box.state()

    forged = c._replace(receipt=a.receipt)
    assert box.reject(a, b, forged, a) == "d000"

    assert box.changed(before) == {
        ("slot", "dead_lettered"): "1",
        ("prepare", a.id): GONE,
        ("dead", a.id): box.clock.now_ms,
        ("failures", a.id): box.failure(0, 1, "r", b"why"),
    }


def test_error_is_kept_to_64_kib(box):
    id = box.one()
    box.run(box.reject_command([box.take_one()], box.session(), "r", b"e" * 100_000))

    assert box.state()["failures"][id] == box.failure(0, 1, "r", b"e" * 65_536)


def test_dead_retention_drops_old_dead_letters_whole(make_box):
    box = make_box(dead_retention_ms=10_000)
    old = box.one()
    box.reject(box.take_one())
    box.clock.advance(10)
    new = box.one()
    box.reject(box.take_one())

    state = box.state()
    assert set(state["dead"]) == set(state["records"]) == set(state["failures"]) == {new}
    assert old not in state["records"]
    assert box.counter("dead_dropped") == 1


def test_a_thousand_in_one_call(box):
    given = box.send(1000)

    assert box.reject(*box.take(1000)) == "d" * 1000
    assert set(box.order("dead")) == set(given)
    assert "prepare" not in box.state()


def test_a_call_buries_many_with_few_commands_and_drops_no_more_than_twice_as_many(make_box):
    box = make_box(dead_retention_ms=1000)
    for _ in range(3):
        box.send(200)
        box.reject(*box.take(200))
    box.clock.advance(1)
    box.send(100)
    leases = box.take(100)
    box.redis.config_resetstat()

    assert box.reject(*leases) == "d" * 100

    calls = {name: row["calls"] for name, row in box.redis.info("commandstats").items()}
    assert box.counter("dead_dropped") == 200
    assert calls["cmdstat_hget"] + calls["cmdstat_hmget"] <= 10
    assert calls["cmdstat_zadd"] + calls["cmdstat_hset"] + calls["cmdstat_zrem"] <= 10


# --- follow-ups -----------------------------------------------------------------------------------


def reject_then(box: Box, leases: list, *follow_ups, session=None) -> AckThenReply:
    return box.run(
        box.reject_command(
            leases,
            session or box.session(),
            follow_ups=by_target(follow_ups),
            read=lambda reply: reply,
        )
    )


def test_follow_ups_are_stored_in_the_step_of_the_rejection(box):
    id = box.one()
    lease = box.take_one()
    before = box.state()
    other, here = follow_up(box), follow_up(box, target=own(box))

    reply = reject_then(box, [lease], other, here)

    number, claim = box.clock.now_us, box.clock.now_ms + CLAIM_MS
    assert (reply.codes, reply.number, reply.claim) == ("d", number, b"%d" % claim)
    assert reply.targets == {TARGET: "n", own(box): "n"}
    assert box.changed(before) == {
        ("slot", "dead_lettered"): "1",
        ("slot", "follow_ups"): str(number + 1),
        ("prepare", id): GONE,
        ("dead", id): box.clock.now_ms,
        ("failures", id): box.failure(0, 1, "r", b"why"),
        ("pending", text_of(TARGET, number, other)): 0,
        ("pending", text_of(own(box), number + 1, here)): 0,
        ("targets", TARGET.encode()): claim,
        ("targets", own(box).encode()): claim,
    }


def test_only_dead_letters_store_their_follow_ups(box):
    box.send(3)
    lost, cancelled, dead = box.take(3)
    box.ack(lost)
    cancel = messages_scripts.cancel(
        box.handle, box.keys, box.session(), cancelled.id, running=True
    )
    assert box.run(cancel) == "requested"
    given = [follow_up(box, delivery) for delivery in (1, 2, 3)]

    reply = reject_then(box, [lost, cancelled, dead], *given)

    assert reply.codes == "0cd"
    assert list(box.state()["pending"]) == [text_of(TARGET, reply.number, given[2])]


def test_without_a_dead_letter_no_follow_up_is_stored(box):
    box.send(1)
    lease = box.take_one()
    box.ack(lease)
    before = box.state()

    assert reject_then(box, [lease], follow_up(box)) == ("0", 0, b"0", {})
    assert box.changed(before) == {}


def test_a_copy_of_a_rejection_stores_its_follow_ups_once(box):
    box.send(1)
    lease, session, given = box.take_one(), box.session(), follow_up(box)

    reply = box.twice(lambda: box.reject_command(
        [lease], session, follow_ups=by_target([given]), read=lambda reply: reply
    ))  # fmt: skip

    assert reply.codes == "d"
    assert len(box.state()["pending"]) == 1


@pytest.mark.parametrize(
    ("position", "bad", "field"),
    [
        (0, 2, "delivery"), (1, "x", "target"), (2, bytes(16), "message"),
        (2, bytes(17), "priority"), (2, bytes(13) + b"\x04\x00\x00\x64", "flags"),
        (None, None, "errors|follow-ups"),
    ],
)  # fmt: skip
def test_a_follow_up_that_could_not_be_stored_is_refused_before_the_rejection(
    box, position, bad, field
):
    box.send(1)
    given = list(follow_up(box))
    if position is not None:
        given[position] = bad
    command = box.reject_command([box.take_one()], box.session(), follow_ups=by_target([given]))
    if position is None:
        command.args.pop()
    before = box.state()

    with pytest.raises(redis.ResponseError, match=f"RMQARG ({field})"):
        box.run(command)
    assert box.changed(before) == {}
