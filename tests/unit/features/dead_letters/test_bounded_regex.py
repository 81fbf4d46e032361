"""Patterns of strangers: what may take long is refused, what people write is accepted."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings, strategies as st

from rmq.features.dead_letters.bounded_regex import (
    TEXT_CHARS,
    RegexRefused,
    compile_bounded,
    search,
)


@pytest.mark.parametrize(
    "pattern",
    [
        "timeout", "Timeout|refused|reset", "(?i)TIMEOUT", r"HTTP 5\d\d", r"order \d+ of \d+$",
        "connect.*refused", ".*refused.*", r"Error: [^:]*: x", "(?:a|b)?c", "[a-z]{3,5}x",
        r"took \d{1,3}\.\d+ s", "(ab)*c", "a{3}", r"[\]x]\\", "{", "a{,}", "[^]]",
    ],
)  # fmt: skip
def test_a_pattern_that_people_write_is_accepted(pattern: str) -> None:
    assert compile_bounded(pattern).pattern == pattern


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$", "(a|a)*b", "(a|ab)(c|bcd)(d|x)(a|b)(a|b)(a|b)(a|b)", "a?" * 30 + "a" * 30,
        "a.*b.*c", r".*\d+ x", r"(\w+\s?)*x", r"(a)\1", "(?=a)", "(?<!a)b", "(?P<x>a)", "a++",
        "(a{1,16}){1,16}", "a{1000}", "x" * 201, "(" * 21 + ")" * 21, "*", "[", "(", ")", "\\",
        r"\q", "[[:alpha:]]", "[a--b]", "x(?i)", r"\N{DASH}",
    ],
)  # fmt: skip
def test_a_pattern_that_may_take_long_or_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(RegexRefused):
        compile_bounded(pattern)


PARTS = st.sampled_from(
    ["a", "b", ".", r"\d", r"\w", r"\s", "[ab]", "[^a]", "(", "(?:", ")", "|", "*", "+", "?",
     "{1,3}", "{2,}", "*?", "^", "$", "é", r"\b", "{", "}", "[", "]", "\\", "-", "(?i)"]
)  # fmt: skip


@given(st.lists(PARTS, max_size=30).map("".join))
@settings(max_examples=400, deadline=None)
def test_no_accepted_pattern_takes_long_on_texts_made_to_be_slow(pattern: str) -> None:
    try:
        compiled = compile_bounded(pattern)
    except RegexRefused as refused:
        assert 0 <= refused.at <= len(pattern)  # noqa: PT017  # where the caret goes
        return

    assert compiled.pattern == re.compile(pattern).pattern
    for text in ("a" * 5000, "ab" * 2500, "1" * 5000, "a1 " * 1500, " " * 5000):
        started = time.thread_time()
        search(compiled, text)
        assert time.thread_time() - started < 10  # one that backtracks takes years


def test_only_the_first_characters_of_a_text_are_searched() -> None:
    wanted = compile_bounded("end")

    assert search(wanted, "x" * (TEXT_CHARS - 3) + "end")
    assert not search(wanted, "x" * TEXT_CHARS + "end")
