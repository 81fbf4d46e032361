"""Patterns of strangers: what may take long is refused or left to RE2, what people write works."""

from __future__ import annotations

import sys
import time

import pytest
from hypothesis import given, settings, strategies as st

from rmq.features.dead_letters.bounded_regex import TEXT_CHARS, RegexRefused, compile_bounded

SIMPLE = [
    ("timeout", "a timeout"), ("Timeout|refused|reset", "refused"), ("(?i)TIMEOUT", "timeout"),
    (r"HTTP 5\d\d", "HTTP 503"), ("connect.*refused", "connect: refused"), ("a{3}", "aaa"),
    (r"Error: [^:]*: x", "Error: why: x"), (r"[\]x]\\", "x\\"), ("{", "{"), ("[^]]7$", "a7"),
    (r"f\(1\+1\)", "f(1+1)"),
]  # fmt: skip
BY_RE2 = [
    (r"order \d+ of \d+$", "order 1 of 2"), ("(?:a|b)?c", "c"), ("a.*b.*c", "a b c"),
    (r"took \d{1,3}\.\d+ s", "took 1.5 s"), ("(a+)+$", "aaa"), (r"(?i)(é|ü)+x", "ÉÜx"),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "text"), [*SIMPLE, *BY_RE2])
def test_a_pattern_that_people_write_is_accepted(pattern: str, text: str) -> None:
    search = compile_bounded(pattern)

    assert search(text)
    assert not search("nothing of it")


def test_only_patterns_with_groups_or_several_repeats_need_re2(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)

    for pattern, text in SIMPLE:
        assert compile_bounded(pattern)(text)
    for pattern, _ in BY_RE2:
        with pytest.raises(
            RegexRefused, match=r're2 is not installed; pip install "\.\[filters\]"'
        ):
            compile_bounded(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)\1", "(?=a)", "(?<!a)b", "a++", "x" * 201, "*", "[", "(", ")", "\\", r"\q",
        "x(?i)y(?z)", "(.{1000}){1000}", "a{99999999999999}", "(\ud800)",
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
@pytest.mark.filterwarnings("ignore:Possible")  # of `re`, about sets in sets
def test_no_accepted_pattern_takes_long_on_texts_made_to_be_slow(pattern: str) -> None:
    try:
        search = compile_bounded(pattern)
    except RegexRefused as refused:
        assert 0 <= refused.at <= len(pattern)  # noqa: PT017  # where the caret goes
        return

    for text in ("a" * 5000, "ab" * 2500, "1" * 5000, "a1 " * 1500, " " * 5000, "\ud800" * 5000):
        started = time.thread_time()
        search(text)
        assert time.thread_time() - started < 10  # one that backtracks takes years


@pytest.mark.parametrize("pattern", ["end", "(en)d"])
def test_only_the_first_characters_of_a_text_are_searched(pattern: str) -> None:
    search = compile_bounded(pattern)

    assert search("x" * (TEXT_CHARS - 3) + "end")
    assert not search("x" * TEXT_CHARS + "end")
