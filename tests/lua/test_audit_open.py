"""audit_open: pages of open numbers, what the slot has counted, and who read it lately."""

from __future__ import annotations

from rmq.features.audit import scripts
from tests.lua.numbers import P, begin, numbered, told


def test_slot_that_nobody_audits_has_nothing(box):
    before = box.state()

    page = box.run(scripts.audit_open(box.keys))

    assert page == scripts.AuditOpenPage(box.clock.now_ms, 0, 0, 0, [])
    assert box.state() == before


def test_page_tells_the_account_and_the_ranges_in_order(box):
    begin(box)
    for number in range(1, 6):
        numbered(box, number)
    told(box, 7, [(6, 7)])
    box.ack(*box.take(2))
    before = box.state()

    page = box.run(scripts.audit_open(box.keys))

    assert page[:4] == (box.clock.now_ms, 7, 2, 2)
    assert page.members == sorted(box.state()["audit"])
    assert box.state() == before


def test_pages_follow_each_other(box):
    begin(box)
    told(box, 9, [(2, 2), (4, 4), (6, 6)])
    whole = box.run(scripts.audit_open(box.keys)).members
    after, found = b"", []
    while page := box.run(scripts.audit_open(box.keys, after, 2)).members:
        assert len(page) <= 2
        after, found = page[-1], found + page

    assert found == whole
    assert len(whole) == 5


def test_a_number_open_all_along_is_on_a_page_whatever_becomes_of_others(box):
    begin(box)
    told(box, 100, [(n, n) for n in range(2, 100, 2)])
    after, seen = b"", set()
    step, page = 0, [b""] * 3
    while len(page) == 3:
        page = box.run(scripts.audit_open(box.keys, after, 3)).members
        after = page[-1]
        for member in page:
            _, last, first, *_ = member.decode().split(":")
            if last != "~":
                seen |= set(range(int(first), int(last) + 1))
        step += 1
        told(box, 100 + step, [(n, n) for n in (100 - step, step)])

    assert step < 40
    assert set(range(41, 60, 2)) <= seen


def test_only_one_of_those_that_ask_so_is_answered(box):
    begin(box)
    assert box.run(scripts.audit_open(box.keys, every_ms=5000)) is not None

    box.clock.advance(4.9)
    assert box.run(scripts.audit_open(box.keys, every_ms=5000)) is None
    assert box.run(scripts.audit_open(box.keys)) is not None
    box.clock.advance(0.2)

    before = box.state()
    assert box.run(scripts.audit_open(box.keys, every_ms=5000)) is not None
    assert box.changed(before) == {("slot", "audit_at"): str(box.clock.now_ms)}
    assert P.encode() in next(iter(before["audit"]))
