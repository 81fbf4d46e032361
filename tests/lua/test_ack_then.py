"""ack_then.lua on a real server."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from rmq.features.messages import scripts as messages_scripts
from rmq.kernel.core.ids import member_of
from rmq.kernel.core.keys import results_channel
from rmq.kernel.results.entry import encode_success
from rmq.kernel.results.scripts import progress
from tests.lua import group
from tests.lua.box import GONE, Box, ordered, stored
from tests.lua.crediting import break_script
from tests.lua.following import (
    TARGET,
    FollowUp,
    ack_then,
    ack_then_command,
    follow_up,
    own,
    text_of,
)

CLAIM_MS = 5000


def test_a_follow_up_for_the_same_slot_is_stored_in_the_step_of_the_ack(box: Box) -> None:
    first = box.one()
    lease = box.take_one()
    before = box.state()
    next_id = box.ids()[0]

    reply = ack_then(box, [lease], follow_up(box, target=own(box), id=next_id, body=b"next"))

    assert (reply.codes, reply.number, reply.targets) == ("1", 0, {})
    assert box.changed(before) == {
        ("prepare", first): GONE,
        ("records", first): GONE,
        ("records", next_id): stored(2, priority=100, body=b"next"),
        ("store", next_id): ordered(100, 2),
        ("slot", "settled"): "1",
        ("slot", "accepted"): "2",
        ("slot", "order"): "2",
    }


def test_a_follow_up_for_another_slot_becomes_a_pending_entry(box: Box) -> None:
    (first,) = box.send(1)
    lease = box.take_one()
    before = box.state()
    given, second = follow_up(box), follow_up(box, body=b"second")

    reply = ack_then(box, [lease], given, second)

    number = box.clock.now_us
    assert reply.codes == "1"
    assert (reply.number, reply.targets) == (number, {TARGET: "n"})
    assert reply.claim == b"%d" % (box.clock.now_ms + CLAIM_MS)
    assert box.changed(before) == {
        ("prepare", first): GONE,
        ("records", first): GONE,
        ("pending", text_of(TARGET, number, given)): 0,
        ("pending", text_of(TARGET, number + 1, second)): 0,
        ("targets", TARGET.encode()): box.clock.now_ms + CLAIM_MS,
        ("slot", "settled"): "1",
        ("slot", "follow_ups"): str(number + 1),
    }


def test_a_lost_lease_drops_its_own_follow_ups_only(box: Box) -> None:
    box.send(2)
    lost, kept = box.take(2)
    box.ack(lost)
    of_lost, of_kept = follow_up(box, 1), follow_up(box, 2)
    here = follow_up(box, 1, target=own(box))

    reply = ack_then(box, [lost, kept], of_lost, here, of_kept)

    assert reply.codes == "01"
    state = box.state()
    assert list(state["pending"]) == [text_of(TARGET, reply.number, of_kept)]
    assert "store" not in state


def test_without_a_valid_receipt_nothing_changes(box: Box) -> None:
    box.send(1)
    lease = box.take_one()
    box.release(lease)
    before = box.state()

    reply = ack_then(box, [lease], follow_up(box), follow_up(box, target=own(box)))

    assert (reply.codes, reply.number) == ("0", 0)
    assert box.changed(before) == {}


def test_a_copy_gets_the_first_answer_and_stores_nothing(box: Box) -> None:
    box.send(1)
    lease, session = box.take_one(), box.session()
    given = [follow_up(box), follow_up(box, target=own(box))]

    reply = box.twice(lambda: ack_then_command(box, [lease], *given, session=session))

    assert reply.codes == "1"
    assert len(box.state()["pending"]) == 1
    assert len(box.state()["store"]) == 1


def test_one_process_at_a_time_sends_to_a_target(box: Box) -> None:
    box.send(4)
    first, second, third, fourth = box.take(4)

    assert ack_then(box, [first], follow_up(box)).targets == {TARGET: "n"}
    assert ack_then(box, [second], follow_up(box), follow_up(box, target="x:0")).targets == {
        TARGET: "w", "x:0": "n",
    }  # fmt: skip
    box.clock.advance(CLAIM_MS / 1000)
    assert ack_then(box, [third], follow_up(box)).targets == {TARGET: "o"}
    assert ack_then(box, [fourth], follow_up(box)).targets == {TARGET: "w"}


def test_an_ack_wins_over_a_request_to_cancel(box: Box) -> None:
    box.send(1)
    lease = box.take_one()
    cancel = messages_scripts.cancel(box.handle, box.keys, box.session(), lease.id, running=True)
    assert box.run(cancel) == "requested"

    assert ack_then(box, [lease], follow_up(box)).codes == "1"

    fields = box.state()["slot"]
    assert "cancelling" not in fields
    assert not [name for name in fields if name.startswith("~")]
    assert len(box.state()["pending"]) == 1


def test_numbers_grow_also_if_the_clock_does_not(box: Box) -> None:
    box.send(3)
    numbers = []
    for lease in box.take(3):
        numbers.append(ack_then(box, [lease], follow_up(box), follow_up(box)).number)

    assert numbers == [box.clock.now_us + 2 * n for n in range(3)]


@pytest.mark.parametrize("why", ["paused", "full", "older"])
def test_a_follow_up_for_the_same_slot_waits_while_the_slot_refuses_sends(
    box: Box, why: str
) -> None:
    box.send(3)
    lease, other = box.take(2)
    if why == "paused":
        box.redis.hset(box.keys.slot, "paused_send", 1)
    elif why == "full":
        box.redis.hset(box.keys.slot, mapping={"capacity": 1, "overflow": "reject"})
    else:
        box.redis.hset(box.keys.slot, "paused_send", 1)
        ack_then(box, [other], follow_up(box, target=own(box)))
        box.redis.hdel(box.keys.slot, "paused_send")
    given, away = follow_up(box, target=own(box)), follow_up(box)

    reply = ack_then(box, [lease], given, away)

    assert reply.targets == {own(box): "w" if why == "older" else "n", TARGET: "n"}
    assert text_of(own(box), reply.number, given) in box.state()["pending"]
    assert text_of(TARGET, reply.number + 1, away) in box.state()["pending"]
    assert len(box.state()["store"]) == 1


def test_a_follow_up_with_the_id_of_a_stored_message_adds_nothing(box: Box) -> None:
    box.send(1)
    lease = box.take_one()
    waiting = box.one()
    before = box.state()["records"][waiting]

    reply = ack_then(box, [lease], follow_up(box, target=own(box), id=waiting, body=b"other"))

    assert reply.codes == "1"
    assert box.state()["records"] == {waiting: before}


def test_a_delay_and_an_expiry_count_from_the_ack(box: Box) -> None:
    box.send(1)
    lease, id = box.take_one(), box.ids()[0]

    ack_then(box, [lease], follow_up(box, target=own(box), id=id, due=5000, expires=1000))

    now = box.clock.now_ms
    assert box.state()["records"][id] == stored(2, due=now + 5000, expires=now + 6000)
    assert box.redis.hexists(box.keys.slot, "no_expiry") is False


def test_in_a_group_the_follow_up_comes_behind_the_messages_that_wait(make_box) -> None:
    box = group.grouped(make_box)
    first, second = group.send(box, "a", "a")
    lease = box.take_one()
    assert lease.id == first
    id = box.ids()[0]

    ack_then(box, [lease], FollowUp(1, own(box), member_of(id) + b"".join(group.parts_of("a"))))

    group.check(box)
    assert group.drained(box) == [second, id]
    group.nothing_left(box)


@pytest.mark.parametrize(
    ("position", "value", "name"),
    [
        (0, 2, "delivery"), (0, 0, "delivery"), (1, "no index", "target"),
        (2, bytes(16), "message"), (2, bytes([*bytes(13), 0, 0, 0, 3]), "priority"),
        (2, bytes([*bytes(13), 8, 0, 0, 50]), "flags"),
        (2, bytes([*bytes(13), 5, 0, 0, 50]), "flags"),
    ],
)  # fmt: skip
def test_a_follow_up_that_cannot_be_stored_is_refused_before_anything_changes(
    box: Box, position: int, value: object, name: str
) -> None:
    box.send(1)
    lease = box.take_one()
    given = list(follow_up(box, target=own(box)))
    given[position] = value
    before = box.state()

    with pytest.raises(redis.ResponseError, match=f"RMQARG {name}"):
        ack_then(box, [lease], FollowUp(*given))

    assert box.state() == before


def test_a_script_that_does_not_look_at_the_letters_sends_what_a_lost_lease_must_not(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_script(
        monkeypatch, "ack_then", "if string.byte(letters, deliveries[place]) == wanted then", "do"
    )
    box.send(2)
    lost, kept = box.take(2)
    box.ack(lost)

    ack_then(box, [lost, kept], follow_up(box, 1), follow_up(box, 2))

    assert len(box.state()["pending"]) == 2


# --- results -----------------------------------------------------------------------------------


def test_the_result_of_a_message_with_the_mark_is_stored_and_told(box: Box) -> None:
    plain, kept = box.one(priority=200), box.one(keep=60)
    leases = box.take(2)
    listener = box.redis.pubsub()
    listener.subscribe(results_channel("rmq", box.handle.name, box.index))
    listener.get_message(timeout=5)
    before, session, result = box.state(), box.session(), encode_success("w", 1, 7, 2, b"value")

    reply = box.twice(lambda: ack_then_command(box, leases, session=session, results=[b"", result]))

    assert reply.codes == "11"
    at = box.clock.now_ms - 250  # of the first run
    changed = box.changed(before)
    assert changed.pop(("results", kept)) == b"s" + at.to_bytes(6, "big") + result[1:]
    assert changed == {
        ("keeping", kept): at + 60_000,
        ("prepare", plain): GONE,
        ("prepare", kept): GONE,
        ("records", plain): GONE,
        ("records", kept): GONE,
        ("slot", "settled"): "2",
    }
    told = listener.get_message(timeout=5)
    assert told["data"] == b"done " + member_of(kept)
    assert listener.get_message(timeout=0.05) is None
    listener.close()


def test_one_result_belongs_to_all_deliveries_with_the_mark(box: Box) -> None:
    for keep in (60, 0, 60, 9):
        box.one(keep=keep)
    leases = lost, _, third, fourth = box.take(4)
    box.release(lost)
    before, session, now_ms = box.state(), box.session(), box.clock.now_ms

    def call() -> Any:
        return ack_then_command(box, leases, session=session, results=[b"sdetails"])

    assert box.twice(call).codes == "0111"
    changed = box.changed(before)
    entry = b"s" + now_ms.to_bytes(6, "big") + b"details"
    assert {key: value for key, value in changed.items() if key[0] in ("results", "keeping")} == {
        ("results", third.id): entry,
        ("keeping", third.id): now_ms + 60_000,
        ("results", fourth.id): entry,
        ("keeping", fourth.id): now_ms + 9_000,
    }


@pytest.mark.parametrize("results", [[b"sdetails"], [b"sdetails"] * 4, [b"", b"sdetails"] * 2])
def test_the_time_of_keeping_may_be_given_instead_of_read_in_the_records(
    box: Box, results: list[bytes]
) -> None:
    box.send(4, keep=60)
    lost, *leases = box.take(4)
    box.release(lost)
    before, now_ms = box.state(), box.clock.now_ms

    assert ack_then(box, [lost, *leases], results=results, keep_s=7).codes == "0111"
    changed = box.changed(before)
    of_each = results * 4 if len(results) == 1 else results
    entry = b"s" + now_ms.to_bytes(6, "big") + b"details"
    kept = {x.id for x, given in zip(leases, of_each[1:], strict=False) if given}
    assert {id: changed[key, id] for key, id in changed if key == "results"} == {
        id: entry for id in kept
    }
    assert {id: changed[key, id] for key, id in changed if key == "keeping"} == {
        id: now_ms + 7_000 for id in kept
    }


def test_a_time_of_keeping_without_results_is_ignored(box: Box) -> None:
    box.one()
    id = box.one(keep=60)

    ack_then(box, box.take(2), keep_s=7)

    state = box.state()
    assert state["keeping"] == {id: box.clock.now_ms + 60_000}
    assert list(state["results"]) == [id]


@pytest.mark.parametrize("count", [2, 4, 1001])
def test_results_are_none_or_one_or_as_many_as_deliveries(box: Box, count: int) -> None:
    box.send(3, keep=60)
    leases = box.take(3)
    before = box.state()

    with pytest.raises(redis.ResponseError, match=r"RMQARG (count|results)"):
        ack_then(box, leases, results=[b"s"] * count)
    assert box.changed(before) == {}


@pytest.mark.parametrize(("given", "letter"), [(b"", b"s"), (b"s", b"s"), (b"h", b"h")])
def test_a_result_says_succeeded_or_handed_over(box: Box, given: bytes, letter: bytes) -> None:
    id = box.one(keep=60)

    ack_then(box, [box.take_one()], results=[given])

    assert box.state()["results"][id] == letter + box.clock.now_ms.to_bytes(6, "big")


def test_a_lost_lease_stores_no_result(box: Box) -> None:
    lost, kept = box.one(keep=60), box.one(keep=60)
    leases = box.take(2)
    ack_then(box, leases[:1], results=[b"sfirst"])
    before = box.state()

    assert ack_then(box, leases, results=[b"ssecond", b"sthird"]).codes == "01"

    changed = box.changed(before)
    assert ("results", lost) not in changed
    assert changed[("results", kept)][7:] == b"third"


def test_a_result_and_follow_ups_go_together(box: Box) -> None:
    id = box.one(keep=60)
    lease = box.take_one()
    here = follow_up(box, target=own(box), keep=60)

    assert ack_then(box, [lease], here, follow_up(box), results=[b"sdone"]).codes == "1"

    state = box.state()
    assert state["results"][id][7:] == b"done"
    assert (len(state["store"]), len(state["pending"])) == (1, 1)


def test_a_result_of_another_form_is_refused_before_a_write(box: Box) -> None:
    box.one(keep=60)
    lease = box.take_one()
    before = box.state()

    for bad in (b"d", b"x", b"s" + bytes(300_000)):
        with pytest.raises(redis.ResponseError, match="RMQARG result"):
            ack_then(box, [lease], results=[bad])
    assert box.changed(before) == {}


def test_results_past_their_time_are_removed_twice_as_many_as_are_added(box: Box) -> None:
    ids = box.send(5, keep=1)
    ack_then(box, box.take(5))
    box.clock.advance(2)
    box.one(keep=60)

    ack_then(box, [box.take_one()])
    state = box.state()
    assert len(state["results"]) == len(state["keeping"]) == 4
    assert set(state["results"]) > set(ids[2:])

    box.send(2, keep=60)
    ack_then(box, box.take(2))
    assert set(box.state()["results"]).isdisjoint(ids)


def test_progress_becomes_the_result(box: Box) -> None:
    id = box.one(keep=60)
    lease = box.take_one()
    box.run(progress(box.keys, id, lease.receipt, b"half"))

    ack_then(box, [lease], results=[b"swhole"])

    assert box.state()["results"][id][7:] == b"whole"
    assert list(box.state()["keeping"]) == [id]


def test_results_are_stored_at_maxmemory(tight: Box) -> None:
    id = tight.one(keep=60)
    lease = tight.take_one()
    tight.redis.config_set("maxmemory", 1)

    assert ack_then(tight, [lease], results=[b"s" + bytes(9000)]).codes == "1"

    assert len(tight.state()["results"][id]) == 9007
