"""query_read.lua on a real server."""

from __future__ import annotations

import pytest
from redis import ResponseError

from rmq.kernel.core.ids import member_of
from tests.lua.box import stored
from tests.lua.query import RUN, lapse, log, read, receipt, take


def test_read_hands_out_what_is_held_in_order_and_notes_that_and_nothing_else(box):
    ids = box.send(3, body=b"hello")
    take(box)
    before = box.state()

    page = read(box)

    assert page.numbers == [1, 2, 3]
    assert page.ids == ids
    assert page.receipts == []
    assert page.records == [stored(n, b"hello", priority=100) for n in (1, 2, 3)]
    assert box.changed(before) == {(f"query:{RUN}", b"read"): b"3"}
    after = box.state()
    assert read(box) == page
    assert read(box, 0, 2).numbers == [1, 2]
    assert box.state() == after


def test_bytes_that_were_read_are_added_up_for_a_query_that_is_known(box):
    box.send(2)
    take(box)
    before = box.state()

    assert read(box, 2, 2, limit=1, records=False, bytes_read=70).numbers == []
    read(box, 2, 2, limit=1, records=False, bytes_read=30)

    assert box.changed(before) == {(f"query:{RUN}", b"bytes"): b"100"}
    after = box.state()
    read(box, run="c" * 32, bytes_read=5)
    assert box.state() == after, "no query is made by it"
    with pytest.raises(ResponseError, match="bytes"):
        read(box, bytes_read=-1)


def test_read_is_bounded_by_numbers_and_limit(box):
    box.send(5)
    take(box)

    assert read(box, 1, 4).numbers == [2, 3, 4]
    assert read(box, 1, 4, limit=2).numbers == [2, 3]
    assert read(box, 5, 9) == ([], [], [], [])
    assert read(box, run="c" * 32) == ([], [], [], [])


def test_receipts_come_with_the_records_where_something_has_failed(box):
    failed, _ = box.send(2)
    box.nack(box.take_one())
    take(box)

    page = read(box)

    told = dict(zip(page.ids, page.receipts, strict=True))
    assert int(told.pop(failed) % 1000) == 15
    assert [int(one % 1000) for one in told.values()] == [16]


def test_what_was_settled_behind_its_back_has_no_receipt(box):
    first, _ = box.send(2)
    take(box)
    box.redis.zrem(box.keys.prepare, member_of(first))
    box.redis.hset(box.keys.failures, b"another", box.failure(16, 1, "f"))  # receipts are told now

    page = read(box)

    assert page.receipts == [-1.0, receipt(1)]
    assert len(page.ids) == 2


def test_numbers_go_on_behind_what_has_lapsed(box):
    box.send(4)
    take(box, limit=2)
    lapse(box, force=True)
    take(box, after=2, limit=2)

    assert read(box).numbers == [3, 4]
    assert read(box, 0, 3).numbers == [3]
    assert read(box, 3, limit=1).numbers == [4]
    assert read(box, 4).numbers == []


def test_what_has_lapsed_is_not_handed_out(box):
    box.send(2)
    take(box)
    lapse(box, force=True)

    assert read(box).ids == []


def test_a_page_ends_where_4_mib_are_full(box):
    box.send(3, body=b"x" * 1_500_000)
    take(box)

    assert read(box).numbers == [1, 2, 3]
    box.send(1, body=b"x" * 1_500_000)
    take(box, after=3)
    assert read(box).numbers == [1, 2, 3]
    assert read(box, 3).numbers == [4]


def test_members_alone_are_handed_out_4000_at_a_time(box):
    for _ in range(5):
        box.send(1000)
    take(box, limit=4000)
    take(box, 4000, 4000)

    page = read(box, 0, 5000, 4000, records=False)

    assert (page.numbers, page.ids) == (list(range(1, 4001)), list(log(box))[:4000])
    assert (page.receipts, page.records) == ([], [])
    assert box.state()[f"query:{RUN}"][b"read"] == b"4000"
    assert read(box, 4000, 5000, 4000, records=False).numbers == list(range(4001, 5001))
    for limit, records in ((4001, False), (1001, True)):
        with pytest.raises(ResponseError, match="ARG limit"):
            read(box, limit=limit, records=records)


def test_what_was_handed_out_does_not_become_less(box):
    box.send(3)
    take(box)
    read(box, 0, 3)

    assert read(box, 0, 1).numbers == [1]

    assert box.state()[f"query:{RUN}"][b"read"] == b"3"
