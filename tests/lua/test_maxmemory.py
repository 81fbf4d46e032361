"""A full Redis: sends are refused with nothing written, everything that drains a slot works."""

from __future__ import annotations

import dataclasses
import time

import pytest
import redis

from rmq.features.dead_letters import scripts
from rmq.features.schedules import scripts as schedules_scripts
from rmq.features.topic_admin import scripts as topic_admin_scripts
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.core.pause import Pause
from rmq.kernel.topic import scripts as topic_scripts
from rmq.kernel.transport.flow.steps import Command
from tests.lua.box import Box
from tests.lua.calls import CALLS
from tests.lua.following import ack_then
from tests.lua.furnished import CLAIM, OWNER, PAUSED, RUN, SCHEDULE, Furnished, furnish


@pytest.fixture
def full(tight):
    """A furnished slot on a server that has no byte left. Scripts are loaded already."""
    furnished = furnish(tight, anew=True)
    tight.redis.config_set("maxmemory-policy", "noeviction")
    tight.redis.config_set("maxmemory", 1)
    with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
        tight.redis.set("one", "more")
    yield furnished
    tight.redis.config_set("maxmemory", 0)


def refused(furnished: Furnished, command: Command) -> None:
    before = furnished.box.state()
    with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
        furnished.box.run(command)
    assert furnished.box.state() == before


def test_whatever_adds_is_refused_and_no_key_changes(full):
    box = full.box
    refused(full, box.send_command(box.ids(3)))
    refused(full, box.send_command(box.ids(300)))
    refused(full, box.send_command(box.ids(1), due=5000))
    for mode in ("first", "last", "collect"):
        refused(full, box.merge_command(box.ids()[0], key=b"open", mode=mode, max_wait=60_000))
        refused(full, box.merge_command(box.ids()[0], key=b"new", mode=mode))
    refused(full, scripts.redrive(box.handle, box.keys, box.session(), [full.dead]))
    refused(full, CALLS["redrive_hold"](full))
    refused(full, CALLS["redrive_send"](full))


# These add something. All others settle, give back, delete or look, and must work.
REFUSED_AT_MAXMEMORY = {
    "batch_add", "batch_open", "event_deliver", "event_register", "event_signal",
    "job_start", "lateness_report", "merge", "pending_send", "progress",
    "publish", "redrive",
    "redrive_hold", "redrive_send", "reschedule", "sample", "schedule_pause", "schedule_resume",
    "schedule_send", "schedule_set", "send", "set_priority", "sink_begin", "stage_push", "step",
    "topic_resize", "topic_set",
}  # fmt: skip


def add_sessions(box: Box) -> None:
    """Add so many sessions in use that a sweep of them does not come to their end."""
    seen = f"1:{box.clock.now_ms // 1000:010d}:1"
    box.redis.hset(box.keys.slot, mapping={f"@in-use-{n}": seen for n in range(300)})


@pytest.mark.slow
@pytest.mark.parametrize("sessions", [False, True])
def test_scripts_that_add_are_stopped_and_all_others_work(tight, sessions):
    stopped = set()
    for script in sorted(CALLS):
        box = Box(tight.redis, f"{tight.handle.name}-{script}", tight.clock)
        command = CALLS[script](furnish(box))
        tight.redis.script_load(command.script.text)
        if sessions:
            add_sessions(box)
        tight.redis.config_set("maxmemory", 1)
        try:
            box.run(command)
        except redis.ResponseError:
            stopped.add(script)
        tight.redis.config_set("maxmemory", 0)

    assert stopped == REFUSED_AT_MAXMEMORY


def test_duplicate_is_still_answered(full):
    box = full.box
    before = box.state()

    assert box.run(box.send_command([full.waiting, full.settled])).codes == "dd"
    assert box.run(box.merge_command(full.window)).codes == "d"
    assert box.state() == before


@pytest.mark.parametrize(
    "script",
    ["ack", "nack", "reject", "release", "extend", "rollback_expired_leases", "cancel", "purge"],
)
@pytest.mark.fault("F18")
def test_whatever_settles_works_and_leaves_what_it_would_have_left(full, script):
    box = full.box

    command = CALLS[script](full)
    reply = box.run(command)

    letters = {"ack": "11", "nack": "rr", "reject": "d", "release": "1", "cancel": "cancelled"}
    if script in letters:
        assert reply == letters[script]
    elif script == "extend":
        assert reply.codes == "1"
        assert box.score(full.leased.id, "prepare") // 1000 == reply.deadline_s
    elif script == "rollback_expired_leases":
        assert reply == consumer_scripts.RollbackReply(1, 0, False)
        assert full.lapsed.id in box.order()
    else:
        assert reply > 0
    if script in ("ack", "cancel"):
        id = full.leased.id if script == "ack" else full.window
        state = box.state()
        assert id not in state["records"]
        assert id in state["settled0"] | state["settled1"]


@pytest.mark.parametrize(
    "script",
    ["query_again", "query_read", "query_reject", "query_release", "query_settle", "query_take"],
)
def test_queries_take_read_and_settle(full, script):
    reply = full.box.run(CALLS[script](full))

    held = {"query_read": 0, "query_take": 3}
    assert reply[0] == held.get(script, 1), "what the query holds; of a page, the number before it"
    state = full.box.state()
    if script == "query_take":
        assert len(state[f"querylog:{RUN}"]) > 1
    elif script == "query_again":
        assert state[f"query:{RUN}"][b"tail"] == b"2"
    elif script == "query_release":
        assert full.queried in full.box.order()
    elif script == "query_read":
        assert state[f"query:{RUN}"][b"read"] == b"1"
    else:
        assert (full.queried in state["prepare"]) is False
        assert (full.queried in state["dead"]) is (script == "query_reject")


def test_topic_is_closed_and_its_slot_deleted(full):
    box = full.box

    assert box.run(CALLS["topic_close"](full)) is True
    assert box.redis.hget(box.handle.key, "deleting") == b"1"
    assert box.run(CALLS["slot_delete"](full)).state == 1
    assert box.run(CALLS["topic_close"](full)) is True


def test_session_still_remembers_its_answer(full):
    for script in ("ack", "prepare", "cancel"):
        command = CALLS[script](full)
        first = full.box.run(command)
        before = full.box.state()
        second = full.box.run(command)
        if script == "prepare":
            first, second = first.ids, second.ids
        assert first == second
        assert full.box.state() == before


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_prepare_drains_every_family_and_then_waits(full, waits, repeated):
    box = full.box
    box.rollback()
    taken = []
    for _ in range(10):
        take = consumer_scripts.prepare(box.keys, box.session(), 1, 30_000, waits)
        batch = box.run(take.as_repeat() if repeated else take)
        taken += batch.ids

    assert set(taken) == {full.waiting, full.due, full.retry, full.lapsed.id}
    assert full.expired in box.order("dead")
    assert batch.wait_us > 0
    assert (box.counter("waiting") > box.clock.now_ms) is waits
    assert box.run(consumer_scripts.next_ready([box.keys], waits)) == [batch.wait_us]


def test_asking_an_idle_slot_works_and_notes_who_waits(full):
    box = full.box
    for lease in box.take(100):
        assert ack_then(box, [lease]).codes == "1"

    wait = box.run(consumer_scripts.next_ready([box.keys], True))

    assert wait[0] == 0  # a lease has run out
    box.rollback()
    while lease := box.take():
        ack_then(box, lease)
    assert box.run(consumer_scripts.next_ready([box.keys], True))[0] > 0
    assert box.counter("waiting") > box.clock.now_ms


@pytest.mark.fault("F18")
def test_a_slot_with_many_sessions_is_tidied(tight):
    ids = tight.send(3)
    tight.reject(*tight.take(3))
    tight.run(scripts.trash(tight.keys, tight.session(), ids, 1000))
    add_sessions(tight)
    tight.run(topic_scripts.tidy(tight.keys))
    tight.clock.advance(1)
    swept = tight.redis.hget(tight.keys.slot, "swept")
    tight.redis.config_set("maxmemory", 1)

    assert tight.run(topic_scripts.tidy(tight.keys)).dropped == 3

    state = tight.state()
    assert "trash" not in state
    assert "records" not in state
    assert tight.redis.hget(tight.keys.slot, "swept") != swept
    assert tight.run(topic_scripts.tidy(tight.keys)).dropped == 0


def test_looking_works(full):
    box = full.box
    before = box.state()
    for script in ("get", "peek", "stats", "due_counts", "topic", "slot"):
        assert box.run(CALLS[script](full)) is not None
    assert box.state() == before


def test_claims_are_taken_renewed_finished_and_let_go(full):
    box, other = full.box, b"another:1"

    first = consumer_scripts.claim(box.keys, [b"new", b"newer"], [other] * 2, 60_000)
    assert box.run(first) == [("first", 0, 0)] * 2
    assert (
        box.run(consumer_scripts.renew(box.keys, [CLAIM, b"new"], [OWNER, other], 60_000))
        == [True] * 2
    )
    finish = consumer_scripts.finish(box.keys, [b"new", CLAIM], [other, OWNER], [60_000] * 2)
    assert box.run(finish) == [
        True, True,
    ]  # fmt: skip
    assert box.run(consumer_scripts.unclaim(box.keys, [b"newer"], [other])) == [True]

    state = box.state()
    assert state["claim:new"].startswith(b"consumed another:1 ")
    assert state["claim:" + CLAIM.decode()].startswith(b"consumed " + OWNER)
    assert "claim:newer" not in state


@pytest.mark.parametrize("script", ["claim", "renew", "finish", "unclaim"])
def test_each_of_them_works_as_the_first_write_of_all(full, script):
    assert full.box.run(CALLS[script](full)) in ([True], [("first", 0, 0)])


@pytest.mark.fault("F18")
def test_full_slot_drains_to_the_end_and_takes_again(tight):
    for _ in range(5):
        tight.send(200, body=b"b" * 2000)
    tight.redis.config_set("maxmemory", 1)
    with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
        tight.send(1)

    drained, began = 0, time.monotonic()
    while leases := tight.take(100):
        assert tight.ack(*leases) == "1" * len(leases)
        drained += len(leases)

    rate = drained / (time.monotonic() - began)
    print(f"\nFIG at maxmemory: sends refused; {drained} of 1000 drained, {rate:,.0f} messages/s")
    assert drained == 1000
    assert "store" not in tight.state()
    assert "records" not in tight.state()
    tight.redis.config_set("maxmemory", 0)
    tight.one()


def test_topic_is_paused_and_resumed(full):
    box = full.box

    def give(paused, revision):
        values = dataclasses.replace(box.settings, paused=paused).for_slot()
        return box.run(topic_scripts.slot(box.handle, box.keys, box.created, values, revision))

    assert box.run(topic_admin_scripts.topic_pause(box.handle, box.created, "me", "why")).state == 1
    assert give(Pause(box.clock.now_ms, "me", "why"), 1) == 1
    assert box.prepare(10).ids == []
    assert box.run(topic_admin_scripts.topic_resume(box.handle, box.created)).state == 1
    assert give(None, 2) == 1
    assert box.prepare(10).ids != []


def test_schedules_are_not_set_nor_sent_and_no_key_changes(full):
    for script in ("schedule_set", "schedule_send", "schedule_pause", "schedule_resume"):
        refused(full, CALLS[script](full))


def test_schedules_are_read_and_deleted_to_the_last_and_its_generation_ends(full):
    box = full.box
    (due,) = box.run(schedules_scripts.schedule_due(box.keys, b"0")).due
    assert due.name == SCHEDULE

    for name in (SCHEDULE, PAUSED):
        assert box.run(schedules_scripts.schedule_delete(box.keys, name)) is True

    assert box.run(schedules_scripts.schedules(box.keys)).rows == []
    assert box.state()["schedules"] == {b"revision": b"2", b"generation": b"1"}
