"""A slot in order on a real server: holds, waking, and the rules that every script keeps."""

from __future__ import annotations

import pytest
import redis

from rmq.features.messages import scripts as messages_scripts
from rmq.kernel.consumer import scripts
from rmq.kernel.core import keys
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua.box import Box
from tests.lua.calls import CALLS, place_of
from tests.lua.following import ack_then
from tests.lua.furnished import RUN, furnish


def take(box, limit=10, lease_ms=30_000):
    return box.take(limit, lease_ms, ordered=True)


# --- one message that holds the slot -----------------------------------------------------------


def test_hold_ends_when_the_message_it_is_for_is_cancelled_or_purged(box):
    for verb in ("cancel", "purge"):
        given = box.send(2)
        box.nack(*take(box, 1), wait_ms=60_000)
        assert box.run(scripts.next_ready([box.keys], False)) == [60_000_000]

        if verb == "cancel":
            box.run(messages_scripts.cancel(box.handle, box.keys, box.session(), given[0]))
        else:
            box.run(
                topic_scripts.purge(box.handle, box.keys, box.session(), "store", ids=[given[0]])
            )

        assert box.run(scripts.next_ready([box.keys], False)) == [0]
        leases = take(box)
        assert [lease.id for lease in leases] == given[1:]
        box.ack(*leases)


def test_hold_ends_when_the_message_it_is_for_gets_another_time(box):
    given = box.send(2)
    box.nack(*take(box, 1), wait_ms=60_000)
    box.redis.hset(box.keys.slot, "blocked", box.clock.now_ms + 300_000)

    box.run(messages_scripts.reschedule(box.handle, box.keys, box.session(), given[0], 90_000))

    assert "holder" not in box.state()["slot"]
    assert box.state()["slot"]["waiting"] == "0"  # who slept until the hold was woken
    assert [lease.id for lease in take(box)] == given[1:]


def test_hold_stays_when_another_message_is_cancelled_or_gets_another_time(box):
    box.send(4)
    first, second, third = take(box, 3)
    box.nack(first, wait_ms=60_000)
    box.release(second, third)

    box.run(messages_scripts.cancel(box.handle, box.keys, box.session(), second.id))
    box.run(messages_scripts.reschedule(box.handle, box.keys, box.session(), third.id, 5000))

    assert take(box) == []
    assert box.run(scripts.next_ready([box.keys], False)) == [60_000_000]


# --- waking ------------------------------------------------------------------------------------


def sleeper(box, ask):
    """Note a sleeper as `ask` does; the fields that tell of it."""
    if ask == "prepare":
        box.prepare(1, waits=True, ordered=True)
    else:
        box.run(scripts.next_ready([box.keys], True))
    slot = box.state()["slot"]
    return {name: int(slot[name]) for name in ("waiting", "blocked") if name in slot}


@pytest.mark.parametrize("ask", ["prepare", "next_ready"])
def test_who_waits_for_others_to_settle_is_not_woken_by_sends(box, ask):
    box.send(2)
    take(box, 1)
    until = box.clock.now_ms + 300_000

    assert sleeper(box, ask) == {"blocked": until}
    before = box.state()
    assert sleeper(box, ask) == {"blocked": until}
    assert box.state() == before
    box.one()
    assert box.counter("blocked") == until
    box.redis.hset(box.keys.slot, "blocked", box.clock.now_ms + 199_999)
    assert sleeper(box, ask) == {"blocked": box.clock.now_ms + 300_000}


@pytest.mark.parametrize("ask", ["prepare", "next_ready"])
def test_who_sleeps_on_an_empty_slot_with_something_in_flight_is_woken_by_a_send(box, ask):
    box.send(1)
    take(box, 1)

    assert sleeper(box, ask) == {"waiting": box.clock.now_ms + 300_000}
    box.one()
    assert box.counter("waiting") == 0


@pytest.mark.parametrize("verb", ["ack", "reject", "nack", "release", "rollback"])
@pytest.mark.parametrize("is_awaited", [True, False])
def test_the_last_of_a_batch_wakes_who_is_blocked(box, verb, is_awaited):
    box.send(3)
    first, second = take(box, 2, 1000)
    if is_awaited:
        box.redis.hset(box.keys.slot, "blocked", box.clock.now_ms + 300_000)
    subscription = box.redis.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe(box.handle.channel)
    subscription.get_message(timeout=1)

    for lease in (first, second):
        assert subscription.get_message(timeout=0.02) is None
        if verb == "rollback":
            box.clock.advance(1)
            box.rollback(1)
        else:
            getattr(box, verb)(lease)

    heard = subscription.get_message(timeout=5 if is_awaited else 0.02)
    assert (heard["data"] if heard else None) == (b"0" if is_awaited else None)
    assert "blocked" not in box.state()["slot"]
    subscription.close()


@pytest.mark.parametrize("verb", ["nack", "release", "rollback"])
def test_what_comes_back_wakes_who_sleeps_on_an_empty_slot(box, verb):
    box.send(2)
    leases = take(box, 2, 1000)
    box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 300_000)

    box.clock.advance(1)
    if verb == "rollback":
        box.rollback(1)
    else:
        getattr(box, verb)(leases[0])

    assert box.counter("waiting") == 0


# --- what holds for all ------------------------------------------------------------------------

SETTLING = {
    "ack": "slot prepare records failures",
    "nack": "slot store prepare records dead failures",
    "reject": "slot prepare records dead failures",
    "release": "slot store prepare failures",
    "reschedule": "slot store records",
    "rollback_expired_leases": "slot store prepare records dead failures",
    "next_ready": "slot store prepare",
}
TAKING = {
    "prepare": "slot store prepare records dead failures",
}


def furnished_in_order(box, script):
    """A furnished slot in order, and a call there; for a take nothing is in flight."""
    furnished = furnish(box)
    if script in TAKING:
        box.rollback()
        ack_then(box, [furnished.leased, furnished.failed])
        box.run(scripts.lease_release(box.handle.channel, box.keys, furnished.lease, 10))
        box.run(scripts.query_rollback(box.keys, RUN, 10, force=True))
        box.rollback()
    later = box.clock.now_ms + 300_000
    box.redis.hset(box.keys.slot, mapping={"ordered": 1, "blocked": later, "waiting": later})
    if script == "prepare":
        return scripts.prepare(box.keys, box.session(), 10, 30_000, True, ordered=True)
    return CALLS[script](furnished)


@pytest.mark.parametrize(
    ("script", "place"),
    [(script, p) for script, places in (SETTLING | TAKING).items() for p in places.split()],
)
def test_wrong_type_at_any_key_is_an_error_and_no_key_changes(box, script, place):
    command = furnished_in_order(box, script)
    (key,) = [key for key in command.keys if place_of(key) == place]
    wrong = redis.Redis.rpush if keys.TYPES[place] == "string" else redis.Redis.set
    box.redis.delete(key)
    wrong(box.redis, key, b"another's")
    before = box.state()

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        box.run(command)

    assert box.state() == before


@pytest.mark.parametrize("script", [*SETTLING, *TAKING])
def test_script_touches_no_key_but_those_it_is_passed(each_server, box, script):
    command = furnished_in_order(box, script)
    box.redis.execute_command(
        "ACL", "SETUSER", "narrow", "reset", "on", "nopass", "+@all", "allchannels",
        *(b"~" + key for key in command.keys),
    )  # fmt: skip

    client = each_server.raw(username="narrow", password="any", protocol=2)
    narrow = Box.__new__(Box)
    narrow.redis = client
    assert narrow.run(command) is not None

    client.close()
    box.redis.acl_deluser("narrow")


def test_at_maxmemory_a_slot_in_order_drains_and_notes_who_waits(tight):
    given = tight.send(6, body=b"b" * 2000)
    tight.redis.config_set("maxmemory", 1)

    plain = tight.take(2)
    assert tight.prepare(1, waits=True, ordered=True).ids == []
    assert tight.counter("blocked") > tight.clock.now_ms
    assert tight.counter("ordered") == 1
    tight.nack(plain[1], wait_ms=1000)
    tight.release(plain[0], wait_ms=1000)
    seen = []
    for _ in range(20):
        tight.clock.advance(2)
        tight.rollback()
        leases = take(tight, 3, 1000)
        if leases and leases[0].left > 14:
            continue  # it lapses
        seen += [lease.id for lease in leases]
        tight.ack(*leases) if leases else None

    assert seen == given
    tight.redis.config_set("maxmemory", 0)
