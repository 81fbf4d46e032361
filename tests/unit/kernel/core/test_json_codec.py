"""JSON bodies: with msgspec and without it, the same bytes, values and errors."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import math
import subprocess
import sys
import uuid
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, strategies as st

from rmq.kernel.core.json_codec import (
    MSGSPEC_MIN,
    MsgspecJson,
    StdlibJson,
    installed,
    is_written_alike,
)

msgspec = pytest.importorskip("msgspec")

STDLIB = StdlibJson()
MSGSPEC = MsgspecJson(msgspec, STDLIB)


class Text(str):
    """A subclass."""


class Masked(dict[str, Any]):
    def items(self) -> Any:
        return [(name, "*") for name in self]


class Point(NamedTuple):
    x: int
    y: int


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


class Name(enum.StrEnum):
    ADA = "ada"


@dataclasses.dataclass
class Order:
    id: int
    due: float


class Struct(msgspec.Struct):
    id: int
    name: str


def reordered() -> collections.OrderedDict[str, int]:
    ordered = collections.OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    return ordered


def cycle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def nested(depth: int) -> Any:
    body: Any = 1
    for _ in range(depth):
        body = [body]
    return body


# What msgspec alone would write differently, or would not refuse.
ODD = [
    math.nan, math.inf, -math.inf, 1e16, 1e-5, 1.5e300, 5e-324, 2.0**-44, -0.0,
    2**63, 2**64, -(2**63) - 1, 10**5000, True, None, (1, 2), Point(1, 2), {1, 2}, frozenset("a"),
    Text("a"), {Text("a"): 1}, {1: "a"}, {1: "a", "1": "b"}, {None: 1}, {1.5: 1}, {True: 1},
    {(1, 2): 3}, Masked(a=1), reordered(), collections.Counter("aab"), collections.deque([1]),
    Colour.RED, Size.LARGE, Name.ADA, {Name.ADA: Size.LARGE}, {Colour.RED: 1},
    Order(7, 1.5), Struct(7, "x"), [Order(7, 1e20)], {"a": [Struct(7, "x")]}, Struct, msgspec.UNSET,
    msgspec.Raw(b"[1"), b"bytes", bytearray(b"a"), memoryview(b"a"), 1j, object(), print,
    decimal.Decimal("1.5"), uuid.UUID(int=7), datetime.datetime(2026, 1, 1), datetime.date.max,
    datetime.timedelta(1), "\ud800", {"\udc00": 1}, "\x00\x1f\x7f\u2028/\"\\\b\f\n\r\t",
    cycle(), nested(500), nested(100_000), range(3), {"a": 1}.items(), iter([1]), ...,
]  # fmt: skip

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.datetimes(timezones=st.none() | st.timezones() | st.just(datetime.UTC))
    | st.times(timezones=st.none() | st.timezones())
    | st.timedeltas()
    | st.uuids()
    | st.dates()
    | st.decimals()
    | st.binary()
    | st.sets(st.text() | st.uuids())
    | st.builds(Order, st.uuids(), st.floats() | st.datetimes())
    | st.builds(Struct, st.decimals(), st.dates() | st.binary())
    | st.integers(0, len(ODD) - 1).map(lambda place: ODD[place])  # some have no repr
)
KEYS = st.text() | st.integers() | st.none() | st.booleans() | st.floats() | st.just(Text("k"))
BODIES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner),
    max_leaves=20,
)


def outcome(call: Any, argument: Any) -> tuple[str, Any]:
    """Return the value with its exact types, or the error."""
    try:
        value = call(argument)
    except Exception as error:
        # Where a stack ends depends on its depth at the start.
        return "error", type(error) if isinstance(error, RecursionError) else repr(error)
    return "value", value if isinstance(value, bytes) else repr(value)


@pytest.mark.parametrize("body", ODD, ids=lambda body: type(body).__name__)
def test_odd_bodies_are_written_or_refused_alike(body: Any) -> None:
    assert outcome(MSGSPEC.encode, body) == outcome(STDLIB.encode, body)


@given(BODIES)
def test_bodies_are_written_or_refused_alike(body: Any) -> None:
    assert outcome(MSGSPEC.encode, body) == outcome(STDLIB.encode, body)


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(1e-4)
@example(math.nextafter(1e-4, 0))
@example(1e16)
@example(math.nextafter(1e16, 0))
@example(2.0**-13)
def test_floats_are_written_alike(number: float) -> None:
    assert MSGSPEC.encode([number]) == STDLIB.encode([number])


READ = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(READ, st.booleans(), st.none() | st.integers(0, 4))
def test_bodies_are_read_alike(body: Any, ascii_only: bool, indent: int | None) -> None:
    data = json.dumps(body, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")

    assert outcome(MSGSPEC.decode, data) == outcome(STDLIB.decode, data)


PIECES = [
    *'{}[],:"0123456789.-+eE \\/\t\n\r\x0cua"', "\\u", "\\ud800", "\\udc00", "true", "null", "NaN",
    "Infinity", "-Infinity", "1e999", '"a":', "\ufeff", "é", "-0", "\x00",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES)).map(lambda pieces: "".join(pieces).encode()) | st.binary())
@example(b'"\xed\xa0\x80"')
@example(b"\xef\xbb\xbf1")
@example(b"18446744073709551616")
@example(b"-9223372036854775809")
@example(b"1" * 30)
@example(b"1" * 5000)
@example(b"1e400")
@example(b'{"a":1,"a":2}')
@example(b"[" * 100_000)
@example(b"[" * 300 + b"]" * 300)
def test_any_bytes_are_read_or_refused_alike(data: bytes) -> None:
    assert outcome(MSGSPEC.decode, data) == outcome(STDLIB.decode, data)


def test_usual_bodies_are_left_to_msgspec() -> None:
    """Or the tests above would compare the standard library with itself."""
    assert is_written_alike({"id": 7, "lines": [{"sku": "a", "price": 1.5, "sold": True}, None]})
    assert is_written_alike((1, "é", -0.0))
    assert is_written_alike(
        [datetime.datetime.now(datetime.UTC), uuid.UUID(int=7), decimal.Decimal(1), b"a"]
    )
    assert not is_written_alike({"at": [1e16]})
    assert not is_written_alike([decimal.Decimal("inf")])


def test_msgspec_is_used_where_it_is_installed_and_new_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(installed(), MsgspecJson)

    monkeypatch.setattr(msgspec, "__version__", f"{MSGSPEC_MIN[0]}.{MSGSPEC_MIN[1] - 1}.6")
    assert isinstance(installed(), StdlibJson)


def test_the_standard_library_is_used_without_msgspec() -> None:
    code = (
        "import sys; sys.modules['msgspec'] = None; from rmq.kernel.core import codec; "
        "print(codec.JSON.decode(codec.JSON.encode({'a': 1})), type(codec.JSON._json).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout == "{'a': 1} StdlibJson\n"
