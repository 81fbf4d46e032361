"""A good call of every script on a furnished slot.

Tests that hold for all scripts (wrong types, bad numbers, a vanished slot, a full Redis) go over
these calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rmq.features.audit import scripts as audit_scripts
from rmq.features.dead_letters import scripts as dead_letters_scripts
from rmq.features.dead_letters.jobs import scripts as jobs_scripts
from rmq.features.groups import scripts as groups_scripts
from rmq.features.messages import scripts as messages_scripts
from rmq.features.schedules import scripts
from rmq.features.spark import scripts as queries_scripts
from rmq.features.topic_admin import scripts as topic_admin_scripts
from rmq.kernel.batches import scripts as batches_scripts
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.core import ids
from rmq.kernel.core.ids import member_of
from rmq.kernel.events import scripts as events_scripts
from rmq.kernel.follow_ups import scripts as follow_ups_scripts
from rmq.kernel.producer import scripts as producer_scripts
from rmq.kernel.results import scripts as results_scripts
from rmq.kernel.topic import scripts as topic_scripts
from rmq.kernel.transport import leader
from rmq.kernel.transport.flow.steps import Command
from tests.lua import batching, eventing
from tests.lua.box import Box
from tests.lua.following import (
    TARGET,
    ack_then,
    ack_then_command,
    by_target,
    entry,
    follow_up,
    own,
)
from tests.lua.furnished import (
    CLAIM,
    FOLLOW_UP,
    JOB,
    NEW_JOB,
    OWNER,
    PAUSED,
    PAUSED_JOB,
    PRODUCER,
    QUERY,
    RUN,
    SCHEDULE,
    SENT_BY,
    SINK,
    STAGE,
    TOKEN,
    TRASHED,
    Furnished,
)

JOBS = ("job_pause", "job_resume", "job_start", "job_step", "job_stop", "job_take")
# Events do not depend on a slot. In a slot that does not exist, no message waits for an event.
EVENTS = ("event_deliver", "event_register", "event_signal", "event_waiters")
CLAIMS = ("claim", "finish", "renew", "unclaim")  # a claim does not depend on its slot


MEMBER_ID, BATCHED = ids.make(0, 7, 2)


def _batch(box: Box) -> str:
    """A batch with an open member. Return its name."""
    batching.open_batch(box)
    batching.add(box, [MEMBER_ID])
    return batching.NAME


def schedule_send(f: Furnished, **options: Any) -> Command[Any]:
    """Send the schedule's message for the time that is due."""
    box = f.box
    (row,) = box.run(scripts.schedules(box.keys, SCHEDULE)).rows
    read = (SCHEDULE, options.get("revision", row.revision), options.get("expected", row.next_ms))
    id = ids.derive_scheduled(SCHEDULE, row.next_ms, box.index, box.handle.check)
    now = box.clock.now_ms
    return scripts.schedule_send(
        box.handle, box.keys, read, (now + 60_000, now + 60_007), row.next_ms,
        (id, *box.part(priority=options.get("priority", 100), expires=options.get("expires"))),
    )  # fmt: skip


def arrive(box: Box, **options: Any) -> Command[Any]:
    """Store a dead letter of another topic."""
    (id,) = box.ids()
    arrival = dead_letters_scripts.Arrival(member_of(id) + TOKEN, *box.part(**options))
    return dead_letters_scripts.redrive_send(box.handle, box.keys, [arrival])


def follow(box: Box, **options: Any) -> Command[Any]:
    """Store a pending entry of another slot."""
    return follow_ups_scripts.pending_send(
        box.handle, box.keys, "source:0", [entry(box, 7, **options)]
    )


def settle_and_follow(f: Furnished, **options: Any) -> Command[Any]:
    """Settle a message with a follow-up in its slot, and one in another."""
    box = f.box
    follow_ups = [follow_up(box, 1, target=own(box), **options), follow_up(box, 2)]
    return ack_then_command(box, [f.leased, f.failed], *follow_ups)


def ack_without_results(f: Furnished) -> Command[Any]:
    """Settle messages of a slot that keeps no results."""
    f.box.redis.hdel(f.box.keys.slot, "outcomes")
    return f.box.ack_command([f.leased, f.failed], f.box.session())


def fail_queried(f: Furnished) -> Command[Any]:
    """Give back what a query holds and has handed out."""
    f.box.run(queries_scripts.query_read(f.box.keys, RUN, 0, 1, 1))
    failing = [queries_scripts.Failing(1, member_of(f.queried), b"why", 5000)]
    return queries_scripts.query_fail(f.box.handle, f.box.keys, RUN, failing, retry=True)


def _deliver_event(f: Furnished) -> Command[Any]:
    """Give an event to a message that waits for it."""
    eventing.suspend(f.box, f.leased)
    return eventing.deliver_command(f.box, [f.leased.id])


def _read_events(f: Furnished, box: Box) -> Command[Any]:
    """Read the events of a delivery that still waits, so its time limit has ended."""
    place, member = eventing.wait_at(f.leased.id)
    box.redis.hset(getattr(box.keys, place), member, eventing.wait_of(box))
    box.redis.hset(box.keys.slot, mapping={"waited": 1, "suspended": 1})
    return events_scripts.event_read(box.keys, [f.leased.id], [f.leased.receipt])


def _register(f: Furnished, box: Box) -> Command[Any]:
    """Add a waiter to an event that was not signalled."""
    waiters = [(eventing.name_of(box, f.waiting), box.clock.now_ms + 1000)]
    return events_scripts.event_register(eventing.event_keys(box), waiters)


def _forget(f: Furnished, box: Box) -> Command[Any]:
    """Forget one of two waiters."""
    eventing.register(box, f.waiting, f.due)
    eventing.signal(box)
    names = [eventing.name_of(box, f.due)]
    return events_scripts.event_waiters(eventing.event_keys(box), names, 10)


def _check_waits(f: Furnished, box: Box) -> Command[Any]:
    """Return a message that is to be registered, and plan another."""
    eventing.suspend(box, f.leased, f.failed)
    member = member_of(f.failed.id)
    wait: Any = box.redis.hget(box.keys.bodies, member + b"w")
    return events_scripts.event_checks(box.keys, [events_scripts.Check(member, wait)], 10)


Call = Callable[[Furnished], Command[Any]]


def _call(build: Callable[[Furnished, Box], Command[Any]]) -> Call:
    return lambda f: build(f, f.box)


CALLS: dict[str, Call] = {
    "audit_report": _call(
        lambda f, b: producer_scripts.audit_report(b.keys, PRODUCER, 3, 5, [(1, 2)])
    ),
    "ack": _call(lambda f, b: ack_without_results(f)),
    "ack_then": _call(lambda f, b: settle_and_follow(f)),
    "audit_open": _call(lambda f, b: audit_scripts.audit_open(b.keys, every_ms=1000)),
    "batch_add": _call(
        lambda f, b: batches_scripts.batch_add(b.keys, _batch(b), "rows", [BATCHED])
    ),
    "batch_close": _call(lambda f, b: batches_scripts.batch_close(b.keys, _batch(b))),
    "batch_end": _call(
        lambda f, b: batches_scripts.batch_end(b.keys, _batch(b), [(str(MEMBER_ID), "s")])
    ),
    "batch_open": _call(
        lambda f, b: batches_scripts.batch_open(
            b.keys, "other", batching.TARGET, batching.CALLBACK, batching.COUNTS_AT, "count", 0, 9
        )
    ),
    "member_ends": _call(lambda f, b: batches_scripts.member_ends(b.keys, [], 10)),
    "cancel": _call(lambda f, b: messages_scripts.cancel(b.handle, b.keys, b.session(), f.window)),
    "audit_scan": _call(lambda f, b: audit_scripts.audit_scan(b.keys, b"0", 100)),
    "claim": _call(lambda f, b: consumer_scripts.claim(b.keys, [CLAIM], [OWNER], 600_000)),
    "due_counts": _call(lambda f, b: topic_scripts.due_counts(b.keys, [0, 1000])),
    "drop_expired": _call(lambda f, b: dead_letters_scripts.drop_expired(b.handle, b.keys, 0, 100)),
    "event_checks": _call(_check_waits),
    "event_deliver": _deliver_event,
    "event_read": _call(_read_events),
    "event_register": _call(_register),
    "event_signal": _call(
        lambda f, b: events_scripts.event_signal(eventing.event_keys(b), eventing.DATA, 60_000, 10)
    ),
    "event_waiters": _call(_forget),
    "extend": _call(lambda f, b: b.extend_command([f.leased], b.session())),
    "finish": _call(lambda f, b: consumer_scripts.finish(b.keys, [CLAIM], [OWNER], [600_000])),
    "get": _call(lambda f, b: topic_scripts.get(b.keys, f.retry)),
    "group_pause": _call(lambda f, b: groups_scripts.group_pause(b.keys, "g")),
    "group_resume": _call(
        lambda f, b: groups_scripts.group_resume(b.handle, b.keys, "g", "paused")
    ),
    "groups": _call(lambda f, b: groups_scripts.groups(b.keys)),
    "merge": _call(lambda f, b: b.merge_command(b.ids()[0], key=b"open", mode="last")),
    "nack": _call(lambda f, b: b.nack_command([f.leased, f.failed], b.session())),
    "next_ready": _call(lambda f, b: consumer_scripts.next_ready([b.keys], True)),
    "pending": _call(lambda f, b: follow_ups_scripts.pending(b.keys)),
    "pending_send": _call(lambda f, b: follow(b)),
    "pending_settle": _call(
        lambda f, b: follow_ups_scripts.pending_settle(
            b.keys,
            TARGET,
            0,
            SENT_BY,
            10,
            refused=follow_ups_scripts.Refused(FOLLOW_UP, member_of(b.ids()[0]), *b.part(), b"why"),
        )
    ),
    "peek": _call(lambda f, b: topic_scripts.peek(b.keys, "store")),
    "prepare": _call(lambda f, b: consumer_scripts.prepare(b.keys, b.session(), 10, 30_000, True)),
    "publish": _call(lambda f, b: queries_scripts.publish(b.handle, b.keys, b.session(), STAGE)),
    "purge": _call(lambda f, b: topic_scripts.purge(b.handle, b.keys, b.session(), "store")),
    "queries": _call(lambda f, b: consumer_scripts.queries(b.keys)),
    "progress": _call(
        lambda f, b: results_scripts.progress(b.keys, f.leased.id, f.leased.receipt, b"details")
    ),
    "step": _call(
        lambda f, b: results_scripts.step(
            b.keys, f.leased.id, f.leased.receipt, (b"b", b"name", b""), 65536
        )
    ),
    "result": _call(lambda f, b: results_scripts.result(b.keys, [f.waiting, f.dead])),
    "query_release": _call(
        lambda f, b: queries_scripts.query_release(b.handle, b.keys, QUERY, 0, 10)
    ),
    "query_again": _call(lambda f, b: queries_scripts.query_again(b.keys, QUERY, 1)),
    "query_rollback": _call(
        lambda f, b: consumer_scripts.query_rollback(b.keys, RUN, 10, force=True)
    ),
    "query_fail": _call(lambda f, b: fail_queried(f)),
    "query_inspect": _call(lambda f, b: queries_scripts.query_inspect(b.keys, RUN)),
    "query_read": _call(lambda f, b: queries_scripts.query_read(b.keys, RUN, 0, 10, 10)),
    "query_reject": _call(
        lambda f, b: queries_scripts.query_reject(b.handle, b.keys, QUERY, 10, b"why", 10)
    ),
    "query_renew": _call(lambda f, b: queries_scripts.query_renew(b.keys, QUERY, 0, 10)),
    "query_settle": _call(
        lambda f, b: queries_scripts.query_settle(b.handle, b.keys, QUERY, 0, 10, 10)
    ),
    "query_take": _call(lambda f, b: queries_scripts.query_take(b.keys, QUERY, 1, 10)),
    "restore": _call(
        lambda f, b: dead_letters_scripts.restore(b.keys, b.session(), [b.keys.id_of(TRASHED)])
    ),
    "trash": _call(
        lambda f, b: dead_letters_scripts.trash(
            b.keys, b.session(), [f.dead], 1000, 9_000_000_000_000
        )
    ),
    "redrive": _call(
        lambda f, b: dead_letters_scripts.redrive(
            b.handle, b.keys, b.session(), [f.dead], 9_000_000_000_000
        )
    ),
    "redrive_hold": _call(
        lambda f, b: dead_letters_scripts.redrive_hold(
            b.keys, TOKEN, "other", [f.dead], [0], 9_000_000_000_000
        )
    ),
    "redrive_send": _call(lambda f, b: arrive(b)),
    "redrive_settle": _call(
        lambda f, b: dead_letters_scripts.redrive_settle(
            b.keys, b.session(), [(member_of(f.dead) + TOKEN, True)]
        )
    ),
    "reject": _call(
        lambda f, b: b.reject_command([f.leased], b.session(), follow_ups=by_target([follow_up(b)]))
    ),
    "release": _call(lambda f, b: b.release_command([f.leased], b.session())),
    "renew": _call(lambda f, b: consumer_scripts.renew(b.keys, [CLAIM], [OWNER], 600_000)),
    "reschedule": _call(
        lambda f, b: messages_scripts.reschedule(b.handle, b.keys, b.session(), f.retry, 5000)
    ),
    "rollback_expired_leases": _call(
        lambda f, b: consumer_scripts.rollback_expired_leases(b.handle, b.keys)
    ),
    "schedule_delete": _call(lambda f, b: scripts.schedule_delete(b.keys, SCHEDULE)),
    "schedule_due": _call(lambda f, b: scripts.schedule_due(b.keys, b"0")),
    "schedule_pause": _call(lambda f, b: scripts.schedule_pause(b.keys, SCHEDULE)),
    "schedule_resume": _call(
        lambda f, b: scripts.schedule_resume(b.keys, PAUSED, b"2", b.clock.now_ms, b.clock.now_ms)
    ),
    "schedule_send": schedule_send,
    "schedule_set": _call(
        lambda f, b: scripts.schedule_set(b.keys, SCHEDULE, b"another", "timing", 60, 67, 100, b"0")
    ),
    "schedules": _call(lambda f, b: scripts.schedules(b.keys)),
    "send": _call(lambda f, b: b.send_command(b.ids(2))),
    "set_priority": _call(
        lambda f, b: messages_scripts.set_priority(b.keys, b.session(), f.retry, 30)
    ),
    "sink_begin": _call(lambda f, b: queries_scripts.sink_begin(b.handle, SINK, 7, b"[]")),
    "sink_end": _call(lambda f, b: queries_scripts.sink_end(b.handle, SINK, 7)),
    "slot": _call(
        lambda f, b: topic_scripts.slot(b.handle, b.keys, b.created, b.settings.for_slot())
    ),
    "slot_delete": _call(lambda f, b: topic_scripts.slot_delete(b.keys, b.created, 1000)),
    "stage_keep": _call(lambda f, b: queries_scripts.stage_keep(b.keys, STAGE, 60_000, 2)),
    "stage_push": _call(
        lambda f, b: queries_scripts.stage_push(
            b.keys, STAGE, 2, 86_400_000, [member_of(b.ids()[0]), *b.part()]
        )
    ),
    "stats": _call(lambda f, b: topic_scripts.stats(b.keys)),
    "tidy": _call(lambda f, b: topic_scripts.tidy(b.keys)),
    "topic": _call(lambda f, b: topic_scripts.topic(b.handle, b.settings.to_redis())),
    "topic_close": _call(lambda f, b: topic_admin_scripts.topic_close(b.handle, b.created, True)),
    "topic_pause": _call(
        lambda f, b: topic_admin_scripts.topic_pause(b.handle, b.created, "me", "why")
    ),
    "topic_resize": _call(
        lambda f, b: topic_scripts.topic_resize(b.handle, 0, {"slots": "2", "resizing": ""})
    ),
    "resize_scan": _call(lambda f, b: topic_admin_scripts.resize_scan(b.keys, b"0", 10)),
    "topic_resume": _call(lambda f, b: topic_admin_scripts.topic_resume(b.handle, b.created)),
    "sample": _call(
        lambda f, b: topic_admin_scripts.sample(
            b.handle, {"10:7": b"figures", "60:7": b"figures"}, 60_000
        )
    ),
    "topic_set": _call(
        lambda f, b: topic_admin_scripts.topic_set(b.handle, b.created, {"lease_ms": "60000"})
    ),
    "unclaim": _call(lambda f, b: consumer_scripts.unclaim(b.keys, [CLAIM], [OWNER])),
    "withdraw": _call(lambda f, b: consumer_scripts.withdraw([b.keys], b"rmq:{x}:wake:1", 1)),
    "lease_release": _call(
        lambda f, b: consumer_scripts.lease_release(b.handle.channel, b.keys, f.lease, 10)
    ),
    "lease_renew": _call(lambda f, b: consumer_scripts.lease_renew(b.keys, f.lease, 30_000)),
    "lease_rollback": _call(lambda f, b: consumer_scripts.lease_rollback(b.keys, 10)),
    "job_pause": _call(lambda f, b: jobs_scripts.job_pause("rmq", JOB)),
    "job_resume": _call(lambda f, b: jobs_scripts.job_resume("rmq", PAUSED_JOB)),
    "job_start": _call(lambda f, b: jobs_scripts.job_start("rmq", NEW_JOB, ["verb", "redrive"])),
    "job_step": _call(
        lambda f, b: jobs_scripts.job_step(
            "rmq",
            JOB,
            "me",
            10_000,
            number=0,
            letters="",
            examined=1,
            cursor="",
            ids=[f.dead],
            keep_s=60,
            most=10,
        )
    ),
    "job_stop": _call(lambda f, b: jobs_scripts.job_stop("rmq", JOB, 60)),
    "job_take": _call(lambda f, b: jobs_scripts.job_take("rmq", JOB, "me", 10_000)),
    "lateness_report": _call(
        lambda f, b: consumer_scripts.lateness_report(b.keys, b.session(), [1, 2, 3])
    ),
    "leader_renew": _call(lambda f, b: leader.leader_renew(b.handle.name, "me", 10_000)),
    "leader_release": _call(lambda f, b: leader.leader_release(b.handle.name, "me")),
    "locate": _call(lambda f, b: topic_scripts.locate(b.keys, [f.waiting, f.leased.id, f.dead])),
}

# A key that the call above need not look at, and a call that must.
REACHING: dict[tuple[str, str], Call] = {
    (script, place): _call(
        lambda f, b, script=script: {  # type: ignore[misc]
            "cancel": lambda: messages_scripts.cancel(b.handle, b.keys, b.session(), b.ids()[0]),
            "get": lambda: topic_scripts.get(b.keys, b.ids()[0]),
            "reschedule": lambda: messages_scripts.reschedule(
                b.handle, b.keys, b.session(), b.ids()[0], 5000
            ),
            "set_priority": lambda: messages_scripts.set_priority(
                b.keys, b.session(), b.ids()[0], 30
            ),
        }[script]()
    )
    for script in ("cancel", "get", "reschedule", "set_priority")
    for place in ("prepare", "dead")
} | {("get", "trash"): _call(lambda f, b: topic_scripts.get(b.keys, b.ids()[0]))}


def _dropping(f: Furnished) -> Command[Any]:
    """A send for which another message must go."""
    box = f.box
    full = box.redis.zcard(box.keys.store)
    box.redis.hset(box.keys.slot, mapping={"capacity": full, "overflow": "drop_lowest"})
    return box.send_command(box.ids(), priority=900)


def _publishing(f: Furnished) -> Command[Any]:
    """A publish for which another message must go."""
    _dropping(f)
    return CALLS["publish"](f)


def _arriving(f: Furnished) -> Command[Any]:
    """A dead letter of another topic for which another message must go."""
    _dropping(f)
    return arrive(f.box, priority=900)


def _following(f: Furnished) -> Command[Any]:
    """A pending entry of another slot for which another message must go."""
    _dropping(f)
    return follow(f.box, priority=900)


def _settling_and_following(f: Furnished) -> Command[Any]:
    """A follow-up for which another message must go."""
    _dropping(f)
    return settle_and_follow(f, priority=900)


def _merging(f: Furnished) -> Command[Any]:
    """A merge that opens a window, for which another message must go."""
    _dropping(f)
    return f.box.merge_command(f.box.ids()[0], key=b"another")


def _next_turn(verb: str) -> Call:
    """A call in a turn in which the other set of settled ids is filled."""

    def call(f: Furnished) -> Command[Any]:
        f.box.clock.advance(60)
        ack_then(f.box, f.box.take(10))
        return CALLS[verb](f)

    return call


def _with_another_query(f: Furnished) -> Command[Any]:
    """Settle where two queries have messages."""
    f.box.redis.zadd(f.box.keys.queries, {"b" * 32: f.box.clock.now_ms + 60_000})
    return CALLS["query_settle"](f)


def _scheduling(f: Furnished) -> Command[Any]:
    """A scheduled send for which another message must go."""
    _dropping(f)
    return schedule_send(f, priority=900)


def _limited(verb: str) -> Call:
    """A call on a slot with a rate for each key."""

    def call(f: Furnished) -> Command[Any]:
        f.box.redis.hset(f.box.keys.slot, "limit", "0:0:0:0:1:1000:1:0:tenant")
        return CALLS[verb](f)

    return call


# Keys that a script looks at if it makes room for a message.
DROPPING = ("failures", "merge", "audit", "bodies", "results", "keeping")

REACHING |= {
    **{(verb, "rates"): _limited(verb) for verb in ("prepare", "query_take", "stats")},
    ("prepare", "leases"): _call(
        lambda f, b: consumer_scripts.prepare(b.keys, b.session(), 10, 30_000, True, shared=f.lease)
    ),
    **{("schedule_send", place): _scheduling for place in DROPPING},
    **{("redrive_send", place): _arriving for place in DROPPING},
    **{("pending_send", place): _following for place in DROPPING},
    ("ack_then", "merge"): _settling_and_following,
    **{("send", place): _dropping for place in DROPPING if place != "bodies"},
    **{("merge", place): _merging for place in DROPPING if place != "merge"},
    **{("publish", place): _publishing for place in DROPPING},
    ("query_settle", "store"): _with_another_query,
    **{(verb, "settled0"): _next_turn(verb) for verb in ("ack", "query_settle", "redrive_settle")},
}

NUMBERS: dict[str, dict[int, str]] = {
    # script: position in ARGV (negative: from the end) -> the name that the error tells
    "audit_report": {0: "now_us", 2: "from", 3: "sent", 4: "first", 5: "last"},
    "ack": {0: "now_us", 4: "runs", 5: "run"},
    "lateness_report": {0: "now_us", 2: "deliveries", 4: "deliveries"},
    "ack_then": {0: "now_us", 4: "runs", 5: "run", 13: "results", 18: "follow-ups"},
    "audit_open": {0: "now_us", 2: "limit", 3: "every_ms"},
    "cancel": {0: "now_us"},
    "audit_scan": {1: "limit"},
    "claim": {0: "now_us", 1: "hold_ms"},
    "due_counts": {0: "now_us", 1: "boundary", -1: "boundary"},
    "drop_expired": {0: "now_us", 3: "rank", 4: "limit"},
    "event_checks": {0: "now_us", 1: "limit"},
    "event_deliver": {0: "now_us", 4: "at"},
    "event_read": {0: "now_us"},
    "event_register": {0: "now_us", 2: "until_ms"},
    "event_signal": {0: "now_us", 3: "keep_ms", 4: "limit"},
    "event_waiters": {0: "now_us", 2: "limit"},
    "extend": {0: "now_us", 2: "lease_ms"},
    "finish": {0: "now_us", -1: "ttl_ms"},
    "group_resume": {0: "now_us"},
    "groups": {1: "limit"},
    "merge": {0: "now_us"},
    "nack": {0: "now_us", 4: "wait_ms"},
    "next_ready": {0: "now_us"},
    "pending": {0: "now_us", 1: "offset", 2: "limit"},
    "pending_send": {0: "now_us", 5: "entry"},
    "pending_settle": {0: "now_us", 2: "upto", 4: "limit", 5: "wait_ms", 6: "refused"},
    "peek": {3: "offset", 4: "limit", 5: "records"},
    "prepare": {0: "now_us", 2: "limit", 3: "lease_ms"},
    "publish": {0: "now_us"},
    "purge": {0: "now_us", 5: "limit"},
    "queries": {0: "now_us", 1: "limit"},
    "query_rollback": {0: "now_us", 2: "limit"},
    "query_fail": {0: "now_us", 4: "number", 6: "wait_ms"},
    "progress": {0: "now_us"},
    "batch_add": {0: "now_us"},
    "batch_close": {0: "now_us", 1: "cancelled"},
    "batch_end": {0: "now_us"},
    "batch_open": {0: "now_us", 3: "counts_at", 5: "timeout_ms", 6: "keep_ms"},
    "member_ends": {0: "now_us", 1: "limit"},
    "step": {0: "now_us", 6: "most"},
    "query_inspect": {0: "now_us"},
    "result": {0: "now_us"},
    "query_read": {0: "after", 1: "upto", 2: "limit", 3: "records"},
    "query_again": {0: "now_us", 3: "upto"},
    "query_release": {0: "now_us", 5: "after", 6: "limit"},
    "query_reject": {0: "now_us", 5: "upto", 6: "limit"},
    "query_renew": {0: "now_us", 3: "lease_ms", 4: "owner_ms", 5: "exact", 6: "after", 7: "upto"},
    "query_settle": {0: "now_us", 5: "since", 6: "upto", 7: "limit"},
    "query_take": {0: "now_us", 3: "lease_ms", 4: "from", 5: "limit", 6: "bytes"},
    "job_pause": {0: "now_us"},
    "job_resume": {0: "now_us"},
    "job_start": {0: "now_us"},
    "job_step": {
        0: "now_us",
        2: "hold_ms",
        3: "number",
        5: "examined",
        10: "keep_s",
        11: "most",
    },
    "job_stop": {0: "now_us", 1: "keep_s"},
    "job_take": {0: "now_us", 2: "hold_ms"},
    "restore": {0: "now_us"},
    "trash": {0: "now_us", 2: "keep_ms", 3: "died_by"},
    "redrive": {0: "now_us", 4: "died_by"},
    "redrive_hold": {0: "now_us", 3: "died_by", 5: "index"},
    "redrive_send": {0: "now_us"},
    "redrive_settle": {0: "now_us"},
    "reject": {0: "now_us", 5: "count"},
    "release": {0: "now_us", 4: "wait_ms", -1: "place"},
    "renew": {0: "hold_ms"},
    "reschedule": {0: "now_us", 5: "due"},
    "rollback_expired_leases": {0: "now_us", 3: "limit"},
    "schedule_due": {0: "now_us", 1: "limit"},
    "schedule_resume": {0: "now_us", 4: "next_ms", 5: "due_ms"},
    "schedule_send": {0: "now_us", 7: "next_ms", 8: "due_ms", 9: "time_ms"},
    "schedule_set": {0: "now_us", 5: "next_ms", 6: "due_ms", 7: "most"},
    "schedules": {0: "now_us", 2: "offset", 3: "limit"},
    "send": {0: "now_us", 5: "count"},
    "set_priority": {0: "now_us", 3: "priority"},
    "sink_begin": {0: "batch"},
    "sink_end": {0: "batch"},
    "slot": {0: "now_us", 2: "revision"},
    "slot_delete": {0: "created", 1: "most"},
    "stage_keep": {0: "keep_ms", 1: "length"},
    "stage_push": {0: "position", 1: "keep_ms"},
    "stats": {0: "now_us"},
    "tidy": {0: "now_us", 1: "limit"},
    "topic": {0: "now_us"},
    "topic_close": {0: "created", 1: "closed"},
    "sample": {0: "created", 1: "keep_ms"},
    "topic_resize": {0: "created", 1: "revision"},
    "resize_scan": {0: "now_us", 3: "limit"},
    "topic_set": {0: "created", 1: "revision"},
}


def place_of(key: bytes) -> str:
    """The short name of a key: slot, store, ..., replay; leader."""
    _, tagged, rest = key.rpartition(b"}:")
    return (rest.split(b":")[0] if tagged else rest.rpartition(b":")[2]).decode()
