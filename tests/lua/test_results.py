"""A result says what the queue says: all ways in which messages end, by every script."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import redis

from rmq.features.dead_letters import scripts as dead_letters_scripts
from rmq.features.messages import scripts as messages_scripts
from rmq.features.schedules import scripts as schedules_scripts
from rmq.features.spark import scripts as spark_scripts
from rmq.features.spark.scripts import Failing
from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.core.ids import member_of
from rmq.kernel.core.keys import results_channel
from rmq.kernel.follow_ups import scripts as follow_up_scripts
from rmq.kernel.results.scripts import progress
from rmq.kernel.topic import scripts as topic_scripts
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.lua import script_loader
from tests.lua import moving, query
from tests.lua.box import Box, Lease, case
from tests.lua.crediting import break_script
from tests.lua.following import TARGET, ack_then_command, entry, follow_up, own
from tests.lua.test_maxmemory import REFUSED_AT_MAXMEMORY
from tests.sources import full_text

# Letter of a result -> the counter that the same script adds to.
COUNTERS = {
    "s": "settled", "h": "settled", "d": "dead_lettered", "c": "cancelled", "e": "expired",
    "p": "purged", "o": "dropped",
}  # fmt: skip
KEEP_S = 60


class Ended(NamedTuple):
    """A call that ends messages."""

    command: Command[Any]
    marked: list[bytes]  # ids of messages that end, and keep their results
    plain: int = 0  # number of other messages that end


def both(box: Box, **options: Any) -> list[bytes]:
    """Send messages with and without the mark; the ids of the former."""
    first, *_ = box.send(1, keep=KEEP_S, **options)
    box.send(2, **options)
    last, *_ = box.send(1, keep=KEEP_S, **options)
    return [first, last]


def exhausted(box: Box) -> tuple[list[bytes], list[Lease]]:
    """Messages in their last delivery, which have failed before."""
    ids = both(box)
    box.nack(*box.take(4))
    return ids, box.take(4)


def cancelled(box: Box) -> tuple[list[bytes], list[Lease]]:
    """Deliveries whose cancellation was requested."""
    ids = both(box)
    leases = box.take(4)
    for lease in leases:
        box.run(
            messages_scripts.cancel(box.handle, box.keys, box.session(), lease.id, running=True)
        )
    return ids, leases


def ack_then(box: Box) -> Ended:
    ids = both(box)
    return Ended(ack_then_command(box, box.take(4)), ids, 2)


def hand_over(box: Box) -> Ended:
    ids = both(box)
    return Ended(ack_then_command(box, box.take(4), results=[b"h"] * 4), ids, 2)


def settle_query(box: Box) -> Ended:
    ids = both(box)
    query.take(box)
    return Ended(spark_scripts.query_settle(box.handle, box.keys, query.ME, 0, 4, 10), ids, 2)


def settle_waiting_query(box: Box) -> Ended:
    """Messages whose lease has expired, and that still wait."""
    ids = both(box)
    query.take(box, holder=query.EXACT)
    query.lapse(box, force=True)
    box.clock.advance(1)
    box.rollback()
    return Ended(spark_scripts.query_settle(box.handle, box.keys, query.EXACT, 0, 4, 10), ids, 2)


def nack(box: Box) -> Ended:
    ids, leases = exhausted(box)
    return Ended(box.nack_command(leases, box.session()), ids, 2)


def reject(box: Box) -> Ended:
    ids = both(box)
    return Ended(box.reject_command(box.take(4), box.session()), ids, 2)


def roll_back(box: Box) -> Ended:
    ids, _ = exhausted(box)
    box.clock.advance(60)
    return Ended(consumer_scripts.rollback_expired_leases(box.handle, box.keys), ids, 2)


def nack_cancelled(box: Box) -> Ended:
    ids, leases = cancelled(box)
    return Ended(box.nack_command(leases, box.session()), ids, 2)


def reject_cancelled(box: Box) -> Ended:
    ids, leases = cancelled(box)
    return Ended(box.reject_command(leases, box.session()), ids, 2)


def release_cancelled(box: Box) -> Ended:
    ids, leases = cancelled(box)
    return Ended(box.release_command(leases, box.session()), ids, 2)


def roll_back_cancelled(box: Box) -> Ended:
    ids, _ = cancelled(box)
    box.clock.advance(60)
    return Ended(consumer_scripts.rollback_expired_leases(box.handle, box.keys), ids, 2)


def cancel(box: Box) -> Ended:
    (id,) = box.send(1, keep=KEEP_S)
    box.nack(box.take_one())  # it has a failure entry
    return Ended(messages_scripts.cancel(box.handle, box.keys, box.session(), id), [id])


def cancel_merging(box: Box) -> Ended:
    id, _ = box.merge(keep=KEEP_S)
    return Ended(messages_scripts.cancel(box.handle, box.keys, box.session(), id), [id])


def purge(box: Box) -> Ended:
    ids = both(box)
    box.nack(*box.take(4))
    return Ended(topic_scripts.purge(box.handle, box.keys, box.session(), "store"), ids, 2)


def purge_by_id(box: Box) -> Ended:
    ids = both(box)
    command = topic_scripts.purge(box.handle, box.keys, box.session(), "store", ids=ids)
    return Ended(command, ids)


def expire(box: Box) -> Ended:
    ids = both(box, expires=500)
    box.clock.advance(1)
    return Ended(consumer_scripts.prepare(box.keys, box.session(), 10, 30_000, False), ids, 2)


def expire_for_query(box: Box) -> Ended:
    ids = both(box, expires=500)
    box.one()
    query.renew(box)
    box.clock.advance(1)
    return Ended(spark_scripts.query_take(box.keys, query.ME, 0, 10), ids, 2)


def expire_alone(box: Box) -> Ended:
    ids = both(box, due=1, expires=500)
    box.clock.advance(1)
    return Ended(dead_letters_scripts.drop_expired(box.handle, box.keys, 0, 100), ids, 2)


def reject_query(box: Box) -> Ended:
    ids = both(box)
    query.take(box)
    command = spark_scripts.query_reject(box.handle, box.keys, query.ME, 10, b"why", 10)
    return Ended(command, ids, 2)


def fail_query(box: Box, retry: bool = False) -> Ended:
    ids = both(box)
    query.take(box)
    query.read(box)
    failing = [Failing(n + 1, member_of(id), b"why", 0) for n, id in enumerate(query.log(box))]
    command = spark_scripts.query_fail(box.handle, box.keys, query.RUN, failing, retry=retry)
    return Ended(command, ids, 2)


def fail_query_last(box: Box) -> Ended:
    return fail_query(box, retry=True)


def full(box: Box) -> list[bytes]:
    """Messages that a message of priority 900 needs the room of."""
    ids = both(box)
    box.one(priority=500)
    box.redis.hset(box.keys.slot, mapping={"capacity": 2, "overflow": "drop_lowest"})
    return ids


def drop_by_send(box: Box) -> Ended:
    ids = full(box)
    return Ended(box.send_command(box.ids(), priority=900), ids, 2)


def drop_by_merge(box: Box) -> Ended:
    ids = full(box)
    return Ended(box.merge_command(box.ids()[0], priority=900), ids, 2)


def drop_by_publish(box: Box) -> Ended:
    ids = full(box)
    part = [member_of(box.ids()[0]), *box.part(priority=900)]
    box.run(spark_scripts.stage_push(box.keys, "stage", 0, 60_000, part))
    return Ended(spark_scripts.publish(box.handle, box.keys, box.session(), "stage"), ids, 2)


def drop_by_pending_send(box: Box) -> Ended:
    ids = full(box)
    given = [entry(box, 7, priority=900)]
    return Ended(follow_up_scripts.pending_send(box.handle, box.keys, "s:0", given), ids, 2)


def drop_by_redrive_send(box: Box) -> Ended:
    ids = full(box)
    arrival = moving.arrival(box, box.ids()[0], priority=900)
    return Ended(dead_letters_scripts.redrive_send(box.handle, box.keys, [arrival]), ids, 2)


def drop_by_schedule(box: Box) -> Ended:
    ids = full(box)
    now = box.clock.now_ms
    box.run(schedules_scripts.schedule_set(box.keys, "s", b"d", "t", now - 9, now - 2, 100, b"0"))
    command = schedules_scripts.schedule_send(
        box.handle, box.keys, ("s", b"1", b"%d" % (now - 9)), (now + 9000, now + 9000), now - 9,
        (box.ids()[0], *box.part(priority=900)),
    )  # fmt: skip
    return Ended(command, ids, 2)


def drop_by_ack(box: Box) -> Ended:
    """The ack settles one message, and its follow-up takes the place of others."""
    box.one(priority=1000)
    (lease,) = box.take()
    ids = full(box)
    return Ended(
        ack_then_command(box, [lease], follow_up(box, target=own(box), priority=900)), ids, 2
    )


def bury_follow_up(box: Box) -> Ended:
    """The dead letter in the place of a follow-up that its topic refuses."""
    box.one(keep=KEEP_S)
    lease = box.take_one()
    reply = box.run(ack_then_command(box, [lease], follow_up(box)))
    box.redis.delete(box.keys.results, box.keys.keeping)
    (id,) = box.ids()
    refused = follow_up_scripts.Refused(reply.number, member_of(id), *box.part(keep=KEEP_S), b"why")
    command = follow_up_scripts.pending_settle(
        box.keys, TARGET, 0, reply.claim, 10, refused=refused
    )
    return Ended(command, [id])


LAST, DROP = {"max_retries": 1}, {"on_expire": "drop"}
Way = tuple[str, str, dict[str, Any], Callable[[Box], Ended]]
# Letter of the results, script, settings of the topic, and the call.
WAYS: list[Way] = [
    ("s", "ack_then", {}, ack_then),
    ("h", "ack_then", {}, hand_over),
    ("o", "ack_then", {}, drop_by_ack),
    ("s", "query_settle", {}, settle_query),
    ("s", "query_settle", {}, settle_waiting_query),
    ("d", "nack", LAST, nack),
    ("d", "reject", {}, reject),
    ("d", "rollback_expired_leases", LAST, roll_back),
    ("c", "nack", {}, nack_cancelled),
    ("c", "reject", {}, reject_cancelled),
    ("c", "release", {}, release_cancelled),
    ("c", "rollback_expired_leases", {}, roll_back_cancelled),
    ("c", "cancel", {}, cancel),
    ("c", "cancel", {}, cancel_merging),
    ("p", "purge", {}, purge),
    ("p", "purge", {}, purge_by_id),
    ("e", "prepare", DROP, expire),
    ("d", "prepare", {}, expire),
    ("e", "query_take", DROP, expire_for_query),
    ("d", "query_take", {}, expire_for_query),
    ("e", "drop_expired", DROP, expire_alone),
    ("d", "drop_expired", {}, expire_alone),
    ("d", "query_reject", {}, reject_query),
    ("d", "query_fail", {}, fail_query),
    ("d", "query_fail", {"max_retries": 0}, fail_query_last),
    ("o", "send", {}, drop_by_send),
    ("o", "merge", {}, drop_by_merge),
    ("o", "publish", {}, drop_by_publish),
    ("o", "pending_send", {}, drop_by_pending_send),
    ("o", "redrive_send", {}, drop_by_redrive_send),
    ("o", "schedule_send", {}, drop_by_schedule),
    ("d", "pending_settle", {}, bury_follow_up),
]
IDS = [f"{letter} {way.__name__}" for letter, _, _, way in WAYS]


def disagreements(box: Box, letter: str, ended: Ended, full_redis: bool = False) -> list[str]:
    """Run a call, and return how results, counters and queues disagree."""
    before, counts = box.state(), box.stats()
    if full_redis:
        box.redis.config_set("maxmemory", 1)
    box.run(ended.command)
    box.redis.config_set("maxmemory", 0)
    after, now = box.state(), box.clock.now_ms
    grown = {name: count - counts[name] for name, count in box.stats().items()}
    found = []
    expected = len(ended.marked) + ended.plain
    if grown[COUNTERS[letter]] != expected:
        found.append(f"{COUNTERS[letter]} has grown by {grown[COUNTERS[letter]]}")
    stored = after.get("results", {})
    if set(stored) != set(ended.marked):
        found.append(f"{len(stored)} results")
    if after.get("keeping", {}) != dict.fromkeys(ended.marked, now + KEEP_S * 1000):
        found.append("end of keeping")
    for id, of_id in stored.items():
        # A dead letter keeps its failure entry, another message had it before.
        failure = (after if letter == "d" else before).get("failures", {}).get(id, b"")
        details = b"" if letter in "sh" else failure
        if of_id != letter.encode() + now.to_bytes(6, "big") + details:
            found.append(f"entry {of_id!r}")
        if any(id in after.get(queue, {}) for queue in ("store", "prepare")):
            found.append("it lives")
        if (id in after.get("dead", {})) != (letter == "d"):
            found.append("dead or not")
    return found


@pytest.mark.parametrize(("letter", "script", "settings", "way"), WAYS, ids=IDS)
def test_a_result_says_which_counter_has_grown(make_box, letter, script, settings, way) -> None:
    box = make_box(**settings)
    ended = way(box)
    assert ended.command.script.name == script

    assert disagreements(box, letter, ended) == []


@pytest.mark.parametrize(("letter", "script", "settings", "way"), WAYS, ids=IDS)
def test_a_script_without_results_is_noticed(
    make_box, monkeypatch, letter, script, settings, way
) -> None:
    break_script(monkeypatch, script, "redis.call('HSET', results, unpack(entries))", "")
    box = make_box(**settings)

    assert "0 results" in disagreements(box, letter, way(box))


def test_results_are_stored_on_a_full_redis_too(tight: Box) -> None:
    for n, (letter, script, settings, way) in enumerate(WAYS):
        if script not in REFUSED_AT_MAXMEMORY:
            with case(letter, way.__name__):
                box = Box(tight.redis, f"{tight.handle.name}-{n}", tight.clock, **settings)
                ended = way(box)
                tight.redis.script_load(ended.command.script.text)
                assert disagreements(box, letter, ended, full_redis=True) == []


def test_every_script_that_ends_messages_is_tested_here() -> None:
    """`ack` is refused in a slot with results. The others end dead letters, which have ended."""
    counter = re.compile(rf"slot, '({'|'.join(set(COUNTERS.values()))})'")
    found = {
        (name, of) for name in script_loader.names() for of in counter.findall(full_text(name))
    }

    tested = {(script, COUNTERS[letter]) for letter, script, _, _ in WAYS}
    assert found - tested == {("ack", "settled"), ("trash", "purged"), ("tidy", "purged")}
    assert tested <= found


# --- messages that do not end --------------------------------------------------------------------


def has_no_result(box: Box) -> bool:
    return not {"results", "keeping"} & set(box.state())


def test_a_message_that_goes_on_has_no_result(box: Box) -> None:
    id = box.one(keep=KEEP_S)
    box.nack(box.take_one())
    box.release(box.take_one())
    box.take_one(lease_ms=1000)
    box.clock.advance(3)
    box.rollback()
    box.run(messages_scripts.set_priority(box.keys, box.session(), id, 50))

    assert has_no_result(box)


def test_a_redriven_message_has_no_result_until_it_ends_again(box: Box) -> None:
    id = box.one(keep=KEEP_S)
    box.reject(box.take_one())
    assert box.state()["results"][id][:1] == b"d"
    session = box.session()

    reply = box.twice(lambda: dead_letters_scripts.redrive(box.handle, box.keys, session, [id]))

    assert reply == "1"
    assert has_no_result(box)
    box.run(ack_then_command(box, [box.take_one()]))
    assert box.state()["results"][id][:1] == b"s"


def test_a_dead_letter_that_moves_to_another_topic_has_no_result(box: Box) -> None:
    stays, moves = moving.bury(box, 2, keep=KEEP_S)
    moving.hold(box, stays, moves)
    pairs, session = [(moving.entry(moves), True), (moving.entry(stays), False)], box.session()

    reply = box.twice(lambda: dead_letters_scripts.redrive_settle(box.keys, session, pairs))

    assert reply == "1r"
    assert set(box.state()["results"]) == set(box.state()["keeping"]) == {stays}


@pytest.mark.parametrize("end", ["purge", "trash", "restore", "retention"])
def test_a_dead_letter_keeps_its_result_whatever_becomes_of_it(make_box, end: str) -> None:
    box = make_box(dead_retention_ms=1000)
    (id,) = moving.bury(box, keep=KEEP_S)
    before = {place: box.state()[place] for place in ("results", "keeping")}

    if end == "purge":
        assert box.run(topic_scripts.purge(box.handle, box.keys, box.session(), "dead")) == 1
    elif end == "retention":
        box.clock.advance(2)
        assert box.run(topic_scripts.tidy(box.keys)).dropped == 1
    else:
        keep_ms = 9000 if end == "restore" else 0
        box.run(dead_letters_scripts.trash(box.keys, box.session(), [id], keep_ms))
        box.run(dead_letters_scripts.restore(box.keys, box.session(), [id]))

    assert {place: box.state()[place] for place in before} == before


def test_tidy_removes_results_past_their_keeping_a_page_at_a_time(box: Box) -> None:
    ids = box.send(5, keep=KEEP_S)
    box.run(ack_then_command(box, box.take(5)))
    box.clock.advance(KEEP_S - 0.001)
    assert box.run(topic_scripts.tidy(box.keys)).more is False
    assert len(box.state()["results"]) == 5
    assert box.stats()["results"] == 5
    box.clock.advance(0.001)

    for left in (3, 1):
        assert box.run(topic_scripts.tidy(box.keys, limit=2)).more is True
        assert len(box.state()["results"]) == len(box.state()["keeping"]) == left
        assert box.stats()["results"] == left
    assert box.run(topic_scripts.tidy(box.keys, limit=2)).more is False

    assert has_no_result(box)
    assert len(ids) == 5


@pytest.mark.parametrize("by", ["nack", "cancel"])
def test_progress_becomes_the_result(make_box, by: str) -> None:
    box = make_box(max_retries=0)
    id = box.one(keep=KEEP_S)
    lease = box.take_one()
    box.run(progress(box.keys, id, lease.receipt, b"half"))
    if by == "cancel":
        cancel = messages_scripts.cancel(box.handle, box.keys, box.session(), id, running=True)
        box.run(cancel)

    box.nack(lease)

    assert box.state()["results"][id][:1] == (b"d" if by == "nack" else b"c")
    assert id in box.state()["keeping"]


def test_one_call_tells_all_its_ends_at_once(box: Box) -> None:
    ids = both(box)
    leases = box.take(4)
    listener = box.redis.pubsub()
    listener.subscribe(results_channel("rmq", box.handle.name, box.index))
    listener.get_message(timeout=5)

    box.reject(*leases)

    told: Any = listener.get_message(timeout=5)
    assert told["data"] == b"done " + b"".join(map(member_of, ids))
    assert listener.get_message(timeout=0.05) is None
    listener.close()


def test_a_user_that_may_not_publish_ends_messages_all_the_same(box: Box, each_server) -> None:
    id = box.one(keep=KEEP_S)
    lease = box.take_one()
    box.redis.execute_command(
        "ACL", "SETUSER", "mute", "on", "nopass", "~*", "+@all", "resetchannels"
    )
    mute = Box.__new__(Box)
    mute.redis = each_server.raw(username="mute", password="any", protocol=2)

    assert mute.run(progress(box.keys, id, lease.receipt, b"half")) == 1
    assert mute.run(box.reject_command([lease], box.session())) == "d"

    assert id in box.state()["results"]
    mute.redis.close()
    box.redis.execute_command("ACL", "DELUSER", "mute")


def test_a_key_of_a_wrong_type_matters_only_to_scripts_that_use_it(box: Box) -> None:
    """An ack in a slot without results looks at neither key."""
    box.one()
    box.redis.set(box.keys.results, "another's")
    box.redis.set(box.keys.keeping, "another's")

    assert box.ack(box.take_one()) == "1"
    box.one(keep=KEEP_S)
    lease = box.take_one()
    before = box.state()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        box.reject(lease)
    assert box.changed(before) == {}
