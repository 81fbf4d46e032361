"""Limits: what is accepted, their texts, and the shares of slots."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import rmq
from rmq.kernel.core import delivery_limits, settings
from rmq.kernel.core.delivery_limits import Concurrency, Limits, Rate, parse_limits
from rmq.kernel.core.layout import Layout

BOTH = Limits(Rate(100, 1), Concurrency(5))


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        (None, Limits()),
        ("off", Limits()),
        (Rate(100, per=1), Limits(Rate(100, 1))),
        (Concurrency(5), Limits(concurrency=Concurrency(5))),
        ([Concurrency(5), Rate(100, timedelta(seconds=1))], BOTH),
        (BOTH, BOTH),
        ("rate:100", Limits(Rate(100, 1.0))),
        ("rate:100:1m:7", Limits(Rate(100, 60, 7))),
        ("concurrency:5, rate:100:1s", BOTH),
        (Concurrency(1, key="tenant"), Limits(key_concurrency=Concurrency(1, key="tenant"))),
        ("concurrency:1:key=tenant", Limits(key_concurrency=Concurrency(1, "tenant"))),
        ("rate:10:1s:key=tenant", Limits(key_rate=Rate(10, 1, key="tenant"))),
        ("rate:10:key=a.b", Limits(key_rate=Rate(10, key="a.b"))),
        (
            [Rate(9, 1, 2, "x"), Concurrency(5), Concurrency(2, "x"), Rate(100, 1)],
            Limits(Rate(100, 1), Concurrency(5), Rate(9, 1, 2, "x"), Concurrency(2, "x")),
        ),
    ],
)
def test_limit_is_accepted_in_every_form_and_comes_back_from_its_texts(
    given: Any, parsed: Limits
) -> None:
    found = parse_limits(given)

    assert found.to_redis() == parsed.to_redis()
    assert delivery_limits.from_redis(found.to_redis()).to_redis() == parsed.to_redis()
    assert parse_limits(str(found)).to_redis() == parsed.to_redis()


@pytest.mark.parametrize(
    "given",
    [
        "100", "rate", "rate:", "rate:x", "rate:0", "rate:1:0s", "rate:1:2d", "rate:1:1s:0",
        "rate:1:1s:1:1", "rate:1000001", "concurrency:0", "concurrency:1:2", "rate:1,rate:2",
        "concurrency:-1", "rate:1:x", "rate:²", "rate:1:1s:key=", "rate:key=a",
        "concurrency:1:key=a:b", "concurrency:1:key=rmq-type", "concurrency:1:key=a b",
        "concurrency:1:key=a,rate:1:key=b", "rate:1:key=a,rate:2:key=a", "rate:1001:1s:key=a",
    ],
)  # fmt: skip
def test_text_that_is_no_limit_is_refused(given: str) -> None:
    with pytest.raises(rmq.InvalidValue, match="limit"):
        parse_limits(given)


@pytest.mark.parametrize("given", [100, [100], {"rate": 1}, True])
def test_other_types_are_refused(given: object) -> None:
    with pytest.raises(rmq.InvalidType, match=r"rmq\.Rate"):
        parse_limits(given)


def test_fields_are_checked_where_they_are_given() -> None:
    for make in (
        lambda: Rate(0),
        lambda: Rate(1, 0),
        lambda: Rate(1, 1, 0),
        lambda: Concurrency(0),
        lambda: Concurrency(1, key=""),
        lambda: Concurrency(1, key="x" * 65),
        lambda: Rate(2, 0.001, key="a"),
    ):
        with pytest.raises(rmq.InvalidValue):
            make()


@pytest.mark.parametrize("slots", [1, 2, 3, 7, 64, 1024])
def test_shares_of_slots_add_up_to_the_limit(slots: int) -> None:
    both = Limits(Rate(1500, 2, 2000), Concurrency(1030))

    shares = [
        tuple(map(int, both.of_slot(i, slots, Layout(0, slots, slots)).split(":")))
        for i in range(slots)
    ]

    assert {rate for rate, *_ in shares} == {1500}
    assert {per for _, per, *_ in shares} == {2000 * slots}
    assert sum(burst for *_, burst, _ in shares) == 2000
    assert sum(most for *_, most in shares) == 1030
    assert max(most for *_, most in shares) - min(most for *_, most in shares) <= 1


@pytest.mark.parametrize(("first", "slots", "most"), [(1, 16, 16), (16, 1, 16), (4, 8, 64)])
def test_shares_of_a_resized_topic_add_up_to_the_limit(first: int, slots: int, most: int) -> None:
    layout, both = Layout(2, first, most), Limits(Rate(1500, 2, 2000), Concurrency(1030))

    shares = [
        tuple(map(int, both.of_slot(i, slots, layout).split(":"))) for i in range(layout.most)
    ]

    assert sum(layout.part(i, slots) for i in range(most)) == 1
    assert 0.99 * 750 < sum(1000 * rate / per for rate, per, *_ in shares) <= 750
    assert sum(burst for *_, burst, _ in shares) == 2000
    assert sum(most for *_, most in shares) == 1030
    for used in (slots, first, most):  # so much is there for what goes by each of these numbers
        assert sum(most for *_, most in shares[:used]) > 1030 / len({slots, first, most})


@pytest.mark.parametrize(("max_length", "least"), [(1000, 1000), (300, 300), (0, 0)])
def test_capacities_of_a_resized_topic_make_its_max_length(max_length: int, least: int) -> None:
    waiting = (500, 0, 20, 0)
    layout = Layout(1, 1, 4, dealt=waiting)
    topic = settings.Settings(slots=4, max_length=max_length, layout=layout)

    capacities = [int(topic.for_slot(i)["capacity"]) for i in range(4)]

    assert least <= sum(capacities) <= max_length + 3 * bool(max_length)
    if max_length == 1000:
        assert all(room > held for room, held in zip(capacities, waiting, strict=True))
    assert not max_length or all(capacities), "0 would be no limit"


def test_share_of_a_slot_names_the_header_last() -> None:
    both = Limits(Rate(10, 1, 4), key_rate=Rate(5, 2, key="a"), key_concurrency=Concurrency(4, "a"))

    assert both.of_slot(0, 2, Layout(0, 2, 2)) == "10:2000:2:0:5:4000:3:2:a"
    assert (
        Limits(key_concurrency=Concurrency(1, "a")).of_slot(0, 1, Layout(0, 1, 1))
        == "0:0:0:0:0:0:0:1:a"
    )


def test_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(rmq.InvalidType, match="header"):
        Concurrency(1, key=7)  # type: ignore[arg-type]


def test_burst_smaller_than_the_slots_is_one_for_each() -> None:
    assert Limits(Rate(10, 1, 2)).of_slot(7, 8, Layout(0, 8, 8)) == "10:8000:1:0"


def test_topic_whose_slots_have_no_share_of_a_concurrency_is_refused() -> None:
    settings.Settings(slots=5, limit=parse_limits("concurrency:5"))

    with pytest.raises(rmq.InvalidValue, match="concurrency:5 is less than the 6 slots"):
        settings.Settings(slots=6, limit=parse_limits("concurrency:5"))


def test_limit_of_a_later_version_is_refused() -> None:
    for text in (
        "rate:1",
        "rate:1:2",
        "weight:3",
        "concurrency:1:2",
        "concurrency",
        "rate:1:2:3:by=a",
    ):
        with pytest.raises(rmq.InvalidValue, match="in Redis"):
            delivery_limits.from_redis(text)
