"""Scores and number checks of lua/lib, called from scripts that the test writes."""

from __future__ import annotations

import math

import pytest
import redis

from rmq.kernel.transport.lua import script_loader
from tests.lua.box import ordered, timed


def library(name: str) -> str:
    return script_loader.expanded(script_loader.source(f"lib/{name}"))


def ordered_score(raw: redis.Redis, integer: int, order: int) -> float:
    text = (
        library("scores/score")
        + "return string.format('%.17g', ordered_score(tonumber(ARGV[1]), tonumber(ARGV[2])))"
    )
    return float(raw.eval(text, 0, integer, order))


@pytest.mark.parametrize("integer", [1, 2, 16, 17, 31, 32, 100, 65_536, 1_048_575])
def test_ordered_score_falls_with_every_arrival_and_stays_in_its_integer(raw, integer):
    most = int(0.5 / 2.0 ** (math.frexp(integer)[1] - 53))

    for order in (0, 1, 2, 1000, most // 2, most - 1, most):
        found = ordered_score(raw, integer, order)
        assert found == ordered(integer, order)
        assert integer <= found <= integer + 0.5
        assert ordered_score(raw, integer, order + 1) < found or order == most


@pytest.mark.parametrize("integer", [1, 17, 1_048_575])
def test_arrivals_beyond_the_fraction_tie_at_the_integer(raw, integer):
    most = int(0.5 / 2.0 ** (math.frexp(integer)[1] - 53))

    assert ordered_score(raw, integer, most + 1) == integer
    assert ordered_score(raw, integer, most * 4) == integer


@pytest.mark.parametrize("integer", [1, 16, 17, 100, 1_048_575])
def test_what_was_handed_back_stands_in_front_and_never_reaches_the_next_integer(raw, integer):
    most = int(0.5 / 2.0 ** (math.frexp(integer)[1] - 53))

    assert ordered_score(raw, integer, -1) > ordered_score(raw, integer, 0)
    assert ordered_score(raw, integer, 0) == integer + 0.5
    last = math.nextafter(integer + 1, 0)
    for order in (-most + 1, -most, -most - 1, -most * 4):
        assert integer < ordered_score(raw, integer, order) <= last


def test_largest_priority_tells_at_least_four_thousand_million_arrivals_apart(raw):
    assert ordered_score(raw, 1_048_575, 2**32 - 1) > ordered_score(raw, 1_048_575, 2**32)
    assert ordered_score(raw, 1_048_575, 2**32) == 1_048_575


@pytest.mark.parametrize("due", [1_000_000_000_000, 1_790_000_000_000, 2_500_000_000_000])
def test_timed_score_gives_back_what_was_put_in(raw, due):
    text = library("scores/timed_score") + (
        "local s = timed_score(tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]))"
        "redis.call('ZADD', KEYS[1], s, 'm')"
        "local back = tonumber(redis.call('ZSCORE', KEYS[1], 'm'))"
        "redis.call('DEL', KEYS[1])"
        "local l, a = timed_fraction(back)"
        "return {string.format('%.17g', s), math.floor(back), l, a}"
    )
    for place in (0, 1, 2, 511, 1022, 1023):
        for ask in (0, 1):
            score, *back = raw.eval(text, 1, "scratch-of-scores", due, place, ask)

            assert float(score) == timed(due, bool(ask), place), (place, ask)
            assert back == [due, place, ask]


@pytest.mark.parametrize("text", ["0", "1", "007", "1000"])
def test_whole_number_takes_digits(raw, text):
    assert raw.eval(
        library("check") + "return whole_number(ARGV[1], 0, 1000, 'x')", 0, text
    ) == int(text)


@pytest.mark.parametrize(
    "text",
    ["", "nan", "-nan", "inf", "-inf", "0x10", "1e2", "1.5", "1.0", "-1", "+1", " 1", "1 ", "1\n",
     "1001", "9" * 400, "one", "1\0", "\0"],
)  # fmt: skip
def test_whole_number_refuses_everything_else_and_does_not_repeat_it(raw, text):
    with pytest.raises(redis.ResponseError) as caught:
        raw.eval(library("check") + "return whole_number(ARGV[1], 0, 1000, 'a_name')", 0, text)

    assert "RMQARG a_name" in str(caught.value)
    if text.strip() and text != "one":
        assert text not in str(caught.value).replace("user_script:", "")[:40]
