"""Credits: how a consumer that finds nothing leaves one, renews it, and loses it."""

from __future__ import annotations

import pytest
import redis

from rmq.kernel.consumer import scripts
from rmq.kernel.consumer.scripts import CreditState, Offer
from tests.lua.crediting import Sleeper, break_script, can_shard, credits_of

KEPT_MS = 3000
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

    assert (batch.wait_us, batch.ids, batch.credit.stands) == (-1, [], True)
    until = box.clock.now_ms + KEPT_MS
    call = sleeper.session.call.decode()
    assert box.changed(before) == {
        ("slot", "credits"): f"{sleeper.channel.decode()} 1 {until} 5 20000 {call};",
        ("slot", "waiting"): str(box.clock.now_ms + NOTED_MS),
    }
    assert sleeper.heard() == [1]


def test_one_that_has_heard_a_probe_leaves_a_credit_without_another(box, sleeper):
    before = box.state()

    assert sleeper.offer(is_heard=True).credit.stands

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
    assert not batch.credit.stands
    assert credits_of(box) == []
    assert sleeper.heard() == []


@pytest.mark.parametrize("is_heard", [False, True])
@pytest.mark.parametrize("listeners", [0, 2])
def test_a_probe_that_is_not_heard_once_leaves_no_credit(box, sleeper, listeners, is_heard):
    check_that_an_unheard_probe_leaves_no_credit(box, sleeper, listeners, is_heard)


def check_that_an_unheard_probe_leaves_no_credit(box, sleeper, listeners, is_heard=False):
    if listeners == 0:
        sleeper = Sleeper(box, "deaf", deaf=True, is_sharded=sleeper.is_sharded)
    else:
        other = Sleeper(box, is_sharded=sleeper.is_sharded)
        assert other.channel == sleeper.channel

    batch = sleeper.offer(is_heard=is_heard)

    assert not batch.credit.stands
    assert credits_of(box) == []
    assert box.counter("waiting") == box.clock.now_ms + NOTED_MS  # it is woken by a signal


def test_credits_stand_in_the_order_in_which_they_came(box):
    sleepers = [Sleeper(box, name) for name in "abc"]
    for one in sleepers:
        assert one.offer().credit.stands
    assert credits_of(box) == ["a", "b", "c"]

    box.clock.advance(1)
    assert sleepers[0].renew().credit.stands

    assert credits_of(box) == ["a", "b", "c"]
    for one in sleepers:
        one.close()


def test_a_renewed_credit_lasts_longer_and_stays_what_it_was(box, sleeper):
    sleeper.offer(limit=5)
    call = sleeper.session.call.decode()
    box.clock.advance(2)
    before = box.state()

    assert sleeper.renew(limit=7).credit.stands

    until = box.clock.now_ms + KEPT_MS
    assert box.changed(before) == {
        ("slot", "credits"): f"{sleeper.channel.decode()} 1 {until} 5 30000 {call};",
        ("slot", "waiting"): str(box.clock.now_ms + NOTED_MS),
    }
    assert sleeper.heard() == [1, 2]


def test_a_credit_that_is_gone_is_not_renewed(box, sleeper):
    """It was used: another one would be one more than its consumer knows of."""
    sleeper.offer()
    box.redis.hset(box.keys.slot, "credits", "")

    batch = sleeper.renew()

    assert batch.credit == (False, 0, False)
    assert credits_of(box) == []


def test_a_renewal_that_nobody_hears_removes_the_credit(box, sleeper):
    sleeper.offer()
    sleeper.close()

    assert not sleeper.renew().credit.stands
    assert credits_of(box) == []


def test_a_renewal_that_finds_messages_removes_the_credit(box, sleeper):
    box.one(due=500)
    assert sleeper.offer().credit.stands
    box.clock.advance(0.5)

    batch = sleeper.renew()

    assert len(batch.ids) == 1
    assert batch.credit == (False, 1, False)
    assert credits_of(box) == []


def test_a_credit_for_three_hand_overs_shares_its_messages_out(box, sleeper):
    assert sleeper.offer(limit=10, hand_overs=3).credit.stands

    calls = " ".join(session.call.decode() for session in sleeper.sessions)
    until = box.clock.now_ms + KEPT_MS
    entry = f"{sleeper.channel.decode()} 1 {until} 3 30000 {calls};"
    assert box.redis.hget(box.keys.slot, "credits").decode() == entry
    assert sleeper.heard() == [1]


def test_a_credit_that_was_used_in_part_is_renewed_and_withdrawn_as_what_is_left(box, sleeper):
    sleeper.offer(limit=10, hand_overs=3)
    box.send()
    box.clock.advance(1)
    calls = " ".join(session.call.decode() for session in sleeper.sessions[1:])

    assert sleeper.renew(limit=7).credit.stands

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
    ).again()

    batch = box.run(repeat)

    assert batch.ids == sent[:1]  # what was handed over for its own number
    assert batch.credit == (False, 3 - used, True)
    assert credits_of(box) == []
    assert box.run(repeat).credit == (False, 0, True)
    assert credits_of(box) == []


def test_control_a_repeated_call_that_forgets_the_credit_leaves_it(box, sleeper, monkeypatch):
    """Broken on purpose: the test of the repetition must notice."""
    break_script(monkeypatch, "prepare", "if again and #waits > 1 then", "if false then")

    with pytest.raises(AssertionError):
        check_that_a_repeated_call_leaves_no_credit(box, sleeper, 0)


def test_a_slot_keeps_no_more_than_64_credits_and_forgets_those_that_lapsed(box, sleeper):
    until = box.clock.now_ms + KEPT_MS
    others = "".join(f"other{n} 1 {until} 1 30000 @s 1;" for n in range(64))
    box.redis.hset(box.keys.slot, "credits", others)

    assert not sleeper.offer().credit.stands
    assert len(credits_of(box)) == 64

    box.clock.advance(KEPT_MS / 1000)
    assert sleeper.offer().credit.stands
    assert credits_of(box) == ["a"]


@pytest.mark.parametrize("ordered_first", [False, True])
def test_a_slot_in_order_keeps_no_credit(box, sleeper, ordered_first):
    if ordered_first:
        box.one()
        box.take(1, ordered=True)

    assert not sleeper.offer(ordered=not ordered_first).credit.stands
    assert credits_of(box) == []


def test_a_paused_slot_keeps_no_credit(box, sleeper):
    box.redis.hset(box.keys.slot, "paused", box.clock.now_ms)

    assert not sleeper.offer().credit.stands
    assert credits_of(box) == []


@pytest.mark.parametrize("again_ms", [0, 10_000])
def test_a_shared_lease_that_ends_before_the_credit_keeps_none(box, sleeper, again_ms):
    box.one()
    lease = box.prepare(shared=0, lease_ms=30_000).deadline_s - 3_000_000_000
    box.clock.advance((30_000 - again_ms) / 1000)

    kept = sleeper.offer(shared=lease).credit.stands

    assert kept == (again_ms == 10_000)
    assert f" s{lease} " in box.redis.hget(box.keys.slot, "credits").decode() if kept else True


@pytest.mark.parametrize(
    "waits", [b"+1", b"+ x", b"+1 a;b", b"+1 a b", b"~1 a", b"+x a", b"+1 a" + b" @s 1" * 16]
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
    assert (waits, kept) == ([30_000_000, -1, -1], [CreditState(stands=True)] * 3)
    for index, session in enumerate(sessions):
        assert box.state(index)["slot"]["credits"].endswith(f" 4 30000 {session.call.decode()};")

    repeat = scripts.next_ready_or_credit(box.handle.slots, offer, 4, 30_000, sessions).again()
    assert box.run(repeat)[1] == [CreditState(unused=1, is_repeat=True)] * 3
    assert all("credits" not in box.state(index)["slot"] for index in range(3))
    assert box.run(repeat)[1] == [CreditState(is_repeat=True)] * 3

    assert ask(offer)[1] == [CreditState(stands=True)] * 3
    box.redis.hset(box.handle.slots[1].slot, "credits", "")
    renewed = ask(Offer(8, sleeper.channel, renews=True))[1]
    assert [credit.stands for credit in renewed] == [True, False, True]
    sleeper.close()


def test_a_user_without_channels_leaves_no_credit(box, sleeper):
    box.redis.execute_command("ACL", "SETUSER", "mute", "reset", "on", "nopass", "~*", "+@all")
    box.redis.execute_command("ACL", "SETUSER", "mute", "resetchannels")
    port = box.redis.connection_pool.connection_kwargs["port"]
    box.redis = redis.Redis(port=port, username="mute", password="any", protocol=2)

    assert not sleeper.offer().credit.stands
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

    assert not sleeper.offer().credit.stands
    assert credits_of(box) == []
    assert box.counter("waiting") == box.clock.now_ms + NOTED_MS  # it is woken by a signal


def test_a_server_without_shard_channels_keeps_no_credit_for_one(box):
    """As the oldest does; and as any does where nobody listens."""
    sleeper = Sleeper(box, deaf=True, is_sharded=True)

    assert not sleeper.offer().credit.stands
    assert credits_of(box) == []


@pytest.mark.parametrize("is_heard", [False, True])
def test_credits_are_kept_while_redis_is_at_maxmemory(tight, is_heard):
    sleeper = Sleeper(tight)
    tight.redis.config_set("maxmemory", 1)

    assert sleeper.offer(is_heard=is_heard).credit.stands
    assert tight.counter("waiting") == tight.clock.now_ms + NOTED_MS
    assert sleeper.renew().credit.stands
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
