"""A slot with something of everything in it: filled once by calls, then copied.

The tests of `calls` go over every script on such a slot.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rmq.features.dead_letters.jobs import scripts as jobs_scripts
from rmq.features.schedules import scripts as schedules_scripts
from rmq.features.spark import scripts
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.consumer.scripts import QueryLease
from rmq.kernel.core.ids import member_of
from rmq.kernel.core.keys import job_key, job_log_key, sink_key
from rmq.kernel.core.score import shared_lease
from rmq.kernel.producer import scripts as producer_scripts
from tests.lua.box import Box, Lease, State
from tests.lua.following import TARGET, follow_up, text_of

RUN = "0123456789abcdef" * 2
PRODUCER = "0123456789"  # who numbers messages here
QUERY = QueryLease(RUN, "host:1", 600_000, 15_000)
SHARED_MS = 43_200_000
STAGE, SINK = "query:7:attempt", "query"
CLAIM, OWNER = b"default:order-7", b"0123456789abcdefghijklmnop:1"
SCHEDULE, PAUSED, DEFINITION, TIMING = "report", "rest", b"definition", "60000|||0"
JOB, PAUSED_JOB, NEW_JOB = "t.00000001", "t.00000002", "t.00000003"
TRASHED = b"in the trash!"  # a member
FINISHED = b"has finished!"  # a member
KEEP_S = 3600  # how long results are kept
TOKEN = b"8 random"  # of a redrive to another topic
FOLLOW_UP, SENT_BY = 7, b"9000000000000"  # number of a pending entry, and the claim on its target


class Furnished(NamedTuple):
    """A slot with a message of each kind in it."""

    box: Box
    waiting: bytes  # of priority 100
    due: bytes  # due
    expired: bytes  # due, merging, expired
    later: bytes  # timed
    window: bytes  # a merge window, key b"open"
    retry: bytes
    leased: Lease
    failed: Lease  # leased again after a failure
    lapsed: Lease
    dead: bytes
    settled: bytes
    queried: bytes  # held by a query
    lease: int  # number of a shared lease with a message in flight
    staged: list[bytes]  # two entries, one message each


class Copied(NamedTuple):
    """A slot that was furnished once, to be copied into others: fifty calls are one.

    Attributes:
        before: the state of the slot before.
        keys: what each key holds, as DUMP gives it, and its time to live in ms.
        furnished: what is in it; of no use but for its members.
        seconds: how far the clock was moved.
        sessions: how many were made.
    """

    before: State
    keys: dict[bytes, tuple[bytes, int]]
    furnished: Furnished
    seconds: float
    sessions: int


COPY = """
for i, name in ipairs(KEYS) do
  redis.call('RESTORE', name, ARGV[i * 2 - 1], ARGV[i * 2], 'REPLACE')
end
"""
_copied: dict[tuple[str, int], Copied] = {}  # by settings and time


def furnish(box: Box, anew: bool = False) -> Furnished:
    """Fill a slot. Both settled sets are there, and every other key.

    Args:
        box: the slot; one like it that was furnished before is copied.
        anew: fill it by calls, which also load their scripts.
    """
    kind, before = (repr(box.settings), box.clock.now_us), box.state()
    copied = _copied.get(kind)
    if not anew and copied is not None and copied.before == before:
        return _copy(copied, box)
    sessions = box._sessions
    furnished = _furnish(box)
    keys = {}
    for name in [*box.redis.keys(_stem(box) + b"*"), *_elsewhere(box)]:
        keys[name.removeprefix(_stem(box))] = box.redis.dump(name), max(0, box.redis.pttl(name))
    seconds = (box.clock.now_us - kind[1]) / 1e6
    _copied[kind] = Copied(before, keys, furnished, seconds, box._sessions - sessions)
    return furnished


def _stem(box: Box) -> bytes:
    return box.keys.slot.removesuffix(b"slot")


def _elsewhere(box: Box) -> list[bytes]:
    """The keys that are no slot's."""
    jobs = [job_key("rmq", job) for job in (JOB, PAUSED_JOB)]
    return [*jobs, sink_key("rmq", box.handle.name, SINK)]


def _copy(copied: Copied, box: Box) -> Furnished:
    """Give a slot what the furnished one has."""
    old, given = copied.furnished.box, dict(copied.keys)
    *jobs, sink = _elsewhere(old)
    keys = dict(zip(_elsewhere(box), [given.pop(name) for name in (*jobs, sink)], strict=True))
    keys |= {_stem(box) + short: content for short, content in given.items()}
    args = [part for dump, ttl_ms in keys.values() for part in (ttl_ms, dump)]
    box.redis.delete(job_key("rmq", NEW_JOB), *_job_logs())
    box.eval(COPY, list(keys), args)
    box.clock.advance(copied.seconds)
    box._sessions += copied.sessions

    def here(value: Any) -> Any:
        """The same in this slot: an id has the slot and a check of the topic inside."""
        if isinstance(value, Lease):
            return value._replace(id=here(value.id))
        if isinstance(value, list):
            return [here(part) for part in value]
        return box.keys.id_of(member_of(value)) if isinstance(value, bytes) else value

    return Furnished(box, *map(here, copied.furnished[1:]))


def _job_logs() -> list[bytes]:
    return [job_log_key("rmq", job) for job in (JOB, PAUSED_JOB, NEW_JOB)]


def _furnish(box: Box) -> Furnished:
    queried = box.one(kept=True, large=b"large")
    assert box.run(scripts.query_take(box.keys, QUERY, 0, 1)).newest == 1
    shared = box.one()
    under = box.prepare(lease_ms=SHARED_MS, shared=0)
    assert under.ids == [shared]
    settled = b""
    for _ in range(2):
        settled = box.one(kept=True)
        assert box.ack(box.take_one()) == "1"
        box.clock.advance(60)
    box.one(kept=True)
    assert box.ack(box.take_one()) == "1"  # the newest turn is this one
    retry, failed, leased, lapsed, dead = box.send(5, kept=True, large=b"large", keep=KEEP_S)
    taken = {lease.id: lease for lease in box.take(5)}
    assert box.nack(taken[retry], taken[failed]) == "rr"
    again = {lease.id: lease for lease in box.take(2)}
    assert box.release(again[retry]) == "1"
    assert box.reject(taken[dead]) == "d"
    box.release(taken[lapsed])
    lapsing = box.take_one(lease_ms=1000)
    assert lapsing.id == lapsed
    expired, _ = box.merge(key=b"gone", range_ms=500, expires=500, keep=KEEP_S)
    due = box.one(due=600, keep=KEEP_S)
    box.clock.advance(2)
    later = box.one(due=60_000)
    window, _ = box.merge(kept=True, key=b"open", range_ms=30_000, keep=KEEP_S)
    waiting = box.one(keep=KEEP_S)
    box.run(producer_scripts.audit_report(box.keys, PRODUCER, 0, 3))
    box.run(consumer_scripts.claim(box.keys, [CLAIM], [OWNER], 600_000))
    staged = box.ids(2)
    for place, id in enumerate(staged):
        entry = [member_of(id), *box.part(priority=900)]
        box.run(scripts.stage_push(box.keys, STAGE, place, 86_400_000, entry))
    box.run(scripts.sink_begin(box.handle, SINK, 6, b"[]"))
    box.run(scripts.sink_end(box.handle, SINK, 6))
    now = box.clock.now_ms
    for name in (SCHEDULE, PAUSED):
        box.run(
            schedules_scripts.schedule_set(
                box.keys, name, DEFINITION, TIMING, now - 9, now - 2, 100, b"0"
            )
        )
    box.run(schedules_scripts.schedule_pause(box.keys, PAUSED))
    box.redis.delete(*(job_key("rmq", job) for job in (JOB, PAUSED_JOB, NEW_JOB)), *_job_logs())
    for job in (JOB, PAUSED_JOB):
        box.run(jobs_scripts.job_start("rmq", job, ["verb", "redrive"]))
        box.run(jobs_scripts.job_take("rmq", job, "me", 10_000))
    box.run(jobs_scripts.job_pause("rmq", PAUSED_JOB))
    box.redis.zadd(box.keys.trash, {TRASHED: now + 60_000})
    box.redis.hset(box.keys.deaths, TRASHED, now)
    box.redis.hset(box.keys.results, FINISHED, b"s" + now.to_bytes(6, "big"))
    box.redis.zadd(box.keys.keeping, {FINISHED: now + 1})
    box.redis.zadd(box.keys.arrivals, {TRASHED + TOKEN: now})
    box.redis.zadd(box.keys.rates, {"a": now + 60_000})
    box.redis.zadd(box.keys.pending, {text_of(TARGET, FOLLOW_UP, follow_up(box)): 0})
    box.redis.zadd(box.keys.targets, {TARGET: SENT_BY})
    box.redis.zadd(box.keys.waits, {FINISHED: now})  # it no longer waits
    box.redis.xadd(box.keys.acked, {"m": FINISHED + b"\0\0\0\x08" + b"\0" * 8}, id="1-0")
    box.redis.rpush(box.keys.ackedparts, "1-0 100")
    kept = {"history": f"{2**40}:{2**40}", "acked": "1-0 40000 39900"}  # the next ack ends a part
    box.redis.hset(box.keys.slot, mapping=kept)
    # Of a message that has left the log.
    box.redis.zadd(box.keys.querymarks_stem + RUN.encode(), {"0d4000000001001.5": 0})
    for field in [name for name in box.redis.hkeys(box.keys.slot) if name.startswith(b"@")]:
        box.redis.hdel(box.keys.slot, field)
    return Furnished(
        box, waiting, due, expired, later, window, retry, taken[leased], again[failed], lapsing,
        dead, settled, queried, shared_lease(under.deadline_s * 1000), staged,
    )  # fmt: skip
