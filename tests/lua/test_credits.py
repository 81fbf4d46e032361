"""Credits: how a consumer that finds nothing leaves one, renews it, and loses it."""

from __future__ import annotations

import pytest
import redis

from rmq.kernel.consumer import scripts
from rmq.kernel.consumer.scripts import CreditState, Offer
from tests.lua.crediting import Sleeper, break_script, can_shard, credits_of

KEPT_MS = 20_000
LEFT_MS = 5000  # of a credit that is renewed
NOTED_MS = 300_000  # a sleeper, for signals


@pytest.fixture(params=["short form", "long form", "shard channel"])
def sleeper(box, request):
    is_sharded = request.param == "shard channel"
    if is_sharded and not can_shard(box):
        pytest.skip("this server has no shard channels")
    made = Sleeper(box, is_sharded=is_sharded)
    if request.param == "long form":  # a session that the slot does not know
        make = box.session
        box.session = lambda: make(known=False)
    yield made
    made.close()


def test_a_consumer_that_finds_nothing_leaves_a_credit(box, sleeper):
    before = box.state()

    batch = sleeper.offer(limit=5, lease_ms=20_000)

    assert (batch.wait_us, batch.ids, batch.credit.is_valid) == (-1, [], True)
    until = box.clock.now_ms + KEPT_MS
    call = sleeper.session.call.decode()
    assert box.changed(before) == {
        ("slot", "credits"): f"{sleeper.channel.decode()} 1 {until} 5 20000 {call};",
        ("slot", "waiting"): str(box.clock.now_ms + NOTED_MS),
    }
    assert sleeper.heard() == [1]


def test_one_that_has_heard_a_probe_leaves_a_credit_without_another(box, sleeper):
    before = box.state()

    assert sleeper.offer(is_confirmed=True).credit.is_valid

    until, call = box.clock.now_ms + KEPT_MS, sleeper.session.call.decode()
    assert box.changed(before) == {
        ("slot", "credits"): f"{sleeper.channel.decode()} 1 {until} 1 30000 {call};",
        ("slot", "waiting"): str(box.clock.now_ms + NOTED_MS),
    }
    assert sleeper.heard() == []


def test_a_consumer_that_finds_messages_leaves_none(box, sleeper):
    sent = box.send(3)

    batch = sleeper.offer(limit=2)

    assert batch.ids == sent[:2]
    assert not batch.credit.is_valid
    assert credits_of(box) == []
    assert sleeper.heard() == []


@pytest.mark.parametrize("is_confirmed", [False, True])
@pytest.mark.parametrize("listeners", [0, 2])
def test_a_probe_that_is_not_heard_once_leaves_no_credit(box, sleeper, listeners, is_confirmed):
    check_that_an_unheard_probe_leaves_no_credit(box, sleeper, listeners, is_confirmed)


def check_that_an_unheard_probe_leaves_no_credit(box, sleeper, listeners, is_confirmed=False):
    if listeners == 0:
        sleeper = Sleeper(box, "deaf", deaf=True, is_sharded=sleeper.is_sharded)
    else:
        other = Sleeper(box, is_sharded=sleeper.is_sharded)
        assert other.channel == sleeper.channel

    batch = sleeper.offer(is_confirmed=is_confirmed)

    assert not batch.credit.is_valid
    assert credits_of(box) == []
    assert box.counter("waiting") == box.clock.now_ms + NOTED_MS  # it is woken by a signal


def test_credits_stand_in_the_order_in_which_they_came(box):
    sleepers = [Sleeper(box, name) for name in "abc"]
    for one in sleepers:
        assert one.offer().credit.is_valid
    assert credits_of(box) == ["a", "b", "c"]

    box.clock.advance(16)
    assert sleepers[0].renew().credit.is_valid

    assert credits_of(box) == ["a", "b", "c"]
    for one in sleepers:
        one.close()


def test_a_look_at_a_credit_that_does_not_end_soon_writes_and_publishes_nothing(box, sleeper):
    check_that_a_look_changes_nothing(box, sleeper)


def check_that_a_look_changes_nothing(box, sleeper):
    sleeper.offer(limit=5)
    assert sleeper.heard() == [1]
    box.redis.config_resetstat()
    before = box.state()

    for _ in range((KEPT_MS - LEFT_MS) // 1000):
        box.clock.advance(1)
        assert sleeper.renew(limit=7).credit == (True, 1, False)

    assert box.state() == before
    assert sleeper.heard() == []
    calls = box.redis.info("commandstats")
    # A ZREM comes before each write to the slot. The HSETs are those of new sessions of this test.
    assert not {"cmdstat_zrem", "cmdstat_publish", "cmdstat_spublish"}.intersection(calls)


def test_control_a_credit_that_is_renewed_by_each_look_is_written_each_second(
    box, sleeper, monkeypatch
):
    """Broken on purpose: the test of the look must notice."""
    break_script(monkeypatch, "prepare", "till < now + 5000 and", "")

    with pytest.raises(AssertionError):
        check_that_a_look_changes_nothing(box, sleeper)


def test_a_credit_that_ends_soon_is_renewed_and_stays_what_it_was(box, sleeper):
    sleeper.offer(limit=5)
    call = sleeper.session.call.decode()
    box.clock.advance((KEPT_MS - LEFT_MS + 1) / 1000)
    before = box.state()

    assert sleeper.renew(limit=7).credit.is_valid

    until = box.clock.now_ms + KEPT_MS
    assert box.changed(before) == {
        ("slot", "credits"): f"{sleeper.channel.decode()} 1 {until} 5 30000 {call};",
        ("slot", "waiting"): str(box.clock.now_ms + NOTED_MS),
    }
    assert sleeper.heard() == [1]  # and no second probe


@pytest.mark.parametrize("late_ms", [-1, 0, 60_000])
def test_a_credit_of_which_little_or_nothing_is_left_is_renewed_in_time(box, sleeper, late_ms):
    sleeper.offer()
    box.clock.advance((KEPT_MS + late_ms) / 1000)

    assert sleeper.renew().credit.is_valid
    sent = box.send()

    assert [lease.id for lease in sleeper.taken()] == sent


def test_a_credit_from_before_the_clock_was_set_back_ends_as_a_new_one(box, sleeper):
    sleeper.offer()
    box.clock.advance(-3600)

    assert sleeper.renew().credit.is_valid

    until = box.redis.hget(box.keys.slot, "credits").split()[2]
    assert int(until) == box.clock.now_ms + KEPT_MS


def test_a_credit_that_is_gone_is_not_renewed(box, sleeper):
    """It was used: another one would be one more than its consumer knows of."""
    sleeper.offer()
    box.redis.hset(box.keys.slot, "credits", "")

    batch = sleeper.renew()

    assert batch.credit == (False, 0, False)
    assert credits_of(box) == []


@pytest.mark.parametrize("seconds", [1, 16])
def test_a_look_that_counts_no_listener_removes_the_credit(box, sleeper, seconds):
    sleeper.offer()
    sleeper.close()
    box.clock.advance(seconds)

    assert not sleeper.renew().credit.is_valid
    assert credits_of(box) == []


def test_a_renewal_that_finds_messages_removes_the_credit(box, sleeper):
    box.one(due=500)
    assert sleeper.offer().credit.is_valid
    box.clock.advance(0.5)

    batch = sleeper.renew()

    assert len(batch.ids) == 1
    assert batch.credit == (False, 1, False)
    assert credits_of(box) == []


def test_a_credit_for_three_hand_overs_shares_its_messages_out(box, sleeper):
    assert sleeper.offer(limit=10, hand_overs=3).credit.is_valid

    calls = " ".join(session.call.decode() for session in sleeper.sessions)
    until = box.clock.now_ms + KEPT_MS
    entry = f"{sleeper.channel.decode()} 1 {until} 3 30000 {calls};"
    assert box.redis.hget(box.keys.slot, "credits").decode() == entry
    assert sleeper.heard() == [1]


def test_a_credit_that_was_used_in_part_is_renewed_and_withdrawn_as_what_is_left(box, sleeper):
    assert sleeper.offer(limit=10, hand_overs=3).credit == (True, 3, False)
    box.send()
    box.clock.advance(16)
    calls = " ".join(session.call.decode() for session in sleeper.sessions[1:])

    assert sleeper.renew(limit=7).credit == (True, 2, False)

    until = box.clock.now_ms + KEPT_MS
    entry = f"{sleeper.channel.decode()} 2 {until} 3 30000 {calls};"
    assert box.redis.hget(box.keys.slot, "credits").decode() == entry
    assert sleeper.withdraw() == [1, 2]
    assert sleeper.withdraw() == [1, 0]


def test_a_renewal_that_finds_messages_tells_what_the_credit_was_still_good_for(box, sleeper):
    box.one(due=500)
    sleeper.offer(hand_overs=3)
    box.send()
    box.clock.advance(0.5)

    batch = sleeper.renew()

    assert len(batch.ids) == 1
    assert batch.credit == (False, 2, False)
    assert credits_of(box) == []


@pytest.mark.parametrize("used", [0, 1, 2, 3])
def test_a_repeated_call_removes_the_credit_that_its_earlier_copy_left(box, sleeper, used):
    check_that_a_repeated_call_leaves_no_credit(box, sleeper, used)


def check_that_a_repeated_call_leaves_no_credit(box, sleeper, used):
    """The reply of the earlier copy was lost, so its caller does not know that a credit stands."""
    number = sleeper.number + 1
    sleeper.offer(limit=9, hand_overs=3)
    sent = [id for _ in range(used) for id in box.send()]
    further = sleeper.sessions[1:]
    repeat = scripts.prepare(
        box.keys, sleeper.session, 9, 30_000, Offer(number, sleeper.channel, sessions=further)
    ).as_repeat()

    batch = box.run(repeat)

    assert batch.ids == sent[:1]  # what was handed over for its own number
    assert batch.credit == (False, 3 - used, True)
    assert credits_of(box) == []
    assert box.run(repeat).credit == (False, 0, True)
    assert credits_of(box) == []


def test_control_a_repeated_call_that_forgets_the_credit_leaves_it(box, sleeper, monkeypatch):
    """Broken on purpose: the test of the repetition must notice."""
    break_script(monkeypatch, "prepare", "if is_repeated and offer then", "if false then")

    with pytest.raises(AssertionError):
        check_that_a_repeated_call_leaves_no_credit(box, sleeper, 0)


def test_a_slot_keeps_no_more_than_64_credits_and_forgets_those_that_lapsed(box, sleeper):
    until = box.clock.now_ms + KEPT_MS
    others = "".join(f"other{n} 1 {until} 1 30000 @s 1;" for n in range(64))
    box.redis.hset(box.keys.slot, "credits", others)

    assert not sleeper.offer().credit.is_valid
    assert len(credits_of(box)) == 64

    box.clock.advance(KEPT_MS / 1000)
    assert sleeper.offer().credit.is_valid
    assert credits_of(box) == ["a"]


@pytest.mark.parametrize("ordered_first", [False, True])
def test_a_slot_in_order_keeps_no_credit(box, sleeper, ordered_first):
    if ordered_first:
        box.one()
        box.take(1, ordered=True)

    assert not sleeper.offer(ordered=not ordered_first).credit.is_valid
    assert credits_of(box) == []


def test_a_paused_slot_keeps_no_credit(box, sleeper):
    box.redis.hset(box.keys.slot, "paused", box.clock.now_ms)

    assert not sleeper.offer().credit.is_valid
    assert credits_of(box) == []


@pytest.mark.parametrize("left_ms", [0, 2999, 3000, 10_000, 30_000])
def test_a_credit_ends_no_later_than_its_shared_lease(box, sleeper, left_ms):
    box.one()
    lease = box.prepare(shared=0, lease_ms=30_000).deadline_s - 3_000_000_000
    box.clock.advance((30_000 - left_ms) / 1000)

    kept = sleeper.offer(shared=lease).credit.is_valid

    assert kept == (left_ms >= 3000)  # one that ends at once is worth nothing
    if kept:
        words = box.redis.hget(box.keys.slot, "credits").decode().split()
        assert int(words[2]) == box.clock.now_ms + min(KEPT_MS, left_ms)
        assert words[4] == f"s{lease}"


def test_a_credit_under_a_short_shared_lease_is_written_as_often_as_that_is_renewed(box, sleeper):
    box.one()
    lease = box.prepare(shared=0, lease_ms=4000).deadline_s - 3_000_000_000
    assert sleeper.offer(shared=lease).credit.is_valid
    before = box.state()

    assert sleeper.renew(shared=lease).credit.is_valid
    assert box.state() == before

    box.clock.advance(1)
    box.run(scripts.lease_renew(box.keys, lease, 4000))
    assert sleeper.renew(shared=lease).credit.is_valid
    until = box.redis.hget(box.keys.slot, "credits").split()[2]
    assert int(until) == box.clock.now_ms + 4000


@pytest.mark.parametrize(
    "waits",
    [
        b"+1",
        b"+ x",
        b"+1 a;b",
        b"+1 a b",
        b"~1 a",
        b"+x a",
        b"+1 a" + b" @s 1" * 16,
        b"=a b",
        b"=a;",
    ],
)
def test_a_malformed_offer_is_an_error_and_nothing_changes(box, waits):
    command = scripts.prepare(box.keys, box.session(known=False), 1, 30_000, False)
    command.args[4] = waits
    before = box.state()

    with pytest.raises(redis.ResponseError, match="RMQARG waits"):
        box.run(command)

    assert box.state() == before


def test_slots_get_credits_where_none_of_them_has_work(make_box):
    box = make_box(slots=3)
    sleeper = Sleeper(box)
    sessions = [box.session() for _ in range(3)]
    offer = Offer(7, sleeper.channel)

    def ask(offer):
        slots = box.handle.slots
        return box.run(scripts.next_ready_or_credit(slots, offer, 4, 30_000, sessions))

    box.one()
    assert ask(offer) == ([0, -1, -1], [CreditState()] * 3)
    assert all("credits" not in box.state(index)["slot"] for index in range(3))

    box.take_one()
    waits, kept = ask(offer)
    assert (waits, kept) == ([30_000_000, -1, -1], [CreditState(True, 1)] * 3)
    for index, session in enumerate(sessions):
        assert box.state(index)["slot"]["credits"].endswith(f" 4 30000 {session.call.decode()};")

    repeat = scripts.next_ready_or_credit(box.handle.slots, offer, 4, 30_000, sessions).as_repeat()
    assert box.run(repeat)[1] == [CreditState(left=1, is_repeat=True)] * 3
    assert all("credits" not in box.state(index)["slot"] for index in range(3))
    assert box.run(repeat)[1] == [CreditState(is_repeat=True)] * 3

    assert ask(offer)[1] == [CreditState(True, 1)] * 3
    box.redis.hset(box.handle.slots[1].slot, "credits", "")
    box.run(scripts.withdraw(box.handle.slots[2:], sleeper.channel, 8))
    box.clock.advance(KEPT_MS / 1000)
    looked = ask(Offer(0, sleeper.channel))[1]
    assert [credit.is_valid for credit in looked] == [True, False, False]
    sleeper.close()


@pytest.fixture
def three(make_box):
    """A box of three slots, in each of which a sleeper has left a credit; and the sleeper."""
    box = make_box(slots=3)
    sleeper = Sleeper(box)
    sessions = [box.session() for _ in range(3)]
    offer = Offer(7, sleeper.channel)
    command = scripts.next_ready_or_credit(box.handle.slots, offer, 4, 30_000, sessions)
    assert box.run(command)[1] == [CreditState(True, 1)] * 3
    yield box, sleeper
    sleeper.close()


def look(box, sleeper):
    offer = Offer(0, sleeper.channel)
    return box.run(scripts.next_ready_or_credit(box.handle.slots, offer, 4, 30_000, []))


def test_a_look_at_the_credits_of_slots_writes_nothing_until_they_end_soon(three):
    box, sleeper = three
    states = [box.state(index) for index in range(3)]
    for _ in range((KEPT_MS - LEFT_MS) // 1000):
        box.clock.advance(1)
        assert look(box, sleeper) == ([-1] * 3, [CreditState(True, 1)] * 3)
    assert [box.state(index) for index in range(3)] == states

    box.clock.advance(1)
    assert look(box, sleeper) == ([-1] * 3, [CreditState(True, 1)] * 3)
    ends = [box.state(index)["slot"]["credits"].split()[2] for index in range(3)]
    assert ends == [str(box.clock.now_ms + KEPT_MS)] * 3


def test_a_look_finds_what_waits_is_due_or_in_flight_in_any_of_the_slots(three):
    check_that_a_look_finds_what_there_is(*three)


def check_that_a_look_finds_what_there_is(box, sleeper):
    box.index, box.keys = 2, box.handle.slots[2]
    box.redis.hset(box.keys.slot, "waiting", 0)  # its sender does not know that somebody sleeps
    box.one(due=3000)
    assert look(box, sleeper) == ([-1, -1, 3_000_000], [CreditState(True, 1)] * 3)
    box.clock.advance(3)
    assert look(box, sleeper) == ([-1, -1, 0], [CreditState()] * 3)

    box.take_one()
    assert look(box, sleeper) == ([-1, -1, 30_000_000], [CreditState(True, 1)] * 3)


def test_a_look_at_slots_of_another_topic_is_an_error(three):
    box, sleeper = three
    box.redis.hset(box.handle.slots[0].slot, "created", 1)

    with pytest.raises(redis.ResponseError, match="RMQANEW"):
        look(box, sleeper)


def test_control_a_look_that_trusts_its_credits_misses_what_waits(three, monkeypatch):
    """Broken on purpose: the test of the look must notice."""
    break_script(monkeypatch, "next_ready", "redis.call('EXISTS', unpack(queues)) == 0", "true")

    with pytest.raises(AssertionError):
        check_that_a_look_finds_what_there_is(*three)


def test_a_user_without_channels_leaves_no_credit(box, sleeper):
    box.redis.execute_command("ACL", "SETUSER", "mute", "reset", "on", "nopass", "~*", "+@all")
    box.redis.execute_command("ACL", "SETUSER", "mute", "resetchannels")
    port = box.redis.connection_pool.connection_kwargs["port"]
    box.redis = redis.Redis(port=port, username="mute", password="any", protocol=2)

    assert not sleeper.offer().credit.is_valid
    assert credits_of(box) == []


@pytest.mark.parametrize("taken", ["+@all -spublish &*", "+@all resetchannels"])
def test_a_user_who_may_not_publish_on_shard_channels_leaves_no_credit_there(box, taken):
    if not can_shard(box):
        pytest.skip("this server has no shard channels")
    sleeper = Sleeper(box, is_sharded=True)
    rules = ["reset", "on", "nopass", "~*", *taken.split()]
    box.redis.execute_command("ACL", "SETUSER", "mute", *rules)
    port = box.redis.connection_pool.connection_kwargs["port"]
    box.redis = redis.Redis(port=port, username="mute", password="any", protocol=2)

    assert not sleeper.offer().credit.is_valid
    assert credits_of(box) == []
    assert box.counter("waiting") == box.clock.now_ms + NOTED_MS  # it is woken by a signal


def test_a_server_without_shard_channels_keeps_no_credit_for_one(box):
    """As the oldest does; and as any does where nobody listens."""
    sleeper = Sleeper(box, deaf=True, is_sharded=True)

    assert not sleeper.offer().credit.is_valid
    assert credits_of(box) == []


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_credits_are_kept_while_redis_is_at_maxmemory(tight, is_confirmed):
    sleeper = Sleeper(tight)
    tight.redis.config_set("maxmemory", 1)

    assert sleeper.offer(is_confirmed=is_confirmed).credit.is_valid
    assert tight.counter("waiting") == tight.clock.now_ms + NOTED_MS
    tight.clock.advance(16)
    assert sleeper.renew().credit.is_valid
    assert sleeper.withdraw() == [1, 1]

    sleeper.close()


def test_a_full_slot_counts_what_waits_only(make_box):
    box = make_box(max_length=1)
    sleeper = Sleeper(box)
    sleeper.offer()

    first, second = box.one(), box.one()

    assert [lease.id for lease in sleeper.taken()] == [first]
    assert box.order("store") == [second]
    sleeper.close()
