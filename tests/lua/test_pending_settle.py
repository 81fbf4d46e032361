"""pending_settle.lua on a real server."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.kernel.core.ids import member_of
from rmq.kernel.follow_ups.scripts import Refused, entry_of, number_of
from tests.lua.box import GONE, Box, stored
from tests.lua.crediting import break_script
from tests.lua.following import TARGET, ack_then, follow_up, own, settle, text_of

CLAIM_S, CLAIM_MS = 5, 5000


def waiting(box: Box, count: int = 3, target: str = TARGET) -> tuple[Any, list[Any]]:
    """Store pending entries; the reply of ack_then, and the follow-ups."""
    box.send(1)
    given = [follow_up(box, target=target, body=b"%d" % n) for n in range(count)]
    return ack_then(box, [box.take_one()], *given), given


def test_entries_that_are_stored_are_removed_and_the_next_are_returned(box: Box) -> None:
    reply, given = waiting(box)
    before = box.state()

    settled = settle(box, reply.number, reply.claim)

    assert box.changed(before) == {("pending", text_of(TARGET, reply.number, given[0])): GONE}
    assert settled.claim == reply.claim
    assert settled.entries == [
        entry_of(reply.number + n, each.message) for n, each in enumerate(given[1:], 1)
    ]


def test_with_the_last_entry_the_target_is_removed(box: Box) -> None:
    reply, _ = waiting(box)

    settled = settle(box, reply.number + 2, reply.claim)

    assert settled == (b"", [])
    assert not {"pending", "targets"} & set(box.state())


def test_a_second_or_a_late_call_removes_nothing_more(box: Box) -> None:
    reply, _ = waiting(box)
    settle(box, reply.number, reply.claim)
    before = box.state()

    settle(box, reply.number, reply.claim)
    settle(box, reply.number - 1, b"another")

    assert box.changed(before) == {}


def test_entries_of_other_targets_stay(box: Box) -> None:
    reply, given = waiting(box)
    for target in ("other:30", "other:2", "othe:3", "other.x:3"):
        waiting(box, target=target)

    settle(box, 9 * 10**15, reply.claim)

    left = box.state()["pending"]
    assert len(left) == 12
    assert not any(text_of(TARGET, reply.number + n, each) in left for n, each in enumerate(given))
    assert TARGET.encode() not in box.state()["targets"]


def test_another_process_gets_no_entries_until_the_claim_has_expired(box: Box) -> None:
    reply, _ = waiting(box)

    assert settle(box) == (b"", [])
    assert settle(box, claim=b"1") == (b"", [])
    box.clock.advance(CLAIM_S)
    taken = settle(box)
    assert len(taken.entries) == 3
    assert taken.claim == b"%d" % (box.clock.now_ms + CLAIM_MS)
    assert settle(box, claim=reply.claim) == (b"", []), "the claim of the first process is gone"


def test_a_target_that_cannot_take_them_now_is_left_alone_for_a_time(box: Box) -> None:
    reply, _ = waiting(box)

    assert settle(box, reply.number, reply.claim, wait_ms=60_000) == (b"", [])

    assert box.state()["targets"] == {TARGET.encode(): box.clock.now_ms + 60_000}
    box.clock.advance(59)
    assert settle(box).entries == []
    box.clock.advance(1)
    assert len(settle(box).entries) == 2


def test_with_the_limit_0_the_next_process_may_begin_at_once(box: Box) -> None:
    reply, _ = waiting(box)

    assert settle(box, reply.number, reply.claim, limit=0) == (b"", [])

    assert len(settle(box).entries) == 2


def test_the_limit_and_the_bytes_bound_a_reply(box: Box) -> None:
    box.send(1)
    large = [follow_up(box, body=b"b" * 1_500_000) for _ in range(4)]
    reply = ack_then(box, [box.take_one()], *large)

    assert len(settle(box, claim=reply.claim, limit=1).entries) == 1
    box.clock.advance(CLAIM_S)
    assert len(settle(box, limit=10).entries) == 2


def refused(box: Box, number: int) -> Refused:
    return Refused(number, member_of(box.ids()[0]), *box.part(body=b"dead"), b"why")


def test_a_refused_entry_becomes_a_dead_letter_in_the_same_step(box: Box) -> None:
    reply, given = waiting(box)
    of_first = refused(box, reply.number)
    before = box.state()

    settled = settle(box, 0, reply.claim, refused=of_first)

    id = box.keys.id_of(of_first.member)
    assert box.changed(before) == {
        ("pending", text_of(TARGET, reply.number, given[0])): GONE,
        ("records", id): stored(2, priority=100, body=b"dead"),
        ("dead", id): box.clock.now_ms,
        ("failures", id): box.failure(0, 1, "r", b"why"),
        ("slot", "accepted"): "2",
        ("slot", "dead_lettered"): "1",
    }
    assert list(map(number_of, settled.entries)) == [reply.number + 1, reply.number + 2]
    before = box.state()
    settle(box, 0, settled.claim, refused=of_first)
    assert box.changed(before) == {}, "a second call finds another first entry"


def test_a_dead_letter_that_keeps_its_result_is_noted_in_the_slot(box: Box) -> None:
    reply, _ = waiting(box)
    part = box.part(body=b"dead", keep=60)
    letter = Refused(reply.number, member_of(box.ids()[0]), *part, b"why")

    settle(box, 0, reply.claim, refused=letter)

    state = box.state()
    assert state["slot"]["outcomes"] == "1"
    assert state["results"][box.keys.id_of(letter.member)][:1] == b"d"


def test_only_the_process_with_the_claim_makes_a_dead_letter_of_an_entry(box: Box) -> None:
    reply, _ = waiting(box)
    box.clock.advance(CLAIM_S)
    taken = settle(box)
    assert len(taken.entries) == 3

    settle(box, 0, reply.claim, refused=refused(box, reply.number))

    assert "dead" not in box.state()
    assert len(box.state()["pending"]) == 3


def test_only_the_first_entry_may_be_refused(box: Box) -> None:
    reply, _ = waiting(box)

    settle(box, 0, reply.claim, refused=refused(box, reply.number + 1))

    assert "dead" not in box.state()
    assert len(box.state()["pending"]) == 3


def test_a_slot_sends_to_itself_when_it_takes_messages_again(box: Box) -> None:
    box.redis.hset(box.keys.slot, "paused_send", 1)
    box.redis.hdel(box.keys.slot, "paused_send")
    reply, _ = waiting(box, target=own(box))

    assert reply.targets == {}
    assert len(box.state()["store"]) == 3


def test_a_script_that_ignores_the_claim_buries_what_another_process_may_have_stored(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_script(monkeypatch, "pending_settle", "if refused and is_mine then", "if refused then")
    reply, _ = waiting(box)
    box.clock.advance(CLAIM_S)
    settle(box)

    settle(box, 0, reply.claim, refused=refused(box, reply.number))

    assert len(box.state()["dead"]) == 1
