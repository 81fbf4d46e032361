"""audit_scan: every numbered message of a slot, once or more, however it moves."""

from __future__ import annotations

import re

import pytest

from rmq.features.audit import scripts
from rmq.kernel.core import record
from rmq.kernel.core.ids import member_of
from tests.lua.numbers import P, Q, begin, merged, numbered


def scan(box, limit=100):
    cursor, found, looked = b"0", [], 0
    while True:
        page = box.run(scripts.audit_scan(box.keys, cursor, limit))
        found += page.living
        looked += page.looked
        cursor = page.cursor
        if cursor == b"0":
            return found, looked


def test_each_queue_has_its_letter(box):
    begin(box)
    dead = numbered(box, 1)
    assert box.reject(box.take_one()) == "d"
    numbered(box, 2)
    flying = box.take_one()
    numbered(box, 3, Q)
    box.one()
    before = box.state()

    found, looked = scan(box)

    assert sorted(found) == [b"d0123456789.1", b"p0123456789.2", b"sabcdef0123.3"]
    assert looked == 4
    assert box.state() == before
    assert dead in box.order("dead")
    assert flying.id in box.order("prepare")


def test_record_that_stands_in_no_queue_is_no_message(box):
    id = numbered(box, 1)
    box.redis.zrem(box.keys.store, member_of(id))

    assert scan(box) == ([], 1)


def test_number_is_found_behind_every_envelope(box):
    merged(box, 1, b"k" * 300)
    numbered(box, 2, due=5000)
    numbered(box, 3, expires=5000)
    numbered(box, 4, due=5000, expires=5000)
    few, many = (
        b"\x81\xa1a\xa1b",
        b"\xde\x00\x10" + b"".join(b"\xa2%02d\xa1v" % n for n in range(16)),
    )
    fifteen = b"\x8f" + b"".join(b"\xa2%02d\xa1v" % n for n in range(15))
    for number, others in ((5, few), (6, many), (7, fifteen)):
        numbered(box, number, others=others)

    assert sorted(scan(box)[0]) == [b"s0123456789.%d" % n for n in range(1, 8)]
    told = {record.audit_number(entry) for entry in box.state()["records"].values()}
    assert told == {b"0123456789.%d" % n for n in range(1, 8)}


@pytest.mark.parametrize(
    "entry",
    [
        b"", b"\x10", b"\x10\0\0\x64\0\0\0\1", b"\x10\0\0\x64\0\0\0\1\0\x05\x81\xa9rmq",
        b"\x14\0\0\x64\0\0\0\1\0", b"\x14\0\0\x64\0\0\0\1\xff\xff",
        b"\x10\0\0\x64\0\0\0\1\0\x05\x81\xa9rmq-audit\xa3x.1",
        b"\x10\0\0\x64\0\0\0\1\0\x05\x81\xa9rmq-audit\xbf" + b"0123456789." + b"9" * 20,
        b"\x10\0\0\x64\0\0\0\1\0\x05\x81\xa1a\xa9rmq-audit\xac0123456789.1",
        b"\x1f" + b"\xff" * 40,
    ],
)  # fmt: skip
def test_record_that_is_cut_short_or_has_no_number_is_passed_over(box, entry):
    id = box.one()
    box.redis.hset(box.keys.records, member_of(id), entry)
    told = record.audit_number(entry) if entry else b""
    assert not re.fullmatch(rb"[0-9a-f]{10}\.\d{1,15}", told)

    assert scan(box) == ([], 1)


def test_whoever_moves_between_the_queues_is_found_all_the_same(box):
    begin(box)
    for number in range(1, 401):
        numbered(box, number)
    cursor, found = b"0", set()
    while True:
        page = box.run(scripts.audit_scan(box.keys, cursor, 20))
        found |= {one[1:] for one in page.living}
        cursor = page.cursor
        leases = box.take(40)
        box.nack(*leases[:20])
        box.reject(*leases[20:25])
        if leases[25:]:
            box.release(*leases[25:])
        if cursor == b"0":
            break

    assert found == {b"%s.%d" % (P.encode(), n) for n in range(1, 401)}
