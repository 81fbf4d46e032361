"""event_read.lua on a real server: what a delivery finds of its events."""

from __future__ import annotations

import pytest
import redis

from rmq.kernel.events import scripts
from tests.lua.box import GONE, Box
from tests.lua.eventing import (
    KEY,
    OVER,
    TIMED_OUT,
    deliver,
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


def test_a_delivery_reads_the_event_that_it_got(box: Box) -> None:
    id = one_suspended(box)
    deliver(box, id)
    stored = item(box.clock.now_ms)
    box.clock.advance(1)
    lease = box.take_one()
    before = box.state()

    for _ in range(2):
        assert read(box, lease) == [stored]
        assert box.changed(before) == {}


def test_a_delivery_that_still_waits_has_timed_out(box: Box) -> None:
    id = one_suspended(box, limit_ms=1000)
    box.clock.advance(1)
    lease = box.take_one()
    before = box.state()
    assert suspended(box) == {"waited": "1", "suspended": "1", "large": "1"}
    late = item(box.clock.now_ms, TIMED_OUT, data=b"")

    for _ in range(2):  # a call that arrives twice
        assert read(box, lease) == [late]
        assert box.changed(before) == {
            steps_at(id): late,
            wait_at(id): wait_of(box, OVER, ago_ms=1000, limit_ms=1000),
            ("waits", id): GONE,
            ("slot", "suspended"): "0",
            ("slot", "steps"): "1",
            ("slot", "large"): "2",
        }
        assert suspended(box) == {"waited": "1", "suspended": "0", "steps": "1", "large": "2"}


def test_a_later_attempt_reads_the_same(box: Box) -> None:
    one_suspended(box, limit_ms=1000)
    box.clock.advance(1)
    lease = box.take_one()
    found = read(box, lease)
    box.nack(lease)
    box.clock.advance(60)

    assert read(box, box.take_one()) == found


def test_only_deliveries_that_have_waited_have_an_entry(box: Box) -> None:
    waited = one_suspended(box)
    deliver(box, waited)
    plain, stepped = box.send(2)
    leases = {lease.id: lease for lease in box.take(3)}
    store_step(box, leases[stepped], b"a")

    assert read(box, leases[plain], leases[waited], leases[stepped]) == [
        b"", item(box.clock.now_ms), b"",
    ]  # fmt: skip


def test_without_a_valid_receipt_nothing_is_read_or_changed(box: Box) -> None:
    one_suspended(box, limit_ms=1000)
    other = one_suspended(box)
    deliver(box, other)
    box.clock.advance(1)
    leases = box.take(2)
    box.release(*leases)
    again = box.take(2)
    before = box.state()

    assert read(box, *leases) == [None, None]
    assert read(box, *[lease._replace(id=box.ids()[0]) for lease in again]) == [None, None]
    assert box.changed(before) == {}
    assert all(read(box, *again))


def test_the_reply_ends_after_4_mib(box: Box) -> None:
    box.send(10)
    suspend(box, *box.take(10))
    data = b"\x01" + bytes(256 * 1024)
    for id in box.order():
        deliver(box, id, data=data)
    leases = box.take(10)
    for lease in leases:
        store_step(box, lease, b"large", b"\x01" + bytes(600_000))

    first = read(box, *leases)
    rest = read(box, *leases[len(first) :])

    assert (len(first), len(rest)) == (5, 5)
    assert all(len(entry) > 850_000 for entry in [*first, *rest])


def test_a_delivery_that_is_named_twice_times_out_once(box: Box) -> None:
    one_suspended(box, limit_ms=1000)
    box.clock.advance(1)
    lease = box.take_one()
    late = item(box.clock.now_ms, TIMED_OUT, data=b"")

    assert read(box, *[lease] * 30) == [late] * 30
    assert suspended(box) == {"waited": "1", "suspended": "0", "steps": "1", "large": "2"}


def test_1000_deliveries_in_one_call(box: Box) -> None:
    box.send(1000)
    suspend(box, *box.take(1000), limit_ms=1000)
    box.clock.advance(2)
    leases = [*box.take(1000), *box.take(500)]  # 500 waited messages in one call
    late = item(box.clock.now_ms, TIMED_OUT, data=b"")

    assert read(box, *leases) == [late] * 1000
    assert suspended(box)["suspended"] == "0"
    assert "waits" not in box.state()


@pytest.mark.parametrize(
    ("field", "args"),
    [
        ("deliveries", []),
        ("deliveries", [b"x" * 13]),
        ("deliveries", [b"x" * 13] * 1001 + ["1"] * 1001),
        ("id", [b"x" * 12, "1"]),
        ("receipt", [b"x" * 13, "x"]),
    ],
)
def test_wrong_arguments_change_nothing(box: Box, field: str, args: list[object]) -> None:
    one_suspended(box)
    before = box.state()
    keys = (box.keys.slot, box.keys.prepare, box.keys.bodies, box.keys.waits)

    with pytest.raises(redis.ResponseError, match=f"RMQARG {field}"):
        box.raw("event_read", keys, ["", *args])
    assert box.changed(before) == {}


def test_a_time_out_is_noted_at_maxmemory(tight: Box) -> None:
    one_suspended(tight, limit_ms=1000)
    tight.clock.advance(1)
    lease = tight.take_one()
    command = scripts.event_read(tight.keys, [lease.id], [lease.receipt])
    tight.redis.script_load(command.script.text)
    tight.redis.config_set("maxmemory", 1)

    late = item(tight.clock.now_ms, TIMED_OUT, KEY, b"")
    assert tight.run(command) == [late]
    assert tight.run(command) == [late]
