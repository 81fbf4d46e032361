"""Every script refuses wrong types, bad numbers and a vanished slot, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from rmq.features.messages import scripts
from rmq.kernel.core import keys
from rmq.kernel.core.delivery_limits import Concurrency, Limits
from rmq.kernel.core.groups import Groups
from rmq.kernel.topic import clock as command_clock
from tests.lua.box import LEASE_MAX_MS, Box, case
from tests.lua.calls import CALLS, CLAIMS, EVENTS, JOBS, NUMBERS, REACHING, place_of
from tests.lua.furnished import furnish

PLACES = {
    "audit_report": "slot audit",
    "ack": (
        "slot prepare records failures settled0 settled1 audit dead bodies store acked ackedparts"
    ),
    "ack_then": (
        "slot store prepare records dead failures merge audit bodies settled0 settled1 pending "
        "targets results keeping acked ackedparts"
    ),
    "audit_open": "slot audit",
    "batch_add": "slot batch",
    "batch_close": "slot batch pending targets",
    "batch_end": "slot batch pending targets",
    "batch_open": "slot batch",
    "member_ends": "slot results keeping",
    "cancel": (
        "slot store prepare records dead failures merge settled0 settled1 audit bodies results "
        "keeping"
    ),
    "audit_scan": "slot store prepare dead records trash",
    "claim": "claim",
    "due_counts": "slot store",
    "event_checks": "slot store bodies waits",
    "event_deliver": "slot store records bodies waits",
    "event_read": "slot prepare bodies waits",
    "event_register": "event waiters",
    "event_signal": "event waiters undelivered",
    "event_waiters": "event waiters undelivered",
    "extend": "slot prepare",
    "finish": "claim",
    "get": "slot store prepare records dead failures leases trash bodies",
    "group_pause": "slot store",
    "group_resume": "slot store",
    "groups": "slot store",
    "lateness_report": "slot",
    "merge": "slot store records merge settled0 settled1 failures audit bodies results keeping",
    "nack": (
        "slot store prepare records dead failures audit bodies settled0 settled1 pending "
        "targets results keeping"
    ),
    "next_ready": "slot store prepare",  # prepare matters where the store is empty: test_next_ready
    "peek": "slot store records failures leases",
    "pending": "slot pending targets keeping waits",
    "pending_send": (
        "slot store records settled0 settled1 failures merge audit bodies prepare results keeping"
    ),
    "pending_settle": "slot records dead failures audit bodies pending targets results keeping",
    "prepare": (
        "slot store prepare records dead failures merge audit bodies leases rates pending "
        "targets results keeping"
    ),
    "progress": "slot prepare records results keeping",
    "step": "slot prepare bodies",
    "publish": (
        "slot store records settled0 settled1 failures merge audit stage bodies prepare results "
        "keeping"
    ),
    "purge": "slot store records failures merge audit bodies results keeping",
    "queries": "slot queries leases",
    "query_again": "slot query querylog",
    "query_fail": (
        "slot store prepare records dead failures audit bodies query querylog querymarks "
        "pending targets results keeping"
    ),
    "query_rollback": "slot prepare failures query querylog queries leases querymarks",
    "query_inspect": "slot query querylog",
    "query_read": "slot prepare records failures query querylog querymarks",
    "query_release": "slot store prepare failures records query querylog queries",
    "query_reject": (
        "slot prepare records dead failures audit query querylog bodies querymarks store "
        "pending targets results keeping"
    ),
    "query_renew": "slot query querylog queries leases",
    "query_settle": (
        "slot prepare records failures settled0 settled1 audit query querylog queries store "
        "bodies querymarks results keeping acked ackedparts"
    ),
    "query_take": (
        "slot store prepare records dead failures merge audit query querylog queries bodies "
        "rates pending targets results keeping"
    ),
    "redrive": "slot store records dead failures prepare results keeping bodies",
    "redrive_hold": "slot dead records",
    "redrive_send": (
        "slot store records settled0 settled1 failures merge audit bodies prepare arrivals "
        "results keeping"
    ),
    "redrive_settle": (
        "slot dead records failures audit bodies settled0 settled1 arrivals results keeping"
    ),
    "reject": (
        "slot prepare records dead failures audit bodies store settled0 settled1 pending "
        "targets results keeping"
    ),
    "release": (
        "slot store prepare failures records audit bodies settled0 settled1 results keeping waits"
    ),
    "renew": "claim",
    "reschedule": "slot store prepare records dead bodies",
    "result": "slot store prepare records dead trash results keeping",
    "resize_scan": "slot store prepare records bodies",
    "rollback_expired_leases": (
        "slot store prepare records dead failures audit bodies settled0 settled1 pending "
        "targets results keeping"
    ),
    "schedule_delete": "slot schedules schedule_times",
    "schedule_due": "slot schedules schedule_times",
    "schedule_pause": "slot schedule_times",
    "schedule_resume": "slot schedules schedule_times",
    "schedule_send": (
        "slot store records settled0 settled1 failures merge audit bodies schedules "
        "schedule_times prepare results keeping"
    ),
    "schedule_set": "slot schedules schedule_times",
    "schedules": "slot schedules schedule_times",
    "send": (
        "slot store records settled0 settled1 failures merge audit bodies prepare results keeping"
    ),
    "set_priority": "slot store prepare records dead",
    "sink_begin": "sink",
    "sink_end": "sink",
    "slot": "slot records rates settled0 settled1 acked ackedparts",
    "slot_delete": (
        "slot store prepare records dead failures merge audit settled0 settled1 queries bodies "
        "leases rates trash deaths arrivals pending targets results keeping waits acked ackedparts"
    ),
    "stage_keep": "stage",
    "stage_push": "slot stage",
    "stats": (
        "slot store prepare records dead merge settled0 settled1 rates leases queries trash "
        "failures pending targets keeping ackedparts"
    ),
    "drop_expired": (
        "slot store records dead failures merge audit bodies pending targets results keeping"
    ),
    "tidy": (
        "slot records dead failures settled0 settled1 audit bodies trash deaths rates arrivals "
        "store prepare results keeping acked ackedparts"
    ),
    "trash": "slot dead trash deaths records failures audit bodies results keeping",
    "restore": "slot dead trash deaths",
    "topic": "topic",
    "topic_close": "topic",
    "topic_pause": "topic",
    "topic_resize": "topic",
    "topic_resume": "topic",
    "sample": "topic history",
    "topic_set": "topic",
    "unclaim": "claim",
    "lease_release": "slot store prepare failures records",
    "lease_renew": "slot leases queries",
    "lease_rollback": "slot prepare leases queries",
    "leader_release": "leader",
    "leader_renew": "leader",
    **dict.fromkeys(JOBS, "job"),
    "job_step": "job joblog",
    "job_stop": "job joblog",
    "locate": "slot store prepare dead trash arrivals",
    "withdraw": "slot",
}
NEED_NO_SLOT = {
    "topic", "topic_close", "topic_pause", "topic_resize", "topic_resume", "topic_set", "slot",
    "slot_delete", "sink_begin", "sink_end", "stage_keep", "withdraw", "leader_renew",
    "leader_release", "sample", *CLAIMS, *JOBS, *EVENTS,
}  # fmt: skip
# Keys that do not belong to the slot.
ELSEWHERE = (
    "sink", "topic", "history", "leader", "job", "joblog", "event", "waiters", "undelivered",
)  # fmt: skip
BAD_NUMBERS = (
    "nan", "-nan", "inf", "-inf", "0x10", "0x1p3", "1e3", "-1", "-0", "1.5", "100.0", " 100",
    "100 ", "+100", "one", "9" * 30, "1\0", "\xff",
)  # fmt: skip
# `make test` gives each field these: whole_number of lib/check reads all fields.
FEW_BAD_NUMBERS = ("nan", "-1", "1.5", " 100", "1\0", "9" * 30)
WITH_CREDITS = (
    "next_ready",
    "pending_send",
    "publish",
    "redrive",
    "redrive_send",
    "schedule_send",
    "send",
)
# Where nothing waits, or a consumer has left a credit: test_next_ready, test_hand_over.
SELDOM = [(script, "prepare") for script in WITH_CREDITS]
# Only in a slot with groups: test_groups.
SELDOM += [(script, "store") for script in ("ack", "reject", "query_reject")]
SELDOM += [("tidy", "store"), ("tidy", "prepare")]
# Only where a cancellation was requested: test_cancel_running.
CANCELLING = ("nack", "reject", "release", "rollback_expired_leases")
SELDOM += [(script, place) for script in CANCELLING for place in ("settled0", "settled1")]
SELDOM += [("release", place) for place in ("audit", "results", "keeping")]
# Only where the topic copies its dead letters: test_copy_dead.
COPYING = ("drop_expired", "nack", "prepare", "query_fail", "query_reject", "query_take",
           "rollback_expired_leases")  # fmt: skip
SELDOM += [(script, place) for script in COPYING for place in ("pending", "targets")]
AT_ONCE = {
    script: [place for place in places.split() if (script, place) not in SELDOM]
    for script, places in sorted(PLACES.items())
}


def test_every_script_and_every_key_of_it_is_looked_at_here(box):
    furnished = furnish(box)

    found = {
        script: [place_of(key) for key in build(furnished).keys] for script, build in CALLS.items()
    }

    assert found == {script: places.split() for script, places in PLACES.items()}


def test_the_furnished_slot_has_every_key(box):
    furnish(box)

    found = {name.split(":")[0] for name in box.state()}
    elsewhere = {
        "audit_trail", "history", "job", "joblog", "jobs", "leader", "scheduled", "sink", "topic",
        "batch", "batches", "topics", "worker", "workers", "tokens", "tokens_used", "session",
        "server_secret", "event", "waiters", "undelivered",
    }  # fmt: skip
    assert found | elsewhere == set(keys.TYPES)


def test_no_value_of_a_furnished_slot_names_its_topic_so_that_it_can_be_copied(raw, name, clock):
    """Slot and check are three bytes, which may stand in a value by chance: not in both."""
    named = []
    for suffix in ("", "-other"):
        box = Box(raw, name + suffix, clock)
        furnish(box, anew=True)
        names = [box.keys.middle, box.handle.name.encode()]
        keys_of_slot = box.redis.keys(box.keys.slot.removesuffix(b"slot") + b"*")
        named.append({
            key.split(b"}:")[1]
            for key in keys_of_slot
            if any(name in box.redis.dump(key) for name in names)
        })  # fmt: skip

    assert named[0] & named[1] == set()


@pytest.mark.parametrize("script", AT_ONCE)
@pytest.mark.fault("F26")
def test_wrong_type_at_any_key_is_an_error_and_no_key_changes(anew, script):
    for place in AT_ONCE[script]:
        with case(script, place):
            furnished = anew()
            box = furnished.box
            command = REACHING.get((script, place), CALLS[script])(furnished)
            (key,) = [key for key in command.keys if place_of(key) == place]
            wrong = redis.Redis.rpush if keys.TYPES[place] == "string" else redis.Redis.set
            box.redis.delete(key)
            wrong(box.redis, key, b"another's")
            before = box.state()

            with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                box.run(command)

            after = box.state()
            assert after == before
            if place not in ELSEWHERE:
                assert after[key.split(b"}:")[1].decode()] in (b"another's", [b"another's"])


def test_vanished_slot_is_named_and_no_key_changes(anew):
    for script in sorted(set(CALLS) - NEED_NO_SLOT):
        with case(script):
            furnished = anew()
            box, command = furnished.box, CALLS[script](furnished)
            box.redis.delete(box.keys.slot)
            before = box.state()

            with pytest.raises(redis.ResponseError) as caught:
                box.run(command)

            assert f"RMQGONE {box.keys.slot.decode()}" in str(caught.value)
            assert box.state() == before


def test_nothing_is_created_where_there_is_no_slot_at_all(anew):
    for script in sorted(set(CALLS) - NEED_NO_SLOT):
        with case(script):
            furnished = anew()
            box, command = furnished.box, CALLS[script](furnished)
            stem = box.keys.slot.removesuffix(b"slot")
            box.redis.delete(*(stem + name.encode() for name in box.state()))

            with pytest.raises(redis.ResponseError, match="RMQGONE"):
                box.run(command)

            assert box.state() == {}


@pytest.mark.parametrize(
    "bads", [FEW_BAD_NUMBERS, pytest.param(BAD_NUMBERS, marks=pytest.mark.slow)], ids=["few", "all"]
)
@pytest.mark.parametrize("script", sorted(NUMBERS))
def test_number_that_is_none_is_refused_by_name_and_no_key_changes(anew, script, bads):
    furnished = anew()
    box, command = furnished.box, CALLS[script](furnished)
    before = box.state()

    for position, field in NUMBERS[script].items():
        given = command.args[position]
        with case(script, field):
            for bad in bads:
                command.args[position] = bad.encode("latin-1")
                with case(bad), pytest.raises(redis.ResponseError, match=f"RMQARG {field}"):
                    box.run(command)
            assert box.state() == before
        command.args[position] = given
    box.run(command)


# What lies beyond the limits of an argument: position in ARGV, the name that the error tells.
BEYOND: list[tuple[str, int, str, tuple[Any, ...]]] = [
    ("audit_report", 1, "producer", ("", "012345678", "01234567890", "012345678g", "0123:45678")),
    ("audit_scan", 0, "cursor", ("", "x", "-1", "1" * 21, "0x1")),
    ("claim", 1, "hold_ms", (0, 86_400_001)),
    ("extend", 2, "lease_ms", (0, 999, LEASE_MAX_MS + 1)),
    ("leader_renew", 1, "hold_ms", ("99", "86400001", "x", "-1", "1e3")),
    ("prepare", 7, "shared", ("-1", "x", "1.5", "900000001")),
    ("query_take", 1, "run", ("", "a" * 31, "A" * 31 + "!", "g" * 32)),
    ("query_take", 2, "owner", ("",)),
    ("redrive_hold", 1, "token", ("short",)),
    ("redrive_hold", 2, "topic", ("an other", "")),
    ("redrive_hold", 5, "index", (1024,)),
    ("reject", 4, "reason", ("", "x", "rr", "l", "\0")),
    ("release", -1, "place", (0, 16, 1_048_576, 999_999_999_999, 10**16)),
    ("renew", 0, "hold_ms", (0, 86_400_001)),
    ("reschedule", 5, "due", (-1, 10**16)),
    ("set_priority", 3, "priority", (0, 16, 1_048_576)),
    ("stage_push", 2, "entry", ("",)),
    *(
        (script, position, "", ("", "1000000000000000000"))
        for script, position in [
            ("ack", 4), ("extend", 2), ("merge", 5), ("peek", 4), ("prepare", 2), ("prepare", 3),
            ("purge", 5), ("release", 4), ("rollback_expired_leases", 3), ("send", 5),
            ("set_priority", 3), ("reschedule", 5),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize(("script", "position", "field", "bads"), BEYOND)
def test_argument_beyond_its_limits_is_refused_and_no_key_changes(
    box, script, position, field, bads
):
    command = CALLS[script](furnish(box))
    before = box.state()

    for bad in bads:
        command.args[position] = bad
        with case(bad), pytest.raises(redis.ResponseError, match=f"RMQARG {field}"):
            box.run(command)
        assert box.state() == before, bad


@pytest.mark.parametrize(("script", "position"), [("peek", 0), ("purge", 4)])
def test_bound_of_scores_that_is_no_number_is_refused(box, script, position):
    command = CALLS[script](furnish(box))
    before = box.state()

    for bad in ("nan", "x", "(x", "0x10z"):
        command.args[position] = bad
        with case(bad), pytest.raises(redis.ResponseError):
            box.run(command)
        assert box.state() == before, bad


@pytest.mark.parametrize(
    ("script", "before_ids", "counts"),
    [("redrive", 6, (0, 1001)), ("restore", 2, (0, 1001)), ("trash", 4, (0, 1001)),
     ("purge", 6, (1001,))],
)  # fmt: skip
def test_number_of_ids_outside_its_limits_is_refused(box, script, before_ids, counts):
    command = CALLS[script](furnish(box))
    before = box.state()

    for count in counts:
        command.args[before_ids:] = [b"x" * 13] * count
        with case(count), pytest.raises(redis.ResponseError, match="RMQARG count"):
            box.run(command)
        assert box.state() == before, count


def test_too_few_arguments_are_an_error_and_no_key_changes(anew):
    for script in sorted(CALLS):
        with case(script):
            furnished = anew()
            box, command = furnished.box, CALLS[script](furnished)
            before = box.state()

            with pytest.raises(redis.ResponseError):
                box.raw(script, command.keys, [])

            assert box.state() == before


# What is done with a message that waits: the call, and what it answers but for the word.
WAITING = {
    "cancel": (lambda box, id: scripts.cancel(box.handle, box.keys, box.session(), id), str),
    "reschedule": (
        lambda box, id: scripts.reschedule(box.handle, box.keys, box.session(), id, 1000),
        lambda word: (word, 0),
    ),
    "set_priority": (lambda box, id: scripts.set_priority(box.keys, box.session(), id, 30), str),
}


@pytest.mark.parametrize("script", WAITING)
def test_message_elsewhere_is_named_and_not_touched(box, script):
    call, answer = WAITING[script]
    box.send(2)
    flying, dead = box.take(2)
    box.reject(dead)
    before = box.state()

    for id, word in ((flying.id, "in_flight"), (dead.id, "dead"), (box.ids()[0], "gone")):
        assert box.run(call(box, id)) == answer(word)
    assert box.state() == before


@pytest.mark.parametrize(
    ("script", "kept"),
    [
        *(("reschedule", kept) for kept in (b"\x01" + bytes(7), b"\x03" + bytes(16))),
        *((script, kept) for script in ("reschedule", "set_priority") for kept in (None, b"short")),
    ],
)
def test_record_that_is_missing_or_cut_short_is_named_and_nothing_changes(box, script, kept):
    id = box.one()
    box.break_record(id, kept)
    before = box.state()

    with pytest.raises(redis.ResponseError, match=r"RMQRECORD .*records"):
        box.run(WAITING[script][0](box, id))
    assert box.state() == before


@pytest.mark.parametrize("broken", ["waiting", "retry", "later"])
def test_message_without_a_record_is_taken_in_any_family_and_stops_nothing(box, broken):
    """Peer bug: Redis evicts keys of a queue, and nobody is told."""
    furnish(box)
    box.drained()
    for lease in box.take(100):
        box.ack(lease)
    box.clock.advance(100)
    box.rollback(1000)
    if broken == "later":
        id = box.one(due=10)
        box.clock.advance(1)
    elif broken == "retry":
        id = box.order()[0]
        assert box.score(id) < 17
    else:
        id = box.one(priority=50)
    box.break_record(id, None)

    taken = {lease.id: lease for _ in range(3) for lease in box.take(100)}

    assert taken[id].record == b""
    assert box.reject(taken[id], reason="u") == "d"
    assert box.redis.zcard(box.keys.store) == 0


BY_TENANT = Limits(key_concurrency=Concurrency(100, key="tenant"))
NEEDS_RECORD = ("reschedule", "set_priority")  # what they would change is in the record


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, 7),
        ({"groups": Groups()}, 12),
        ({"limit": BY_TENANT}, None),
        *(
            pytest.param(*others, marks=pytest.mark.slow)
            for others in (
                ({}, None), ({}, 12), ({"groups": Groups()}, None), ({"groups": Groups()}, 7),
                ({"limit": BY_TENANT}, 7), ({"limit": BY_TENANT}, 12),
            )
        ),
    ],
)  # fmt: skip
def test_no_script_stops_if_records_are_missing_or_cut_short(raw, name, clock, settings, kept):
    start = clock.now_us
    for number, script in enumerate(set(CALLS) - set(NEEDS_RECORD)):
        clock.now_us = start
        clock.advance(0)
        box = Box(raw, f"{name}-{number}", clock, **settings)
        furnished = furnish(box)
        with case(script):
            command = CALLS[script](furnished)
            for id, entry in box.state()["records"].items():
                box.break_record(id, None if kept is None else entry[:kept])
            box.run(command)


SETTLING = ("ack", "nack", "reject", "release", "extend")


@pytest.mark.parametrize("verb", SETTLING)
@pytest.mark.parametrize(
    "why", ["rolled back", "settled", "dead", "another's receipt", "another id", "nan", "inf"]
)
def test_receipt_that_is_not_held_changes_nothing_in_any_session(box, verb, why):
    box.send(2)
    lease, other = box.take(2, lease_ms=1000)
    changed = {
        "another's receipt": {"receipt": other.receipt},
        "another id": {"id": box.ids()[0]},
        "nan": {"receipt": float("nan")},
        "inf": {"receipt": float("inf")},
    }
    if why == "rolled back":
        box.clock.advance(1)
        box.rollback()
    elif why == "settled":
        box.ack(lease)
    elif why == "dead":
        box.reject(lease)
    lease = lease._replace(**changed.get(why, {}))
    before = box.state()

    for _ in range(2):
        reply = box.run(getattr(box, f"{verb}_command")([lease], box.session()))
        assert getattr(reply, "codes", reply) == "0"
        assert box.state() == before


@pytest.mark.parametrize("script", SETTLING)
def test_receipt_of_another_slot_changes_nothing_here(make_box, script):
    box = make_box(slots=2)
    furnished = furnish(box)
    foreign = furnished.leased._replace(id=b"\0" * 8 + bytes([0, 0x40, 0]) + b"other")
    command = CALLS[script](furnished._replace(leased=foreign, failed=foreign))
    before = box.state(0), box.state(1)

    reply = box.run(command)

    letters = getattr(reply, "codes", reply)
    assert set(letters) == {"0"}
    assert (box.state(0), box.state(1)) == before


def test_answer_of_an_error_never_repeats_what_the_caller_sent(anew):
    secret = b"4111-secret"
    numbers = {"set_priority": 2, "purge": 5, "withdraw": 1, "leader_renew": 1}
    of_no_use = {
        "next_ready", "peek", "get", "stats", "slot", "audit_scan", "unclaim", "leader_release",
        "group_pause",
    }  # fmt: skip
    for script in sorted(set(CALLS) - of_no_use):
        with case(script):
            furnished = anew()
            command = CALLS[script](furnished)
            command.args[0] = secret
            if script in numbers:  # they do not look at a time first
                command.args[numbers[script]] = secret

            with pytest.raises(redis.ResponseError) as caught:
                furnished.box.run(command)

            assert "secret" not in str(caught.value)


def test_clock_of_the_server_is_used_where_no_test_gives_one(box):
    command_clock.set_clock(None)
    before = box.redis.time()[0]
    id = box.one(due=60_000)
    after = box.redis.time()[0]

    assert before + 60 <= box.score(id) / 1000 <= after + 61
