"""claim.lua on a real server."""

from __future__ import annotations

import time

import pytest
import redis

from rmq.kernel.consumer import scripts

A, B = b"0123456789abcdefghijklmnop:1", b"0123456789abcdefghijklmnop:2"
NAME = b"mail:order 7"
FIRST, DONE = ("first", 0, 0), ("done", 0, 0)
STATES = ["absent", "mine", "other's", "done by me", "done by another"]
VERBS = ("claim", "renew", "finish", "unclaim")


def command(box, verb, names, owners):
    """A call of one of the scripts of claims, for a minute."""
    if verb == "unclaim":
        return scripts.unclaim(box.keys, names, owners)
    times = [60_000] * len(names) if verb == "finish" else 60_000
    return getattr(scripts, verb)(box.keys, names, owners, times)


def take(box, *names, owner=A, hold_ms=60_000):
    return box.run(scripts.claim(box.keys, names, [owner] * len(names), hold_ms))


def place(box, name=NAME):
    return box.keys.claim_stem + name


def left_ms(box, name=NAME):
    return box.redis.pttl(place(box, name))


def put(box, state, name=NAME):
    """Bring the claim into a state: its text, and how long it lives."""
    if state != "absent":
        word = "consumed" if "done" in state else "consuming"
        owner = A if state in ("mine", "done by me") else B
        text = b"%s %s %d" % (word.encode(), owner, box.clock.now_ms - 5000)
        box.redis.set(place(box, name), text, px=300_000)


def test_absent_claim_becomes_its_owner_s_for_a_while_and_nothing_else_changes(box):
    box.one()
    before = box.state()

    assert take(box, NAME) == [FIRST]

    text = b"consuming %s %d" % (A, box.clock.now_ms)
    assert box.changed(before, replay=True) == {("claim:mail:order 7",): text}
    assert 55_000 < left_ms(box) <= 60_000


def test_claim_sent_again_is_still_first_and_only_held_anew(box):
    build = lambda: scripts.claim(box.keys, [NAME], [A], 60_000)  # noqa: E731
    box.run(scripts.claim(box.keys, [NAME], [A], 20_000))

    assert box.twice(build) == [FIRST]

    assert left_ms(box) > 55_000


def test_another_owner_is_told_since_when_and_until_when(box):
    take(box, NAME)
    box.clock.advance(2.5)
    before = box.state()

    ((state, age_ms, until_ms),) = take(box, NAME, owner=B, hold_ms=1)

    assert (state, age_ms) == ("busy", 2500)
    assert 55_000 < until_ms <= 60_000
    assert box.state() == before
    assert left_ms(box) > 55_000


@pytest.mark.parametrize("owner", [A, B])
def test_consumed_claim_is_done_whoever_asks_and_lives_on_as_it_did(box, owner):
    put(box, "done by me")
    before = box.state()

    assert take(box, NAME, owner=owner) == [DONE]

    assert box.state() == before
    assert left_ms(box) > 200_000


def test_claim_that_nobody_renewed_is_free_again(box):
    take(box, NAME, hold_ms=30)
    time.sleep(0.05)  # until Redis has forgotten it: its clock cannot be moved

    assert take(box, NAME, owner=B) == [FIRST]


def test_name_twice_in_one_call_goes_to_the_first_owner(box):
    names, owners = [NAME, b"other", NAME, NAME], [A, A, B, A]

    reply = box.run(scripts.claim(box.keys, names, owners, 60_000))

    assert reply == [FIRST, FIRST, ("busy", 0, 60_000), FIRST]
    assert box.redis.get(place(box)) == b"consuming %s %d" % (A, box.clock.now_ms)


def test_every_state_in_one_call_is_answered_in_its_place(box):
    names = [b"%d" % n for n in range(2 * len(STATES))]
    for name, state in zip(names, STATES * 2, strict=True):
        put(box, state, name)

    reply = take(box, *names)

    assert [state for state, _, _ in reply] == ["first", "first", "busy", "done", "done"] * 2
    assert [age for _, age, _ in reply] == [0, 0, 5000, 0, 0] * 2


@pytest.mark.parametrize("verb", ["renew", "finish", "unclaim"])
def test_claims_of_every_state_are_answered_each_in_its_place(box, verb):
    names = [b"%d" % n for n in range(2 * len(STATES))]
    for name, state in zip(names, STATES * 2, strict=True):
        put(box, state, name)
    held = ("mine", "done by me") if verb == "finish" else ("mine",)

    reply = box.run(command(box, verb, names, [A] * len(names)))

    assert reply == [state in held for state in STATES * 2]


@pytest.mark.fault("F21")
def test_clock_that_went_back_makes_no_negative_age(box):
    take(box, NAME)
    box.clock.advance(-10)

    assert take(box, NAME, owner=B)[0][1] == 0


def test_claim_whose_life_was_taken_away_is_said_to_end_as_a_new_one_would(box):
    take(box, NAME)
    box.redis.persist(place(box))

    assert take(box, NAME, owner=B, hold_ms=7000) == [("busy", 0, 7000)]
    assert take(box, NAME, hold_ms=7000) == [FIRST]
    assert 6000 < left_ms(box) <= 7000


def test_names_of_any_bytes_and_owners_of_any_script_are_told_apart(box):
    names = [bytes(range(256)), b"a", b"a:", b"}:a", b"{a}", b"", "größe".encode()]
    owners = ["é:%d".encode() % n for n in range(len(names))]

    assert box.run(scripts.claim(box.keys, names, owners, 60_000)) == [FIRST] * len(names)

    assert box.run(scripts.renew(box.keys, names, owners, 60_000)) == [True] * len(names)
    assert box.run(scripts.renew(box.keys, names, owners[::-1], 60_000)).count(True) == 1


def test_claims_need_no_slot_and_survive_its_loss(box):
    box.redis.delete(box.keys.slot)

    assert take(box, NAME) == [FIRST]
    assert take(box, NAME, owner=B)[0][0] == "busy"


@pytest.mark.parametrize("owner", [b"", b"a b", b" ", b"a\n", b"a" * 101])
def test_owner_with_a_space_or_none_or_too_long_is_refused(box, owner):
    for verb in VERBS:
        before = box.state()
        with pytest.raises(redis.ResponseError, match="RMQARG owner"):
            box.run(command(box, verb, [b"x", NAME], [A, owner]))
        assert box.state() == before


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("count", [1000, 1001])
def test_a_thousand_in_one_call_and_no_more(box, verb, count):
    names = [b"%d" % n for n in range(count)]
    owners = [A] * count
    box.run(scripts.claim(box.keys, names[:1000], owners[:1000], 60_000))
    before = box.state()

    if count > 1000:
        with pytest.raises(redis.ResponseError, match="RMQARG count"):
            box.run(command(box, verb, names, owners))
        assert box.state() == before
    else:
        assert (
            box.run(command(box, verb, names, owners))
            == [FIRST if verb == "claim" else True] * count
        )


def test_claims_and_owners_that_do_not_pair_are_refused(box):
    for build in (
        scripts.claim(box.keys, [NAME], [A, A], 1000),
        scripts.renew(box.keys, [NAME, b"x"], [A], 1000),
        scripts.finish(box.keys, [NAME], [A], [1000, 1000]),
        scripts.finish(box.keys, [NAME, b"x"], [A], [1000, 1000]),
        scripts.unclaim(box.keys, [NAME], []),
    ):
        with pytest.raises(redis.ResponseError, match="RMQARG count"):
            box.run(build)

    assert "claim:mail:order 7" not in box.state()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "value",
    [b"", b"garbage", b"consuming", b"consuming a", b"consuming a b", b"consuming  5",
     b"taken a 5", b"consuming a 5 ", b" consuming a 5", b"CONSUMED a 5", b"consumed a -5"],
)  # fmt: skip
def test_what_is_no_claim_is_an_error_that_tells_its_place_and_nothing_changes(box, verb, value):
    names, owners = [b"before", NAME, b"after"], [A] * 3
    take(box, b"before")
    box.redis.set(place(box), value)
    before = box.state()
    build = command(box, verb, names, owners)

    with pytest.raises(redis.ResponseError, match="RMQCLAIM 2") as caught:
        box.run(build)

    assert "order" not in str(caught.value)
    assert box.state() == before


@pytest.mark.parametrize("verb", VERBS)
def test_wrong_type_behind_the_last_of_many_stops_all(box, verb):
    names, owners = [b"one", b"two", NAME], [A] * 3
    take(box, b"one")
    box.redis.rpush(place(box), "another's")
    before = box.state()
    build = command(box, verb, names, owners)

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        box.run(build)

    assert box.state() == before
