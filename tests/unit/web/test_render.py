"""Values as pages write them: bodies in each view, and lengths of time."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given, strategies as st

from rmq.http_framework import render
from rmq.http_framework.message import Body, body_of

BIG = 2**70 + 1


@pytest.mark.parametrize(
    ("value", "how", "shown"),
    [
        ({"n": BIG, "x": 1.10}, "", f'{{\n  "n": {BIG},\n  "x": 1.1\n}}'),
        ({"a": [], "b": {}}, "", '{\n  "a": [],\n  "b": {}\n}'),
        ({"a": "x,y:{z"}, "text", '{"a": "x,y:{z"}'),
        ("plain", "", "plain"),
        ("ab", "hex", "000000  61 62" + " " * 44 + "ab"),
        (b"\x00a\xff", "", "000000  00 61 ff" + " " * 41 + ".a."),
        (b"a\xff", "text", "a\ufffd"),
        ("\u202etxt.exe\x1b[31m", "", "\\u{202e}txt.exe\\u{1b}[31m"),
    ],
)
def test_a_body_is_shown_in_each_view(value: object, how: str, shown: str) -> None:
    assert render.body(body_of(value), how) == shown


def test_a_hidden_body_is_hidden_in_each_view() -> None:
    hidden = Body(kind="hidden", text="(hidden)", size=9, is_truncated=False)

    assert {render.body(hidden, how) for how in ("", "text", "hex")} == {"(hidden)"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


def test_deep_values_are_not_indented_beyond_a_bound() -> None:
    deep = "[" * 900 + ",".join(["1"] * 20_000) + "]" * 900
    flat = json.dumps({"n": list(range(1000))})

    assert render.indented(deep) == deep  # 40 MB with indents
    assert render.indented(flat).count("\n") == 1003  # the control


@given(JSON)
def test_indents_change_nothing_of_json(value: object) -> None:
    text = json.dumps(value)

    assert json.loads(render.indented(text)) == value
    assert "".join(render.indented(text).split()) == "".join(text.split())


@given(st.text())
def test_a_text_that_is_shown_has_nothing_that_cannot_be_seen(text: str) -> None:
    shown = render.seen(text)

    assert render.seen(shown) == shown
    assert not any(char in shown for char in "\u202e\u2066\u200b\x1b\x00")


def test_a_hex_view_is_cut() -> None:
    whole = body_of(b"x" * 60_000)

    assert len(render.body(whole).splitlines()) == render.HEX_BYTES // 16
    assert base64.b64decode(whole.text) == b"x" * 60_000


@pytest.mark.parametrize(
    ("ms", "shown"),
    [(0, "0 ms"), (999, "999 ms"), (1000, "1.0 s"), (59_949, "59.9 s"), (61_000, "1 min 1 s"),
     (3_600_000, "1 h"), (90_000_000, "1 d 1 h"), (None, "\u2013")],
)  # fmt: skip
def test_lengths_of_time_have_two_units_at_most(ms: float | None, shown: str) -> None:
    assert render.span(ms) == shown
