"""lease_renew.lua on a real server."""

from __future__ import annotations

from tests.lua.query import take as take_for_query
from tests.lua.shared import LEASE_MS, number_now, renew, rollback, take


def test_it_moves_the_end_and_touches_no_message(box):
    box.send(3)
    number = number_now(box)
    take(box)
    box.clock.advance(10)
    before = box.state()

    assert renew(box, number) == LEASE_MS

    ends = box.clock.now_ms + LEASE_MS
    assert box.changed(before) == {
        ("leases", b"%d" % number): ends,
        ("slot", "leases_until"): str(ends),
    }
    after = box.state()
    assert renew(box, number) == LEASE_MS
    assert box.state() == after


def test_it_never_shortens_a_lease(box):
    box.one()
    number = number_now(box)
    take(box)
    before = box.state()

    assert renew(box, number, lease_ms=1000) == LEASE_MS

    assert box.state() == before


def test_a_lease_that_has_expired_is_renewed_while_all_of_it_is_there(box):
    box.one()
    number = number_now(box)
    take(box)
    box.clock.advance(3600)

    assert renew(box, number) == LEASE_MS
    assert rollback(box) == (0, False)


def test_a_lease_that_is_gone_is_not_renewed(box):
    box.one()
    before = box.state()

    assert renew(box, 1) == 0

    assert box.state() == before


def test_a_lease_of_which_something_was_given_back_is_not_renewed(box):
    box.send(2)
    number = number_now(box)
    take(box)
    box.clock.advance(LEASE_MS / 1000)
    assert rollback(box, limit=1) == (1, True)
    before = box.state()

    assert renew(box, number) == 0

    assert box.state() == before


def test_the_first_end_is_that_of_the_others(box):
    box.send(3)
    first = number_now(box)
    take(box, limit=1)
    box.clock.advance(1)
    second = number_now(box)
    take(box, limit=1)
    ends = box.clock.now_ms + LEASE_MS
    box.clock.advance(1)

    renew(box, first)
    assert box.state()["slot"]["leases_until"] == str(ends)

    take_for_query(box, limit=1)  # for ten minutes
    renew(box, second, lease_ms=900_000)
    renew(box, first, lease_ms=900_000)
    assert box.state()["slot"]["leases_until"] == str(box.clock.now_ms + 600_000)
