"""pending.lua on a real server."""

from __future__ import annotations

from rmq.kernel.follow_ups import scripts
from tests.lua.box import Box
from tests.lua.eventing import checks, one_suspended
from tests.lua.following import TARGET, ack_then, follow_up


def test_a_slot_without_entries_has_no_targets(box: Box) -> None:
    assert box.run(scripts.pending(box.keys)) == (box.clock.now_ms, 0, 0, 0, 0, [])


def test_targets_come_by_the_time_at_which_they_may_be_sent(box: Box) -> None:
    box.send(3)
    first, second, third = box.take(3)
    late = ack_then(box, [first], follow_up(box), follow_up(box, target="late:0"))
    box.run(scripts.pending_settle(box.keys, "late:0", 0, late.claim, 10, wait_ms=60_000))
    box.clock.advance(1)
    last = ack_then(box, [second], follow_up(box, target="new:7"), follow_up(box))
    ack_then(box, [third], follow_up(box, target="new:70"))
    before = box.state()

    reply = box.run(scripts.pending(box.keys))

    now = box.clock.now_ms
    assert reply == (
        now, 5, 4, 0, 0,
        [
            (TARGET, now + 4000, late.number, 2), ("new:7", now + 5000, last.number, 1),
            ("new:70", now + 5000, last.number + 2, 1),
            ("late:0", now + 59_000, late.number + 1, 1),
        ],
    )  # fmt: skip
    assert box.state() == before


def test_a_page_of_targets(box: Box) -> None:
    box.send(1)
    ack_then(box, [box.take_one()], *(follow_up(box, target=f"t:{n}") for n in range(5)))

    pages = [box.run(scripts.pending(box.keys, offset, 2)).page for offset in (0, 2, 4, 6)]

    assert [len(page) for page in pages] == [2, 2, 1, 0]
    assert {each.target for page in pages for each in page} == {f"t:{n}" for n in range(5)}
    assert box.run(scripts.pending(box.keys, 0, 0)).page == []


def test_suspended_messages_that_are_to_be_registered_are_counted(box: Box) -> None:
    one_suspended(box)
    one_suspended(box)
    assert box.run(scripts.pending(box.keys)).checks == 2

    checks(box, limit=1)

    assert box.run(scripts.pending(box.keys)).checks == 1
    box.clock.advance(5)
    assert box.run(scripts.pending(box.keys)).checks == 2
