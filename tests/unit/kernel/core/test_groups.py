"""The setting `groups`: its text, what it refuses; and what a message says of its group."""

from __future__ import annotations

import pytest

import rmq
from rmq.errors import InvalidType, InvalidValue, RMQError
from rmq.kernel.core import settings
from rmq.kernel.core.groups import group_in, mark_of, parse_groups, share_in
from rmq.kernel.core.settings import Settings


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("order", "order"),
        ("concurrency=5", "concurrency=5"),
        ("share.gold=4, on_dead=hold", "order,on_dead=hold,share.gold=4"),
        ("concurrency=1000,share.b=1,share.a.b=64", "concurrency=1000,share.a.b=64,share.b=1"),
        ("concurrency=1", "concurrency=1"),
    ],
)
def test_text_is_read_and_written_in_one_form(text: str, kept: str) -> None:
    found = parse_groups(text)

    assert str(found) == kept
    assert parse_groups(kept) == found == parse_groups(found)
    assert settings.from_redis("t", Settings(groups=found).to_redis()).groups == found


@pytest.mark.parametrize("nothing", [None, "off"])
def test_no_groups_are_none(nothing: str | None) -> None:
    assert parse_groups(nothing) is None
    assert Settings().to_redis()["groups"] == "off"


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ("orders", InvalidValue, "groups: 'orders' in 'orders'; give off"),
        ("concurrency=-1", InvalidValue, "groups: 'concurrency=-1'"),
        ("", InvalidValue, "groups: ''"),
        (7, InvalidType, "groups: 7"),
        ({"order": 1}, InvalidType, "groups.order: 1"),
        ({"concurrency": 2}, InvalidValue, "groups.concurrency: 2 with order"),
        ({"order": False, "concurrency": 1001}, InvalidValue, "groups.concurrency: 1001"),
        ({"on_dead": "stop"}, InvalidValue, "groups.on_dead: 'stop'; give continue or hold"),
        ({"share": ["gold"]}, InvalidType, "groups.share:"),
        ({"share": {"a b": 2}}, InvalidValue, "groups.share: 'a b'"),
        ({"share": {"a": 65}}, InvalidValue, "groups.share\\['a'\\]: 65"),
    ],
)
def test_what_cannot_be_is_refused(given: object, error: type[RMQError], told: str) -> None:
    with pytest.raises(error, match=told):
        parse_groups(rmq.Groups(**given) if isinstance(given, dict) else given)


@pytest.mark.parametrize("group", ["customer 7", "a/ü", "x" * 200])
@pytest.mark.parametrize("share", [None, "gold"])
@pytest.mark.parametrize("weight", [1, 64])
def test_a_mark_has_the_group_and_the_share(group: str, share: str | None, weight: int) -> None:
    mark = mark_of(group, share, weight)

    assert (group_in(mark), share_in(mark)) == (group, share)


def test_ordered_is_of_slots_where_there_are_no_groups() -> None:
    grouped = Settings(groups=rmq.Groups())

    assert [Settings().in_slot_order(each) for each in (True, False)] == [True, False]
    assert [grouped.in_slot_order(each) for each in (True, False)] == [False, False]
    several = Settings(groups=rmq.Groups(order=False, concurrency=3))
    assert not several.in_slot_order(False)
    with pytest.raises(InvalidValue, match="ordered: this topic delivers up to 3 messages of a"):
        several.in_slot_order(True)


def test_a_concurrency_for_each_key_is_that_of_the_groups() -> None:
    rate = settings.check({"groups": "order", "limit": "rate:10:1s:key=tenant"})
    assert Settings(**rate).limit.key == "tenant"

    both = settings.check({"groups": "order", "limit": "concurrency:2:key=tenant"})
    with pytest.raises(InvalidValue, match="in a topic with groups; the groups have it"):
        Settings(**both)
