"""Hand-overs: scripts that make messages available lease them to consumers that left credits."""

from __future__ import annotations

import time

import pytest
import redis

from rmq.features.dead_letters import scripts as dead_letters_scripts
from rmq.kernel.consumer import scripts
from rmq.kernel.core.ids import member_of
from rmq.kernel.producer import scripts as producer_scripts
from tests.conftest import any_binary
from tests.lua.box import Box, ordered
from tests.lua.crediting import WAYS, Sleeper, break_script, can_shard, credits_of, send_way
from tests.lua.eventing import deliver, one_suspended
from tests.lua.test_credits import check_that_an_unheard_probe_leaves_no_credit
from tests.patience import PATIENCE_S
from tests.servers import following

LEASE_MS = 30_000
REFUSALS = {
    "no channels": ("resetchannels",),
    "no command": ("-publish", "-spublish", "&*"),
    "no count": ("-pubsub", "&*"),
}


def waiting(box):
    return box.order("store")


def in_flight(box):
    return box.order("prepare")


@pytest.mark.parametrize("way", WAYS)
def test_a_message_that_is_sent_goes_to_the_prepare_queue_and_to_the_consumer(box, sleepers, way):
    sleeper = sleepers[0]
    sleeper.offer(limit=5)
    sleeper.heard()
    before = box.state()

    sent = send_way(box, way, body=b"text")
    count = len(sent)

    taken = sleeper.taken()
    assert [lease.id for lease in taken] == sent
    assert [lease.delivery for lease in taken] == list(range(1, count + 1))
    assert [lease.record[8:] for lease in taken] == [b"text"] * count
    written = box.changed(before)
    assert {place for place in written if place[0] == "store"} == set()
    for lease in taken:
        assert written.pop(("prepare", lease.id)) == lease.receipt
        assert written.pop(("records", lease.id)) == lease.record
        assert lease.receipt // 1000 == (box.clock.now_ms + LEASE_MS + 999) // 1000
    assert written == {
        ("slot", "accepted"): str(count),
        ("slot", "order"): str(count),
        ("slot", "delivered"): str(count),
        ("slot", "takes"): "1",
        ("slot", "credits"): "",
    }
    assert box.ack(*taken) == "1" * count
    assert "prepare" not in box.state()


def test_the_same_message_taken_by_prepare_leaves_the_same_keys(make_box, name, box):
    """The control of the test above: a hand-over is a prepare that comes at once."""
    sleeper = Sleeper(box)
    sleeper.offer()
    box.one()
    handed = {place: key for place, key in box.state().items() if place in ("records", "prepare")}
    sleeper.taken()
    box.redis.delete(*box.redis.keys(f"rmq:{{{name}_0}}:*"))
    again = Box(box.redis, name, box.clock)
    again.one()
    again.take_one()
    taken = {place: key for place, key in again.state().items() if place in ("records", "prepare")}

    assert [list(key.values()) for key in handed.values()] == [
        list(key.values()) for key in taken.values()
    ]
    sleeper.close()


def test_a_send_that_comes_twice_hands_over_once(box, sleepers):
    for one in sleepers[:2]:
        one.offer()
    given, session = box.ids(), box.session()

    box.twice(lambda: box.send_command(given, session))

    assert [lease.id for lease in sleepers[0].taken()] == given
    assert sleepers[1].taken() == []
    assert credits_of(box) == ["b"]


def test_credits_are_used_first_in_first_out(box, sleepers):
    for one in sleepers:
        one.offer()

    sent = [*box.send(2), *send_way(box, "alone")]

    assert [[lease.id for lease in one.taken()] for one in sleepers] == [[id] for id in sent]
    assert credits_of(box) == []
    assert waiting(box) == []


def test_more_messages_than_the_credits_take_wait_and_wake(box, sleepers):
    sleepers[0].offer(limit=2)
    wake = box.redis.pubsub()
    wake.subscribe(box.handle.channel)
    assert wake.get_message(timeout=5)

    sent = box.send(5)

    assert [lease.id for lease in sleepers[0].taken()] == sent[:2]
    assert set(waiting(box)) == set(sent[2:])
    assert wake.get_message(timeout=5)["data"] == b"0"
    assert box.counter("waiting") == 0
    wake.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_message_of_up_to_32_kib_is_handed_over_by_itself(box, sleepers, way):
    for one in sleepers:
        one.offer(limit=10)

    sent = send_way(box, way, body=b"x" * 32_767)

    taken = [[lease.id for lease in one.taken()] for one in sleepers]
    assert [ids for ids in taken if ids] == [[id] for id in sent]


@pytest.mark.parametrize(("size", "least"), [(0, 500), (1000, 100)])
def test_what_one_script_hands_over_is_bounded_and_the_others_are_woken(box, size, least):
    crowd = [Sleeper(box, f"s{n}") for n in range(64)]
    for one in crowd:
        one.offer(limit=1000)
    wake = box.redis.pubsub()
    wake.subscribe(box.handle.channel)
    assert wake.get_message(timeout=5)
    box.redis.config_resetstat()

    sent = box.send(1000, body=b"x" * size)

    calls = box.redis.info("commandstats")
    assert wake.get_message(timeout=5)["data"] == b"0"
    wake.close()
    for one in crowd:
        one.close()
    assert set(in_flight(box)) | set(waiting(box)) == set(sent)
    assert least <= len(in_flight(box)) <= 700
    assert calls["cmdstat_publish"]["calls"] <= 33
    assert calls["cmdstat_hget"]["calls"] <= 1000  # records, but for the credit
    assert calls["cmdstat_zrevrangebyscore"]["calls"] <= 33


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("refusal", ["gone", "lapsed", *REFUSALS])
def test_a_hand_over_that_is_not_counted_leaves_everything_as_without_credits(
    box, sleepers, refusal, way
):
    sleepers[0].offer(limit=5)
    allowed = box.redis
    if refusal == "gone":
        sleepers[0].close()
    elif refusal == "lapsed":
        box.clock.advance(20.1)
        box.redis.hset(box.keys.slot, "waiting", box.clock.now_ms + 1000)
    else:
        rules = list(REFUSALS[refusal])
        if not can_shard(box):
            rules = [rule for rule in rules if rule != "-spublish"]  # it has no such command
        box.redis.execute_command(
            "ACL", "SETUSER", "mute", "reset", "on", "nopass", "~*", "+@all", *rules
        )
        box.redis = redis.Redis(port=port_of(box), username="mute", password="any", protocol=2)
    before = box.state()

    sent = send_way(box, way)

    box.redis = allowed
    assert waiting(box) == sent[::-1]
    assert in_flight(box) == []
    assert box.changed(before) == {
        **{("store", id): box.score(id) for id in sent},
        **{("records", id): box.state()["records"][id] for id in sent},
        ("slot", "accepted"): str(len(sent)),
        ("slot", "order"): str(len(sent)),
        ("slot", "credits"): "",
        ("slot", "waiting"): "0",
    }


@pytest.fixture
def replica(box):
    with following(port_of(box), any_binary()) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
def test_a_consumer_that_is_connected_to_a_replica_hears_nothing_that_is_not_moved(
    box, sleepers, replica, way
):
    """As after a failover, when its connection is still that of the old master."""
    sleeper = sleepers[0]
    sleeper.offer(limit=5)
    sleeper.close()
    in_step(box)  # a replica that comes late repeats the probe
    sleeper.listen_at(replica.raw(protocol=2))

    sent = send_way(box, way)

    box.redis.execute_command("SPUBLISH" if sleeper.is_sharded else "PUBLISH", sleeper.channel, "7")
    in_step(box)
    assert sleeper.heard() == [7]  # it would hear what is published
    assert waiting(box) == sent[::-1]
    assert in_flight(box) == []


def port_of(box):
    return box.redis.connection_pool.connection_kwargs["port"]


def in_step(box):
    until = time.monotonic() + PATIENCE_S
    while box.redis.wait(1, 100) < 1:
        assert time.monotonic() < until, "the replica does not follow"


def test_the_next_credit_is_used_where_the_first_is_not_counted(box, sleepers):
    for one in sleepers[:2]:
        one.offer()
    sleepers[0].close()

    sent = box.one()

    assert [lease.id for lease in sleepers[1].taken()] == [sent]
    assert waiting(box) == []


def test_a_hand_over_that_nobody_heard_is_the_answer_to_the_call_that_left_the_credit(
    box, sleepers
):
    sleepers[0].offer(limit=3)
    sent = box.send(2)
    before = box.state()

    command = scripts.prepare(box.keys, sleepers[0].session, 3, LEASE_MS, False).as_repeat()
    batch = box.run(command)

    assert batch.ids == sent
    assert box.leases(batch) == sleepers[0].taken()
    assert box.state() == before


def test_the_call_of_a_credit_that_nobody_used_takes_what_there_is(box, sleepers):
    sleepers[0].offer()
    sleepers[0].withdraw()
    sent = box.one()

    batch = box.run(scripts.prepare(box.keys, sleepers[0].session, 3, LEASE_MS, False).as_repeat())

    assert batch.ids == [sent]


def test_a_shared_lease_is_over_what_is_handed_over(box, sleepers):
    box.one()
    lease = box.prepare(shared=0).deadline_s
    sleepers[0].offer(shared=lease - 3_000_000_000)

    box.one()

    (taken,) = sleepers[0].taken()
    assert taken.receipt // 1000 == lease
    assert box.score(taken.id, "prepare") == taken.receipt


@pytest.mark.parametrize(
    "options",
    [
        {"body": b"x" * 34_000},
        {"large": b"x" * 40_000},
        {"due": 0},
        {"due": 0, "priority": 300},
    ],
    ids=["34 KB", "large body", "due", "due with a priority"],
)
def test_what_is_not_plain_is_left_to_prepare(box, sleepers, options):
    sleepers[0].offer()

    sent = box.one(**options)

    assert sleepers[0].taken() == []
    assert waiting(box) == [sent]
    assert box.counter("waiting") == 0  # the consumer is woken
    assert sleepers[0].renew().ids == [sent]


def test_a_message_that_may_expire_is_handed_over_until_it_has_expired(box, sleepers):
    for one in sleepers:
        one.offer()
    fresh = box.one(expires=1)
    assert [lease.id for lease in sleepers[0].taken()] == [fresh]

    late = box.one(expires=0)

    assert sleepers[1].taken() == []
    assert waiting(box) == [late]
    assert box.counter("waiting") == 0  # the consumers are woken


@pytest.mark.parametrize(("flags", "size"), [(2, 5), (3, 6), (3, 11)])
def test_a_record_that_is_too_short_for_its_expiry_is_left_to_prepare(box, sleepers, flags, size):
    sleepers[0].offer(limit=2)
    id = box.one(due=1000)
    box.redis.hset(box.keys.records, member_of(id), bytes((flags, 0, 0, 200)) + bytes(4 + size))
    box.redis.zadd(box.keys.store, {member_of(id): ordered(200, 1)})

    last = box.one()

    assert sleepers[0].taken() == []
    assert set(waiting(box)) == {id, last}


@pytest.mark.parametrize("field", ["ordered", "paused", "limit"])
@pytest.mark.parametrize("way", WAYS)
def test_a_slot_that_gives_only_by_prepare_hands_nothing_over(box, sleepers, field, way):
    sleepers[0].offer()
    box.redis.hset(box.keys.slot, field, 1)

    sent = send_way(box, way)

    assert sleepers[0].taken() == []
    assert waiting(box) == sent[::-1]


@pytest.mark.parametrize("way", WAYS)
def test_larger_priorities_go_first_and_older_messages_before_newer(box, sleepers, way):
    low = box.one(priority=20)
    sleeper = sleepers[0]
    box.redis.hset(
        box.keys.slot,
        mapping={
            "waiting": box.clock.now_ms + 300_000,
            "credits": f"{sleeper.channel.decode()} 1 {box.clock.now_ms + 300_000} 3 30000 @s 1;",
        },
    )

    sent = send_way(box, way, priority=500)

    assert [lease.id for lease in sleeper.taken()] == [*sent, low][:3]


def test_one_take_in_five_with_retries_waiting_is_left_to_prepare(box, sleepers):
    failed = box.one()
    box.nack(box.take_one())
    for takes in (2, 3, 4):
        box.redis.hset(box.keys.slot, "takes", takes)
        now = box.clock.now_ms
        box.redis.hset(
            box.keys.slot,
            mapping={
                "waiting": now + 300_000,
                "credits": f"{sleepers[0].channel.decode()} 1 {now + 3000} 1 30000 @s 1;",
            },
        )
        (sent,) = send_way(box, "alone")
        taken = [lease.id for lease in sleepers[0].taken()]
        assert taken == ([] if takes == 4 else [sent])

    assert box.take_one().id == failed


def test_a_release_hands_over_to_another_consumer(box, sleepers):
    box.one()
    lease = box.take_one()
    sleepers[0].offer()

    assert box.release(lease) == "1"

    (taken,) = sleepers[0].taken()
    assert (taken.id, taken.left, taken.delivery) == (lease.id, lease.left, 2)
    assert box.score(lease.id, "prepare") == taken.receipt


@pytest.mark.parametrize("rolled_back", [False, True])
def test_a_nack_without_a_wait_hands_over_with_a_retry_less(box, sleepers, rolled_back):
    box.one()
    lease = box.take_one(lease_ms=1000)
    sleepers[0].offer()

    if rolled_back:
        box.clock.advance(1.9)
        assert box.rollback().retried == 1
    else:
        assert box.nack(lease, wait_ms=0) == "r"

    (taken,) = sleepers[0].taken()
    assert (taken.id, taken.left) == (lease.id, lease.left - 1)
    assert box.score(lease.id, "prepare") == taken.receipt
    assert box.nack(taken) == "r"
    assert box.take_one().left == lease.left - 2


def test_a_nack_with_a_wait_hands_nothing_over(box, sleepers):
    box.one()
    lease = box.take_one()
    sleepers[0].offer()

    box.nack(lease, wait_ms=1000)

    assert sleepers[0].taken() == []


def test_redriven_dead_letters_are_handed_over(box, sleepers):
    box.one()
    box.reject(lease := box.take_one())
    sleepers[0].offer()

    box.run(dead_letters_scripts.redrive(box.handle, box.keys, box.session(), [lease.id]))

    (taken,) = sleepers[0].taken()
    assert (taken.id, taken.left) == (lease.id, box.settings.max_retries)


@pytest.mark.parametrize("entry", [b"", b"\xff"])
def test_a_message_with_a_damaged_failure_entry_is_handed_over(box, sleepers, entry):
    box.one()
    lease = box.take_one()
    sleepers[0].offer()
    box.redis.hset(box.keys.failures, member_of(lease.id), entry)

    assert box.release(lease) == "1"

    (taken,) = sleepers[0].taken()
    assert (taken.id, taken.left) == (lease.id, box.settings.max_retries)


@pytest.mark.parametrize("way", WAYS)
def test_a_prepare_queue_of_a_wrong_type_is_left_alone(box, sleepers, way):
    sleepers[0].offer()
    box.redis.set(box.keys.prepare, b"another's")

    sent = send_way(box, way)

    assert box.state()["prepare"] == b"another's"
    assert waiting(box) == sent[::-1]
    assert sleepers[0].taken() == []


def test_a_full_redis_refuses_the_send_before_anybody_hears_of_it(tight):
    sleeper = Sleeper(tight)
    command = producer_scripts.send_uniform(
        tight.handle, tight.keys, tight.session(), *tight.part()[:1], tight.ids(), [b"body"]
    )
    sleeper.offer()
    sleeper.heard()
    tight.redis.config_set("maxmemory", 1)
    before = tight.state()

    with pytest.raises(redis.ResponseError, match="maxmemory"):
        tight.run(command)

    assert tight.state() == before
    assert sleeper.heard() == []
    sleeper.close()


@pytest.mark.parametrize("way", WAYS)
def test_control_a_script_that_does_not_count_loses_sight_of_the_message(
    box, sleepers, way, monkeypatch
):
    """Broken on purpose: the test of the count must notice."""
    break_script(monkeypatch, "send", "heard > 0", "heard >= 0")

    with pytest.raises(AssertionError):
        test_a_hand_over_that_is_not_counted_leaves_everything_as_without_credits(
            box, sleepers, "gone", way
        )


@pytest.mark.parametrize("way", WAYS)
def test_control_a_script_that_does_not_count_first_is_heard_at_a_replica(
    box, sleepers, replica, way, monkeypatch
):
    """Broken on purpose: the test of the replica must notice."""
    break_script(monkeypatch, "send", "if listeners > 0 then", "if true then")

    with pytest.raises(AssertionError):
        test_a_consumer_that_is_connected_to_a_replica_hears_nothing_that_is_not_moved(
            box, sleepers, replica, way
        )


def test_control_a_credit_without_a_probe_is_one_that_nobody_hears(box, sleepers, monkeypatch):
    """Broken on purpose: the test of the probe must notice, and a message is nobody's."""
    break_script(monkeypatch, "prepare", "if listeners ~= 1 then", "if false then")

    with pytest.raises(AssertionError):
        check_that_an_unheard_probe_leaves_no_credit(box, sleepers[0], 0)


def test_a_message_that_has_waited_for_an_event_is_left_to_prepare(box, sleepers):
    id = one_suspended(box)
    deliver(box, id)
    lease = box.take_one()
    sleepers[0].offer()

    box.release(lease)

    assert sleepers[0].taken() == []
    assert waiting(box) == [id]


@pytest.mark.parametrize("way", WAYS)
def test_messages_are_taken_by_prepare_while_others_have_waited(box, sleepers, way):
    suspended = one_suspended(box)
    sleepers[0].offer()

    sent = send_way(box, way)

    handed = [lease.id for lease in sleepers[0].taken()]
    assert handed in ([], sent)  # a single new message has not waited
    assert set(waiting(box)) == {suspended, *sent} - set(handed)
