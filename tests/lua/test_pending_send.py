"""pending_send.lua on a real server."""

from __future__ import annotations

import pytest
import redis

from rmq.kernel.core import record
from rmq.kernel.core.ids import member_of
from rmq.kernel.follow_ups import scripts
from rmq.kernel.follow_ups.scripts import entry_of, record_of, with_number
from tests.lua.box import Box, ordered, stored
from tests.lua.crediting import break_script
from tests.lua.following import entry, member_in, pending_send


def test_entries_are_stored_and_the_highest_number_noted(box: Box) -> None:
    first, second = box.ids(2)
    before = box.state()

    sent = pending_send(box, entry(box, 7, first, body=b"1"), entry(box, 9, second, body=b"2"))

    assert sent == (2, "")
    assert box.changed(before) == {
        ("store", first): ordered(100, 1),
        ("store", second): ordered(100, 2),
        ("records", first): stored(1, priority=100, body=b"1"),
        ("records", second): stored(2, priority=100, body=b"2"),
        ("slot", "accepted"): "2",
        ("slot", "order"): "2",
        ("slot", "<source:0"): f"{9:016d}",
    }


def test_an_entry_is_stored_once_also_if_its_message_is_settled(box: Box) -> None:
    given = [entry(box, number) for number in (1, 2, 3)]
    assert pending_send(box, *given[:2]) == (2, "")
    box.ack(*box.take(2))
    before = box.state()

    assert pending_send(box, *given[:2]) == (2, "")
    assert pending_send(box, given[0]) == (1, "")

    assert box.changed(before) == {}
    assert pending_send(box, *given) == (3, "")
    assert [lease.id for lease in box.take(10)] == [box.keys.id_of(member_in(given[2]))]


def test_each_source_has_its_own_numbers(box: Box) -> None:
    assert pending_send(box, entry(box, 5), source="a:0") == (1, "")
    assert pending_send(box, entry(box, 5), source="a:1") == (1, "")
    assert pending_send(box, entry(box, 5), source="b:0") == (1, "")

    assert len(box.state()["store"]) == 3


def test_a_million_entries_leave_one_field(box: Box) -> None:
    for number in (1, 10**6, 10**15):
        pending_send(box, entry(box, number))
        box.ack(*box.take(1))

    fields = [name for name in box.state()["slot"] if name.startswith("<")]
    assert fields == ["<source:0"]


def test_while_sends_are_paused_nothing_is_stored_or_noted(box: Box) -> None:
    given = [entry(box, 1), entry(box, 2)]
    pending_send(box, given[0])
    box.redis.hset(box.keys.slot, "paused_send", 1)
    before = box.state()

    assert pending_send(box, *given) == (1, "p")

    assert box.changed(before) == {}
    box.redis.hdel(box.keys.slot, "paused_send")
    assert pending_send(box, *given) == (2, "")


def test_a_full_slot_stores_as_many_as_it_has_room_for(box: Box) -> None:
    box.send(3)
    box.redis.hset(box.keys.slot, mapping={"capacity": 5, "overflow": "reject"})
    given = [entry(box, number) for number in range(1, 5)]

    assert pending_send(box, *given) == (2, "f")
    assert pending_send(box, *given) == (2, "f")
    assert len(box.state()["store"]) == 5
    box.ack(*box.take(2))
    assert pending_send(box, *given) == (4, "")


def test_if_the_lowest_is_dropped_a_higher_entry_takes_its_place(box: Box) -> None:
    low = box.one(priority=20)
    box.redis.hset(box.keys.slot, mapping={"capacity": 1, "overflow": "drop_lowest"})

    assert pending_send(box, entry(box, 1, priority=900)) == (1, "")
    assert pending_send(box, entry(box, 2, priority=20)) == (0, "f")

    assert low not in box.state()["records"]
    assert box.state()["slot"]["<source:0"] == f"{1:016d}"


def test_an_id_that_is_in_the_slot_or_was_settled_adds_nothing_and_counts_as_stored(
    box: Box,
) -> None:
    waiting, settled = box.one(kept=True), box.one(kept=True)
    leases = {lease.id: lease for lease in box.take(2)}
    box.ack(leases[settled])
    (fresh,) = box.ids()
    given = [entry(box, n, id, body=b"x") for n, id in enumerate((waiting, fresh, settled), 1)]

    assert pending_send(box, *given) == (3, "")

    assert set(box.state()["records"]) == {waiting, fresh}
    assert box.state()["records"][waiting] == stored(1, priority=100)


def test_a_topic_that_was_created_again_has_no_numbers(make_box, box: Box) -> None:
    pending_send(box, entry(box, 10**15))
    box.redis.delete(box.keys.slot, box.keys.store, box.keys.records)
    with pytest.raises(redis.ResponseError, match="RMQGONE"):
        pending_send(box, entry(box, 1))


def test_numbers_that_do_not_grow_are_refused(box: Box) -> None:
    before = box.state()
    for numbers in ((2, 1), (1, 1)):
        with pytest.raises(redis.ResponseError, match="RMQARG order"):
            pending_send(box, *(entry(box, number) for number in numbers))
    assert box.state() == before


def test_a_script_that_forgets_the_number_stores_an_entry_twice(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_script(
        monkeypatch, "pending_send", "redis.call('HSET', slot, '<' .. source",
        "redis.call('HSET', slot, 'note'",
    )  # fmt: skip
    given = entry(box, 1)
    pending_send(box, given)
    box.ack(box.take_one())

    pending_send(box, given)

    assert member_of(box.take_one().id) == member_in(given)


def test_the_reply_tells_which_entries_this_call_has_stored(box: Box) -> None:
    (waiting,) = box.send(1)
    first, duplicate = entry(box, 1), entry(box, 2, waiting)
    pending_send(box, first)

    reply = box.run(
        scripts.pending_send(box.handle, box.keys, "source:0", [first, duplicate, entry(box, 3)])
    )

    assert reply == (3, "", 1, "ds")
    assert [reply.is_new(at) for at in range(4)] == [False, False, True, False]


def test_an_audit_number_is_the_first_header_of_an_entry(box: Box) -> None:
    head = bytes((record.TIMED | record.EXPIRES | record.HEADERS, 0, 0, 200))
    envelope = bytes(5) + b"\5" + bytes(5) + b"\7" + record.length_prefixed(b"\x81\xa1h\xa11")
    plain = entry_of(1, member_of(box.ids()[0]) + head + envelope + b"body")

    numbered = record_of(with_number(plain, "0123456789", 3))

    assert numbered._replace(headers={}) == record_of(plain)._replace(headers={})
    assert list(numbered.headers.items()) == [("rmq-audit", "0123456789.3"), ("h", "1")]
