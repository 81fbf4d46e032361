"""What other scripts do with messages that wait for an event: where a wait ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmq.features.dead_letters import scripts as dead_letters_scripts
from rmq.features.messages import scripts as messages_scripts
from rmq.features.spark import scripts as spark_scripts
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.core.ids import member_of
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua.box import GONE, Box, timed
from tests.lua.eventing import (
    LIMIT_MS,
    OVER,
    TIMED_OUT,
    checks,
    deliver,
    item,
    one_suspended,
    read,
    steps_at,
    suspend,
    suspended,
    wait_at,
    wait_of,
)
from tests.lua.furnished import QUERY

ENDED = {"waited": "1", "suspended": "0", "large": "1"}  # one message, whose wait is over


def cancel(box: Box, id: bytes) -> None:
    assert box.run(messages_scripts.cancel(box.handle, box.keys, box.session(), id)) == "cancelled"


def purge(box: Box, id: bytes) -> None:
    purged = topic_scripts.purge(box.handle, box.keys, box.session(), "store", ids=[id])
    assert box.run(purged) == 1


def take_expired(box: Box, id: bytes) -> None:
    box.clock.advance(LIMIT_MS / 1000)
    assert box.take(1) == []


def drop_expired(box: Box, id: bytes) -> None:
    box.clock.advance(LIMIT_MS / 1000)
    assert box.run(dead_letters_scripts.drop_expired(box.handle, box.keys, 0, 10)).expired == 1


def lapse(box: Box, id: bytes) -> None:
    """Let all leases expire."""
    box.clock.advance(LIMIT_MS / 1000)
    while box.take(1, lease_ms=1000):
        box.clock.advance(1)
        box.rollback()


def reject(box: Box, id: bytes) -> None:
    box.clock.advance(LIMIT_MS / 1000)
    assert box.reject(box.take_one()) == "d"


def nack(box: Box, id: bytes) -> None:
    box.clock.advance(LIMIT_MS / 1000)
    while leases := box.take(1):
        box.nack(*leases)


def reject_queried(box: Box, id: bytes) -> None:
    box.clock.advance(LIMIT_MS / 1000)
    box.run(spark_scripts.query_take(box.keys, QUERY, 0, 1))
    reply = box.run(spark_scripts.query_reject(box.handle, box.keys, QUERY, 1, b"why", 10))
    assert reply is not None


DYING: dict[str, tuple[Callable[[Box, bytes], None], dict[str, Any]]] = {
    "take_expired": (take_expired, {"expires": 1000}),
    "drop_expired": (drop_expired, {"expires": 1000}),
    "lapse": (lapse, {}),
    "reject": (reject, {}),
    "nack": (nack, {}),
    "reject_queried": (reject_queried, {}),
}


@pytest.mark.parametrize("way", DYING)
def test_the_wait_of_a_message_ends_with_its_death(box: Box, way: str) -> None:
    act, options = DYING[way]
    wait = wait_of(box, OVER)
    id = one_suspended(box, **options)

    act(box, id)

    state = box.state()
    assert state["dead"] == {id: box.clock.now_ms}
    assert state["bodies"] == {wait_at(id)[1]: wait}
    assert suspended(box) == ENDED
    assert deliver(box, id).got == 0
    assert box.run(topic_scripts.stats(box.keys))["suspended"] == 0
    assert checks(box) == []
    assert "waits" not in box.state()


@pytest.mark.parametrize(
    ("act", "settings"),
    [
        (cancel, {}),
        (purge, {}),
        (take_expired, {"on_expire": "drop"}),
        (drop_expired, {"on_expire": "drop"}),
    ],
)
def test_a_message_is_removed_with_its_wait(
    make_box: Any, act: Callable[[Box, bytes], None], settings: dict[str, Any]
) -> None:
    box = make_box(**settings)
    kept = one_suspended(box, limit_ms=2 * LIMIT_MS)
    id = one_suspended(box, expires=1000)
    before = box.state()

    act(box, id)

    changed = box.changed(before)
    assert changed[wait_at(id)] is GONE
    assert changed[("records", id)] is GONE
    assert wait_at(kept) not in changed
    assert suspended(box) == {"waited": "1", "suspended": "1", "large": "1"}
    assert deliver(box, id).got == 0


def test_the_last_message_that_has_waited_leaves_no_field(box: Box) -> None:
    id = one_suspended(box)
    deliver(box, id)
    box.ack(box.take_one())

    state = box.state()
    assert not {"bodies", "waits"} & state.keys()
    assert not {"waited", "steps", "large"} & state["slot"].keys()
    assert state["slot"]["suspended"] == "0"


@pytest.mark.parametrize("fresh", [False, True])
def test_a_redriven_message_does_not_wait_and_keeps_its_events_unless_it_is_fresh(
    box: Box, fresh: bool
) -> None:
    id = one_suspended(box)
    deliver(box, id)
    event = item(box.clock.now_ms)
    suspend(box, box.take_one(), key=b"second", limit_ms=1000)
    box.clock.advance(1)
    box.reject(box.take_one())
    session = box.session()

    for _ in range(2):
        command = dead_letters_scripts.redrive(box.handle, box.keys, session, [id], fresh=fresh)
        assert box.run(command) == "1"

    assert deliver(box, id, key=b"second").got == 0
    assert suspended(box)["suspended"] == "0"
    batch = box.prepare()
    assert batch.any_waited
    assert read(box, *box.leases(batch)) == [b"" if fresh else event]
    assert suspend(box, *box.leases(batch), key=b"second") == "1"
    assert suspended(box)["suspended"] == "1"


def test_a_dead_letter_in_the_trash_keeps_its_events_and_does_not_wait(box: Box) -> None:
    id = one_suspended(box, limit_ms=1000)
    box.clock.advance(1)
    lease = box.take_one()
    (late,) = read(box, lease)
    box.reject(lease)
    trash = dead_letters_scripts.trash(box.keys, box.session(), [id], 60_000, 9_000_000_000_000)
    assert box.run(trash) == "1"
    assert box.state()["bodies"][steps_at(id)[1]] == late

    assert box.run(dead_letters_scripts.restore(box.keys, box.session(), [id])) == "1"

    assert box.state()["bodies"][steps_at(id)[1]] == late
    assert suspended(box) == ENDED | {"steps": "1", "large": "2"}


def test_a_dead_letter_is_deleted_with_its_events(box: Box) -> None:
    id = one_suspended(box)
    deliver(box, id)
    box.reject(box.take_one())
    assert len(box.state()["bodies"]) == 2

    assert box.run(topic_scripts.purge(box.handle, box.keys, box.session(), "dead")) == 1

    assert "bodies" not in box.state()
    assert not {"waited", "steps", "large"} & box.state()["slot"].keys()
    assert id not in box.state().get("dead", {})


def test_a_message_that_leaves_for_another_topic_leaves_no_wait(box: Box) -> None:
    id = one_suspended(box, limit_ms=1000)
    box.clock.advance(1)
    box.reject(box.take_one())
    token = b"8 random"
    hold = dead_letters_scripts.redrive_hold(box.keys, token, "other", [id], [0], 9_000_000_000_000)
    box.run(hold)

    settle = dead_letters_scripts.redrive_settle(
        box.keys, box.session(), [(member_of(id) + token, True)]
    )
    box.run(settle)

    assert "bodies" not in box.state()
    assert "waited" not in box.state()["slot"]


def test_a_suspended_message_is_dropped_for_larger_priorities_with_its_wait(make_box: Any) -> None:
    box = make_box(max_length=2, overflow="drop_lowest")
    id = one_suspended(box, priority=50, limit_ms=1000)
    box.one(priority=60)
    box.clock.advance(1)
    box.prepare(1)  # the suspended message joins its priority; a larger one is taken

    box.send(2, priority=900)

    assert id not in box.state()["records"]
    assert "waited" not in box.state()["slot"]
    assert box.state()["slot"]["suspended"] == "0"


def test_another_priority_is_for_the_time_after_the_wait(box: Box) -> None:
    id = one_suspended(box, priority=50)
    now = box.clock.now_ms
    session = box.session()
    assert box.twice(lambda: messages_scripts.set_priority(box.keys, session, id, 70)) == "changed"
    assert box.score(id) == timed(now + LIMIT_MS, True)

    deliver(box, id)

    assert int(box.score(id) or 0) == 70


def test_in_order_a_cancelled_message_ends_the_wait_of_its_slot(box: Box) -> None:
    first, second = box.send(2)
    leases = box.take(2, ordered=True)
    suspend(box, leases[0])
    box.release(leases[1])
    assert box.take(2, ordered=True) == []

    cancel(box, first)

    assert [lease.id for lease in box.take(2, ordered=True)] == [second]


def test_in_order_a_query_does_not_take_a_message_that_waits(box: Box) -> None:
    first, second = box.send(2)
    leases = box.take(2, ordered=True)
    suspend(box, leases[1])
    box.release(leases[0])

    reply = box.run(spark_scripts.query_take(box.keys, QUERY, 0, 10))

    assert reply.newest == 1
    assert box.order() == [second]
    assert box.order("prepare") == [first]


def test_a_lease_of_a_worker_that_died_gives_back_a_message_with_its_events(box: Box) -> None:
    id = one_suspended(box)
    deliver(box, id)
    batch = box.prepare(shared=0)
    number = batch.deadline_s - 3_000_000_000

    box.run(consumer_scripts.lease_release(box.handle.channel, box.keys, number, 10))

    again = box.prepare()
    assert (again.ids, again.any_waited) == ([id], True)
    assert read(box, *box.leases(again)) == [item(box.clock.now_ms)]


def test_a_message_whose_lease_expires_after_its_time_limit_times_out_once(box: Box) -> None:
    id = one_suspended(box, limit_ms=1000)
    box.clock.advance(1)
    (lapsing,) = box.take(1, lease_ms=1000)  # its consumer dies before it reads its events
    box.clock.advance(1)
    box.rollback()
    lease = box.take_one()
    late = item(box.clock.now_ms, TIMED_OUT, data=b"")

    assert (lapsing.id, lease.id) == (id, id)
    assert read(box, lapsing) == [None]
    assert read(box, lease) == [late] == read(box, lease)
    assert suspended(box) == ENDED | {"steps": "1", "large": "2"}
