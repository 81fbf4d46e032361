"""event_deliver.lua on a real server."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from rmq.kernel.core.groups import Groups
from rmq.kernel.core.ids import member_of
from rmq.kernel.core.retry import Exponential
from rmq.kernel.events.scripts import Delivered
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua.box import GONE, Box, handed_back, ordered, timed
from tests.lua.eventing import (
    DATA,
    KEY,
    LIMIT_MS,
    OVER,
    TIMED_OUT,
    deliver,
    deliver_command,
    item,
    one_suspended,
    read,
    steps_at,
    store_step,
    suspend,
    suspended,
    wait_at,
    wait_of,
)
from tests.lua.group import send_in


def got(box: Box, id: bytes, *, ago_ms: int = 0, events: int = 1) -> dict[tuple[str, Any], Any]:
    """What changes for a message that gets an event now, without its score."""
    return {
        steps_at(id): item(box.clock.now_ms),
        wait_at(id): wait_of(box, OVER, ago_ms=ago_ms),
        ("waits", id): GONE,
        ("slot", "suspended"): "0",
        ("slot", "steps"): "1",
        ("slot", "large"): str(1 + events),
    }


def test_an_event_makes_its_message_the_first_of_its_priority(box: Box) -> None:
    id = one_suspended(box, priority=50)
    other = box.one(priority=50)
    box.clock.advance(1)
    before = box.state()

    for count in (1, 0):  # a call that arrives twice
        assert deliver(box, id) == Delivered(count, 1)
        assert box.changed(before) == got(box, id, ago_ms=1000) | {
            ("store", id): ordered(50, -1),
            ("slot", "front"): "-2",
        }
    assert box.drained() == [id, other]


def test_messages_that_come_to_the_front_have_different_places(box: Box) -> None:
    ids = box.send(4)
    leases = box.take(4)
    suspend(box, *leases[:2])
    deliver(box, ids[0])
    box.release(leases[2])
    deliver(box, ids[1])
    box.release(leases[3])

    assert len(set(box.state()["store"].values())) == 4
    assert box.drained() == [ids[3], ids[1], ids[2], ids[0]]


def test_a_message_without_a_priority_goes_before_all_that_is_due(box: Box) -> None:
    due = box.one(due=500)
    box.clock.advance(1)
    lease = box.take_one()
    others = box.send(2, due=1)
    suspend(box, lease)
    box.clock.advance(1)

    assert deliver(box, due) == Delivered(1, 1)

    assert box.score(due) == handed_back(-1)
    assert box.drained() == [due, *others]


def test_a_message_without_a_priority_goes_to_the_priority_that_its_topic_gives_it(
    make_box: Any,
) -> None:
    box = make_box(timed_priority=40)
    id = box.one(due=500)
    box.clock.advance(1)
    suspend(box, box.take_one())

    deliver(box, id)

    assert box.score(id) == ordered(40, -1)


def test_all_waiting_messages_get_the_event_in_the_order_of_the_call(box: Box) -> None:
    ids = box.send(100)
    suspend(box, *box.take(100))

    assert deliver(box, *ids) == Delivered(100, 100)

    assert suspended(box) == {"waited": "100", "suspended": "0", "steps": "100", "large": "200"}
    leases = box.take(100)
    assert {lease.id for lease in leases} == set(ids)
    assert read(box, *leases) == [item(box.clock.now_ms)] * 100


def test_a_message_that_is_named_twice_gets_one_event(box: Box) -> None:
    id = one_suspended(box)

    assert deliver(box, id, id) == Delivered(1, 2)

    assert suspended(box) == {"waited": "1", "suspended": "0", "steps": "1", "large": "2"}


def test_only_messages_that_wait_for_this_event_get_it(box: Box) -> None:
    other = one_suspended(box, key=b"another")
    flying, dead, settled, waiting = box.send(4)
    leases = {lease.id: lease for lease in box.take(4)}
    box.reject(leases[dead])
    box.ack(leases[settled])
    box.release(leases[waiting])
    before = box.state()

    assert deliver(box, other, flying, dead, settled, waiting, *box.ids()) == Delivered(0, 6)
    assert box.changed(before) == {}


def test_a_message_in_flight_after_its_time_limit_gets_no_event(box: Box) -> None:
    id = one_suspended(box, limit_ms=1000)
    box.clock.advance(1)
    lease = box.take_one()
    before = box.state()

    assert deliver(box, id) == Delivered(0, 1)
    assert box.changed(before) == {}
    assert read(box, lease) == [item(box.clock.now_ms, TIMED_OUT, data=b"")]


def test_a_time_limit_that_has_ended_unseen_does_not_keep_the_event_away(box: Box) -> None:
    id = one_suspended(box, limit_ms=1000)
    box.clock.advance(1)
    lapsing = box.take_one(lease_ms=1000)
    box.clock.advance(1)
    box.rollback()
    assert lapsing.id == id

    assert deliver(box, id) == Delivered(1, 1)
    assert read(box, box.take_one()) == [item(box.clock.now_ms)]


def test_a_message_that_has_failed_keeps_its_retries(make_box: Any) -> None:
    box = make_box(retry=Exponential(base=1, cap=60, jitter=0))
    id = box.one(priority=50)
    box.nack(box.take_one())
    box.clock.advance(1)
    suspend(box, box.take_one())

    deliver(box, id)

    again = box.take_one()
    assert (again.id, again.left) == (id, 15)
    assert int(box.score(id, "prepare")) % 1000 == 15


def test_the_event_is_the_last_item_of_the_steps_and_replaces_its_time_out(box: Box) -> None:
    id = box.one()
    lease = box.take_one()
    store_step(box, lease, KEY, b"\x017")  # a step may have the name of the event
    step = item(box.clock.now_ms, b"d", data=b"\x017")
    suspend(box, lease, limit_ms=1000)
    box.clock.advance(1)
    again = box.take_one()
    late = item(box.clock.now_ms, TIMED_OUT, data=b"")
    assert read(box, again) == [step + late]
    store_step(box, again, b"more")
    more = item(box.clock.now_ms, b"d", b"more", b"")
    suspend(box, again)
    box.clock.advance(1)

    deliver(box, id)

    assert read(box, box.take_one()) == [step + more + item(box.clock.now_ms)]
    assert suspended(box) == {"waited": "1", "suspended": "0", "steps": "1", "large": "2"}


def test_a_call_looks_at_no_more_than_two_mib(box: Box) -> None:
    ids = box.send(16)
    suspend(box, *box.take(16))
    data = b"\x01" + bytes(256 * 1024)

    first = deliver(box, *ids, data=data)
    rest = deliver(box, *ids[first.seen :], data=data)

    assert first == Delivered(8, 8)
    assert rest == Delivered(8, 8)
    assert suspended(box)["suspended"] == "0"


def test_a_message_of_a_group_goes_to_its_group(make_box: Any) -> None:
    box = make_box(groups=Groups(order=False))
    first, second, third = send_in(box, "g", 3)
    lease = box.take_one()
    assert lease.id == first
    suspend(box, lease)
    assert [lease.id for lease in box.take(3)] == [second]  # the place of the first is free
    now = box.clock.now_ms

    assert deliver(box, first) == Delivered(1, 1)

    assert box.score(first) == timed(now, True)
    assert box.take(3) == []  # held behind the message that is out
    assert box.score(first) < 0
    assert sorted(box.order()) == sorted([first, third])


def test_an_ordered_group_waits_for_its_message(make_box: Any) -> None:
    box = make_box(groups=Groups())
    first, second = send_in(box, "g", 2)
    suspend(box, box.take_one())
    assert box.take(2) == []

    deliver(box, first)

    taken = box.take(2)
    assert [lease.id for lease in taken] == [first]
    box.ack(*taken)
    assert box.take_one().id == second


def test_sleeping_consumers_are_woken_if_a_message_got_the_event(box: Box) -> None:
    id = one_suspended(box)
    listener = box.redis.pubsub()
    listener.subscribe(box.handle.channel)
    assert listener.get_message(timeout=5)["type"] == "subscribe"
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 1000)

    assert deliver(box, *box.ids()).got == 0
    assert box.state()["slot"]["waiting"] == str(box.clock.now_ms + 1000)
    deliver(box, id)

    assert listener.get_message(timeout=5)["data"] == b"0"
    assert box.state()["slot"]["waiting"] == "0"
    listener.close()


def test_in_a_slot_that_does_not_exist_no_message_waits(box: Box) -> None:
    id = one_suspended(box)
    box.run(topic_scripts.slot_delete(box.keys, box.created, 1000))

    assert deliver(box, id) == Delivered(0, 1)
    assert box.state() == {}


def test_a_message_without_a_record_can_be_received_at_once(box: Box) -> None:
    id = one_suspended(box)
    box.break_record(id, None)

    assert deliver(box, id) == Delivered(1, 1)
    assert box.score(id) == timed(box.clock.now_ms, True)
    assert [lease.id for lease in box.leases(box.prepare())] == [id]


@pytest.mark.parametrize(
    ("field", "position", "value"),
    [
        ("key", 3, b""),
        ("key", 3, bytes(256)),
        ("at", 4, "-1"),
        ("data", 5, bytes(256 * 1024 + 2)),
        ("id", 6, b"x" * 12),
        ("id", 6, b"x" * 14),
    ],
)
def test_wrong_arguments_change_nothing(box: Box, field: str, position: int, value: object) -> None:
    command = deliver_command(box, [one_suspended(box)])
    before = box.state()
    args: Any = command.args
    args[position] = value

    with pytest.raises(redis.ResponseError, match=f"RMQARG {field}"):
        box.run(command)
    assert box.changed(before) == {}


@pytest.mark.parametrize("count", [0, 101])
def test_a_call_has_1_to_100_members(box: Box, count: int) -> None:
    with pytest.raises(redis.ResponseError, match="RMQARG members"):
        deliver(box, *box.ids(1) * count)


def test_at_maxmemory_no_message_gets_the_event(tight: Box) -> None:
    ids = [one_suspended(tight) for _ in range(2)]
    command = deliver_command(tight, ids)
    tight.redis.script_load(command.script.text)
    before = tight.state()
    tight.redis.config_set("maxmemory", 1)

    with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
        tight.run(command)
    assert tight.changed(before) == {}
    tight.redis.config_set("maxmemory", 0)
    assert tight.run(command) == Delivered(2, 2)


def test_in_order_the_slot_waits_for_the_first_message_that_waits(box: Box) -> None:
    ids = box.send(4)
    leases = box.take(4, ordered=True)
    suspend(box, leases[0], limit_ms=LIMIT_MS)
    suspend(box, leases[2], limit_ms=2 * LIMIT_MS)  # its time limit is later
    box.release(leases[1], leases[3])
    now = box.clock.now_ms
    assert box.order()[::-1] == ids  # each at its old place
    assert box.take(4, ordered=True) == []
    fields = box.state()["slot"]
    assert (fields["ordered"], fields["holder"]) == (str(now + LIMIT_MS), ids[0])

    assert deliver(box, ids[0]) == Delivered(1, 1)

    assert "holder" not in box.state()["slot"]
    taken = box.take(4, ordered=True)
    assert [lease.id for lease in taken] == ids[:2]
    box.ack(*taken)
    before = box.state()
    assert box.take(4, ordered=True) == []
    assert box.changed(before) == {
        ("slot", "ordered"): str(now + 2 * LIMIT_MS), ("slot", "holder"): ids[2],
    }  # fmt: skip
    assert box.take(4, ordered=True) == []
    deliver(box, ids[2])
    assert [lease.id for lease in box.take(4, ordered=True)] == ids[2:]


def test_in_order_an_event_of_a_later_message_ends_no_wait(box: Box) -> None:
    first, second = box.send(2)
    suspend(box, *box.take(2, ordered=True))
    assert box.take(2, ordered=True) == []

    deliver(box, second)

    assert box.state()["slot"]["holder"] == first
    assert box.take(2, ordered=True) == []
    deliver(box, first)
    assert [lease.id for lease in box.take(2, ordered=True)] == [first, second]


def test_in_order_the_time_limit_of_the_first_message_ends_the_wait(box: Box) -> None:
    first, second = box.send(2)
    leases = box.take(2, ordered=True)
    suspend(box, leases[0], limit_ms=1000)
    suspend(box, leases[1], limit_ms=LIMIT_MS)
    assert box.take(2, ordered=True) == []
    box.clock.advance(1)

    (taken,) = box.take(2, ordered=True)

    assert taken.id == first
    assert read(box, taken) == [item(box.clock.now_ms, TIMED_OUT, data=b"")]
    box.ack(taken)
    assert box.take(2, ordered=True) == []  # no time out for the second
    assert box.state()["slot"]["holder"] == second


def test_a_slot_stays_in_order_while_a_message_waits_at_its_old_place(box: Box) -> None:
    first, second = box.send(2)
    leases = box.take(2, ordered=True)
    suspend(box, leases[1])
    box.release(leases[0])

    taken = box.take(2)  # not in order

    assert [lease.id for lease in taken] == [first]
    assert box.state()["slot"]["ordered"] == "1"
    box.ack(*taken)
    assert box.take(2) == []
    deliver(box, second)
    assert [lease.id for lease in box.take(2)] == [second]
    assert "ordered" not in box.state()["slot"]


def test_the_member_of_a_waiter_is_the_member_of_its_message(box: Box) -> None:
    id = one_suspended(box)

    assert deliver_command(box, [id]).args[-1] == member_of(id)
    assert DATA in deliver_command(box, [id]).args
