"""The filter language of dead letters: what fits, what is refused, and how the error shows it."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from rmq.errors import InvalidFilter, InvalidType
from rmq.kernel.core import ids
from rmq.kernel.core.failure import Failure, fingerprint
from rmq.kernel.core.message import Message
from rmq.kernel.topic.filter import joined, parse

NOW_MS = 1_790_000_000_000
FAILURE = Failure("failed", 4, "ReadTimeout: no answer in 30 s from orders")
ID = ids.MessageId.parse("06gvgg09v400001cftsm90hr4s")
BODY: Any = {
    "order": 117,
    "paid": False,
    "note": None,
    "who": {"name": "Ann", "e-mail": "a@b"},
    "items": [{"sku": "x1"}, {"sku": "y2"}],
    "two words": "yes",
    "day": "2026-03-01",
}


def letter(**changes: Any) -> Message:
    values: dict[str, Any] = {
        "id": ID, "queue": "dead", "slot": 0, "offset": 1, "body": BODY, "priority": 900,
        "due": None, "expires": None, "merge_key": None,
        "headers": {"tenant": "7", "x-region": "eu west"}, "deliveries": 4, "deadline": None,
        "died": datetime.fromtimestamp(NOW_MS / 1000 - 7200, UTC), "failure": FAILURE,
        "score": 0.0, "type": "order.paid", "group": "customer 7",
    }  # fmt: skip
    return Message(**{**values, **changes})


FITS = [
    'error contains "timeout"', "error contains TIMEOUT", 'error matches "*in ?? s from*"',
    'not error contains "refused"', "error matches READ*ORDERS",
    'error="ReadTimeout: no answer in 30 s from orders"', "error!=x", "reason=failed",
    "type=order.paid", "type matches order.*", "group='customer 7'", "not group contains 8",
    "age>1h", "age<=2h",
    "died<=2026-09-21T12:13:20Z",
    "died>2026-09-21T14:13:19+02:00", 'died<"2026-09-21 12:13:21Z"',
    "age>=7200", "attempts=4", "attempts>3",
    "attempts!=5", "priority<1000", f"id={ID}", f"fingerprint={fingerprint(FAILURE)}",
    "header.tenant=7", 'header.tenant="7"', "header.tenant<8", "header.tenant>=7.0",
    'header.x-region matches "*west"', "header.none!=x", "not header.none contains x",
    'header."x-region"!=us',
    "body.order>100", "body.order=117", "body.order=117.0", "body.paid=false", "body.note=null",
    "body.who.name=Ann", "body.who.e-mail contains @", "body.items[1].sku='y2'",
    'body."two words"=yes',
    'body.day>"2026-01-01"', "body contains Y2", "body.items contains x1", "body.gone!=1",
    "body.order!=118",
    "not error contains refused", "error contains refused or type=order.paid",
    "(error contains z or age>1h) and attempts=4",
    "not not attempts=4", "error contains z and error contains y or attempts=4",
    'error contains "30 s" and age > 1h and\n body.order >= 117',
]  # fmt: skip
DOES_NOT_FIT = [
    "error contains refused", "error matches timeout", "age>3h", "group=customer",
    "died<2026-09-21T12:13:20Z", "died>2026-09-21T12:13:20Z",
    "attempts<4", "header.none=x", "header.none<5", "body.gone=null",
    "body.gone contains x", "body.order=\"117\"", "body.who>5", "body.paid=0",
    "body.items[2].sku=x",
    "body.order<abc", "body.who.name>5", "header.x-region>5",
    "not (attempts=4 or error contains x)",
    "error contains z and (error contains y or attempts=4)", "fingerprint=000000000000",
    "body.items.sku=x",
]  # fmt: skip


@pytest.mark.parametrize("text", FITS)
def test_a_message_that_fits(text: str) -> None:
    assert parse(text).matches(letter(), NOW_MS)


@pytest.mark.parametrize("text", DOES_NOT_FIT)
def test_a_message_that_does_not_fit(text: str) -> None:
    assert not parse(text).matches(letter(), NOW_MS)


def test_a_message_without_failure_priority_or_body_fits_no_condition_on_them() -> None:
    bare = letter(failure=None, priority=None, type=None, died=None, body=b"\xff\x00", headers={})
    for text in ("error matches *", "reason=failed", "fingerprint=x", "priority>0",
                 "type matches *", "age>0s",
                 "body.order>1", "header.tenant=7"):  # fmt: skip
        assert not parse(text).matches(bare, NOW_MS), text
    assert parse("body contains x").matches(letter(body=b"\xffx"), NOW_MS)
    assert parse("body=x").matches(letter(body=b"x"), NOW_MS)


def test_a_filter_says_whether_it_needs_the_body() -> None:
    assert parse("error contains x or not (age>1h and body.a=1)").needs_body
    assert not parse("error contains body and header.body=1").needs_body


def test_a_filter_keeps_its_text_and_is_equal_by_its_meaning() -> None:
    wanted = parse('error   contains "x"  and (age>1h)')

    assert wanted.text == 'error   contains "x"  and (age>1h)'
    assert str(wanted) == 'error contains "x" and age>1h'
    assert wanted == parse(str(wanted))
    assert wanted != parse('error contains "y" and age>1h')


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("", 0, "a field: error, reason"),
        ("colour=red", 0, "a field: error, reason"),
        ("error", 5, "one of = != contains matches after error"),
        ("age contains 1h", 4, "one of < <= > >= after age"),
        ("age>soon", 4, "a duration: 30s"),
        ("died>2026-09-21", 5, "a time with its zone"),
        ("died>yesterday", 5, "a time with its zone"),
        ("attempts=many", 9, "a number"),
        ("reason=broken", 7, 'a reason: "failed"'),
        ("error=x error=y", 8, "and, or, or the end"),
        ("error=x)", 7, "and, or, or the end"),
        ("error=x and", 11, "a field"),
        ("(error=x", 8, "and, or, or ) for the ( at 1"),
        ('error="x', 6, 'a closing " for this one'),
        ("error containsx", 6, "one of = != contains matches after error"),
        ("error contains", 14, "a value"),
        ("header=x", 6, "a dot and the header's name"),
        ("body.=x", 5, "a name of A-Z"),
        ("body.x>null", 7, "a number, or text in quotes"),
        ("not " * 21 + "error=x", 83, "at most 20 terms in each other"),
        ("(" * 30 + "error=x", 21, "at most 20 terms in each other"),
        (" and ".join(["error=x"] * 51), 600, "at most 50 conditions"),
        ("error=" + "x" * 2000, 2000, "a filter of at most 2000 characters"),
    ],
)
def test_a_mistake_shows_the_place_and_what_was_expected(text: str, at: int, expected: str) -> None:
    with pytest.raises(InvalidFilter, match=r"^filter: expected ") as caught:
        parse(text)

    assert caught.value.position == at
    said, shown, caret = str(caught.value).split("\n")
    assert expected in said
    place = caret.index("^")
    rest = text[at : at + 10]
    assert shown[place : place + len(rest)] == rest[: max(0, len(shown) - place)]
    assert len(shown) < 70


def test_filters_are_joined_by_and() -> None:
    either, rest = parse("type=a or type=order.paid"), parse("body.order=117")

    both = joined([either, rest])

    assert joined([]) is None
    assert joined([either]) is either
    assert both is not None
    assert both == parse("(type=a or type=order.paid) and body.order=117") == parse(str(both))
    assert both.needs_body


def test_a_filter_that_is_no_str_is_refused() -> None:
    with pytest.raises(InvalidType, match="pass a str"):
        parse(None)  # type: ignore[arg-type]


NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)
TEXTS = st.text(max_size=12)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


PATHS = st.lists(
    st.one_of(NAMES.map(".{}".format), TEXTS.map(lambda t: f".{quoted(t)}"),
              st.integers(0, 999).map("[{}]".format)),
    max_size=4,
).map("".join)  # fmt: skip
NUMBERS = st.one_of(
    st.integers(-(10**12), 10**12), st.floats(allow_nan=False, allow_infinity=False)
).map(str)
VALUES = st.one_of(TEXTS.map(quoted), NUMBERS, st.sampled_from(["true", "false", "null", "x"]))
CONDITIONS = st.one_of(
    st.builds("{}{}{}".format, st.sampled_from(["error", "type"]), st.sampled_from(["=", "!="]),
              TEXTS.map(quoted)),
    st.builds("{} {} {}".format, st.sampled_from(["error", "type", "header.a", "body.b"]),
              st.sampled_from(["contains", "matches"]), VALUES),
    st.builds("age {} {}".format, st.sampled_from(["<", ">="]),
              st.sampled_from(["1h", "90s", "1.5"])),
    st.builds("body{}{}{}".format, PATHS, st.sampled_from(["=", "!="]), VALUES),
    st.builds("header.{}>{}".format, TEXTS.map(quoted), NUMBERS),
)  # fmt: skip
FILTERS = st.recursive(
    CONDITIONS,
    lambda inner: st.one_of(
        inner.map("not ({})".format),
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("{} and not {}".format, inner, inner),
    ),
    max_leaves=8,
)


@given(FILTERS)
@settings(deadline=None)
def test_a_filter_that_is_written_and_read_again_is_the_same(text: str) -> None:
    wanted = parse(text)

    assert parse(str(wanted)) == wanted
    assert parse(str(wanted)).matches(letter(), NOW_MS) == wanted.matches(letter(), NOW_MS)


PIECES = st.sampled_from(
    ["error", "body", "header", "age", ".", "[", "]", "(", ")", "contains ", "=", "<", "!", '"',
    "'", "\\",
     "and", "or", "not", " ", "1h", "7", "-", "null", "*", "\x00", "é", "{", "1e999", "\n"]
)  # fmt: skip


@given(st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=25).map("".join)))
@settings(max_examples=500, deadline=None)
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        wanted = parse(text)
    except InvalidFilter as refused:
        assert refused.position <= len(text)  # noqa: PT017
        assert "^" in str(refused)  # noqa: PT017  # the caret
        return
    wanted.matches(letter(), NOW_MS)
    assert parse(str(wanted)) == wanted


def test_every_filter_of_the_page_can_be_read(request: pytest.FixtureRequest) -> None:
    page = (request.config.rootpath / "docs" / "dead-letters.md").read_text()
    shown = re.findall(r"rmq dlq \w+ orders '([^\n]+?)'(?=[` ]|$)", page, re.MULTILINE)
    shown += re.findall(r"rmq dlq \w+ orders (fingerprint=\w+)", page)

    assert len(shown) > 8
    for text in shown:
        if "soon" not in text:  # the mistake that the page shows
            assert parse(text).text == text


def test_a_pattern_that_would_take_years_as_a_regular_expression_is_quick() -> None:
    wanted = parse(f'error matches "{"*a" * 60}b"')
    long = letter(failure=FAILURE._replace(error="a" * 100_000))

    began = time.process_time()
    assert not wanted.matches(long, NOW_MS)

    assert time.process_time() - began < 1.0
