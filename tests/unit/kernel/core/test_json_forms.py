"""Types that JSON does not have: one form each, read back by the annotation of a handler.

Each test runs with the JSON of the standard library and of msgspec: both write the same bytes.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import math
import os
import subprocess
import sys
import uuid
import zoneinfo
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType

import pytest
from hypothesis import given, strategies as st

import rmq
from rmq.kernel.core import body_types, codec
from rmq.kernel.core.json_codec import MsgspecJson, StdlibJson

attrs = pytest.importorskip("attrs")
msgspec = pytest.importorskip("msgspec")
pydantic = pytest.importorskip("pydantic")

STDLIB = StdlibJson()
MSGSPEC = MsgspecJson(msgspec, STDLIB)


def takes(annotation: Any, body: Any) -> Any:
    read = body_types.converter(annotation)
    return body if read is None else read(body)


def form(value: Any) -> Any:
    """Return what a consumer without an annotation gets."""
    data = STDLIB.encode(value)
    assert MSGSPEC.encode(value) == data
    return STDLIB.decode(data)


def comes_back(value: Any, annotation: Any) -> None:
    body = form({"inside": [value]})["inside"][0]
    back = takes(annotation, body)
    assert back == value
    assert type(back) is type(value)


class Colour(enum.Enum):
    RED = "red"
    BLUE = 7
    DAY = dt.date(2026, 11, 28)
    PAIR = (1, "a")
    CRIMSON = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Name(enum.StrEnum):
    ADA = "ada"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    at: dt.date


@dataclasses.dataclass
class Line:
    sku: str
    price: Decimal
    count: int = 1


@dataclasses.dataclass
class Order:
    id: uuid.UUID
    at: dt.datetime
    lines: list[Line]
    raw: bytes
    tags: frozenset[str]
    colour: Colour
    wait: dt.timedelta | None
    size: tuple[int, ...]
    by_number: dict[int, dt.date]
    kind: Literal["new", "old"] = "new"
    total: int = dataclasses.field(init=False, default=0)


@dataclasses.dataclass
class Tree:
    name: str
    children: list[Tree]


@attrs.define
class Parcel:
    id: uuid.UUID
    _weight: Decimal
    at: dt.datetime | None = None


class Struct(msgspec.Struct, rename="camel"):
    sent_at: dt.datetime
    wait: dt.timedelta
    raw: bytes
    price: Decimal
    tags: set[int]
    line: Line


class Model(pydantic.BaseModel):
    at: dt.datetime
    wait: dt.timedelta
    raw: pydantic.Base64Bytes
    price: Decimal
    tags: set[int]


class Number(pydantic.BaseModel):
    value: float


@pydantic.dataclasses.dataclass
class ModelData:
    at: dt.datetime
    text: bytes


AT = dt.datetime(2026, 11, 28, 9, 30, 0, 250_000, dt.timezone(dt.timedelta(hours=5, minutes=30)))
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
ORDER = Order(
    uuid.UUID(int=7), AT, [Line("a", Decimal("19.90")), Line("b", Decimal(2), 3)], b"\x00\xff",
    frozenset({"x", "y"}), Colour.RED, dt.timedelta(hours=25, milliseconds=1), (1, 2),
    {1: dt.date(2026, 1, 2)},
)  # fmt: skip

FORMS: list[tuple[Any, Any]] = [
    (AT, "2026-11-28T09:30:00.250000+05:30"),
    (dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "2026-01-02T00:00:00Z"),
    (dt.datetime(2026, 1, 2, tzinfo=BERLIN), "2026-01-02T00:00:00+01:00"),
    (dt.datetime(2026, 1, 2, 3, 4), "2026-01-02T03:04:00"),
    (dt.datetime(1880, 1, 2, tzinfo=BERLIN), "1880-01-01T23:06:32Z"),
    (dt.date(2026, 1, 2), "2026-01-02"),
    (dt.time(3, 4, 5), "03:04:05"),
    (dt.time(3, 4, tzinfo=dt.UTC), "03:04:00Z"),
    (dt.timedelta(), "P0D"),
    (dt.timedelta(days=1, seconds=3700, microseconds=500_000), "P1DT3700.5S"),
    (dt.timedelta(microseconds=-1), "-PT0.000001S"),
    (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (Decimal("1.50"), "1.50"),
    (Decimal("1E+5"), "1E+5"),
    (b"\x00\xff", "AP8="),
    (bytearray(b"a"), "YQ=="),
    (memoryview(b"a"), "YQ=="),
    ({3, 10, 2}, [2, 3, 10]),
    (frozenset({"b", "a"}), ["a", "b"]),
    ({dt.date(2026, 1, 2), dt.date(2025, 1, 2)}, ["2025-01-02", "2026-01-02"]),
    ((1, "a"), [1, "a"]),
    (Point(1, dt.date(2026, 1, 2)), [1, "2026-01-02"]),
    (Colour.RED, "red"),
    (Colour.DAY, "2026-11-28"),
    (Level.HIGH, 3),
    (Name.ADA, "ada"),
    (Parcel(uuid.UUID(int=1), Decimal(2)), {
        "id": "00000000-0000-0000-0000-000000000001", "weight": "2", "at": None
    }),
    (Struct(AT, dt.timedelta(1), b"\xff", Decimal("2.0"), {1}, Line("a", Decimal(1))), {
        "sentAt": "2026-11-28T09:30:00.250000+05:30", "wait": "P1D", "raw": "/w==",
        "price": "2.0", "tags": [1], "line": {"sku": "a", "price": "1", "count": 1},
    }),
    (ModelData(AT, b"text"), {"at": "2026-11-28T09:30:00.250000+05:30", "text": "text"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "wanted"), FORMS, ids=[f"{type(v).__name__}-{str(form)[:30]}" for v, form in FORMS]
)
def test_each_type_has_one_form(value: Any, wanted: Any) -> None:
    assert form(value) == wanted
    assert form({"deep": [value]}) == {"deep": [wanted]}


def test_msgpack_has_the_same_forms_and_bytes_of_its_own() -> None:
    for value, wanted in FORMS:
        if b"YQ==" not in STDLIB.encode(value) and not isinstance(value, bytes | Struct):
            assert codec.MSGPACK.decode(codec.MSGPACK.encode(value)) == wanted
    body = codec.MSGPACK.decode(codec.MSGPACK.encode(ORDER))
    assert body["raw"] == b"\x00\xff"
    assert takes(Order, body) == ORDER


ZONES = st.none() | st.timezones() | st.just(dt.UTC)
TYPED: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (dt.datetime, st.datetimes() | st.datetimes(timezones=st.just(dt.UTC))),
    (dt.date, st.dates()),
    (dt.time, st.times()),
    (dt.timedelta, st.timedeltas()),
    (uuid.UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (bytes, st.binary()),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Name, st.sampled_from(Name)),
    (Rights, st.sampled_from([Rights.READ, Rights.WRITE, Rights.READ | Rights.WRITE])),
    (set[int], st.sets(st.integers())),
    (frozenset[dt.date], st.frozensets(st.dates())),
    (set[uuid.UUID], st.sets(st.uuids())),
    (tuple[int, str], st.tuples(st.integers(), st.text(st.characters(codec="utf-8")))),
    (tuple[dt.date, ...], st.lists(st.dates()).map(tuple)),
    (Point, st.builds(Point, st.integers(), st.dates())),
    (dict[int, Decimal], st.dictionaries(st.integers(), st.just(Decimal("1.0")))),
    (Line, st.builds(Line, st.just("a"), st.decimals(allow_nan=False, allow_infinity=False))),
    (Parcel, st.builds(Parcel, st.uuids(), st.just(Decimal(1)), st.none() | st.datetimes())),
]


@pytest.mark.parametrize(("annotation", "values"), TYPED, ids=lambda v: str(v)[:30])
@given(data=st.data())
def test_each_type_comes_back_by_its_annotation(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    comes_back(data.draw(values), annotation)


@given(st.datetimes(timezones=ZONES))
def test_a_datetime_keeps_its_instant_and_a_naive_one_stays_naive(at: dt.datetime) -> None:
    try:
        body = form(at)
    except OverflowError:  # the first day of year 1, at an offset with seconds
        return
    back = takes(dt.datetime, body)
    assert (back.tzinfo is None) == (at.tzinfo is None)
    if at.tzinfo is None:
        assert back == at
    else:
        assert back.replace(tzinfo=None) - back.utcoffset() == (
            at.replace(tzinfo=None) - (at.utcoffset() or dt.timedelta())
        )


@given(st.datetimes() | st.timedeltas() | st.uuids() | st.dates() | st.binary())
def test_values_have_the_form_that_msgspec_gives_them(value: Any) -> None:
    assert STDLIB.encode([value]) == msgspec.json.encode([value])


def test_objects_of_each_library_come_back() -> None:
    assert takes(Order, form(ORDER)) == ORDER
    tree = Tree("a", [Tree("b", []), Tree("c", [Tree("d", [])])])
    assert takes(Tree, form(tree)) == tree
    struct = Struct(AT, dt.timedelta(1), b"\xff", Decimal("2.0"), {1, 2}, Line("a", Decimal(1)))
    assert takes(Struct, form(struct)) == struct
    model = Model(at=AT, wait=dt.timedelta(1), raw=b"/w==", price=Decimal("2.0"), tags={1})
    assert takes(Model, form(model)) == model
    assert takes(ModelData, form(ModelData(AT, b"text"))) == ModelData(AT, b"text")


REFUSED: list[tuple[Any, str]] = [
    (math.nan, r"body\['in'\]\[0\]: float cannot be written as JSON"),
    (Decimal("NaN"), r"body\['in'\]\[0\]: Decimal cannot .*: Decimal NaN is not a number"),
    (Decimal("-Infinity"), r"Decimal -Infinity is not a number"),
    (Line("a", Decimal("inf")), r"body\['in'\]\[0\]\['price'\]: Decimal"),
    (Struct(AT, dt.timedelta(), b"", Decimal("nan"), set(), Line("a", Decimal(1))),
     r"body\['in'\]\[0\]\['price'\]: Decimal"),
    (Number(value=math.inf), r"body\['in'\]\[0\]\['value'\]: float"),
    ({1.5, math.inf}, r"body\['in'\]\[0\]\[1\]: float"),
    (dt.time(1, tzinfo=BERLIN), r"time: the offset of Europe/Berlin depends on the date"),
    (Line, "the class Line has no form in JSON; send an instance"),
    (collections.deque([1]), r"deque has no form in JSON; send list\(value\)"),
    (1j, r"complex has no form in JSON; send str\(value\)"),
    (object.__new__(Line), "Line has no value in its field sku"),
    ({uuid.UUID(int=1): 1}, "keys must be"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), REFUSED, ids=lambda v: type(v).__name__)
def test_what_has_no_form_is_refused_with_its_place(value: Any, text: str) -> None:
    for library in (STDLIB, MSGSPEC):
        tried = codec.JsonCodec()
        tried.__dict__["_json"] = library
        with pytest.raises(rmq.EncodeError, match=text):
            tried.encode({"in": [value]})


UNFIT: list[tuple[Any, Any, str]] = [
    (dt.datetime, "yesterday", "str does not fit datetime"),
    (dt.datetime, 1767225600, "int does not fit datetime: give text"),
    (dt.date, "2026-01-02T03:04:05", "does not fit date"),
    (dt.timedelta, "1h", "'1h' is not a duration such as P1DT3700.5S"),
    (dt.timedelta, "P" + "9" * 30 + "D", "does not fit timedelta"),
    (uuid.UUID, "7", "does not fit UUID"),
    (Decimal, "NaN", "'NaN' is not a number"),
    (Decimal, "x", "does not fit Decimal"),
    (Decimal, True, "bool does not fit Decimal"),
    (bytes, "no base64", "does not fit bytes"),
    (Colour, "green", "'green' is not one of its values|'green' is not a valid Colour"),
    (Level, True, "bool does not fit Level"),
    (set[int], [1, "a"], r"body\[1\]: str does not fit int"),
    (set, [[1]], "unhashable"),
    (tuple[int, str], [1], "it takes a list of 2"),
    (Point, [1, 2], r"body\[1\]: int does not fit date"),
    (dict[int, str], {"a": "b"}, "dict does not fit dict"),
    (Order, {"lines": [{"sku": "a", "price": []}]}, r"body\['lines'\]\[0\]\['price'\]: list does"),
    (Line, {"price": "1"}, "dict does not fit Line: .*sku"),
    (Parcel, [], "list does not fit Parcel: it takes a map"),
    (Literal["a"], "b", "str does not fit"),
]


@pytest.mark.parametrize(("annotation", "body", "text"), UNFIT, ids=lambda v: str(v)[:30])
def test_a_body_that_is_no_form_of_the_type_is_refused(
    annotation: Any, body: Any, text: str
) -> None:
    with pytest.raises(rmq.DecodeError, match=text):
        takes(annotation, body)


def test_new_types_and_fields_without_a_type_are_read() -> None:
    @attrs.define
    class Untyped:
        at = attrs.field()

    Due = NewType("Due", dt.datetime)

    assert takes(Due, form(AT)) == AT
    assert takes(list[Due], form([AT])) == [AT]
    assert takes(Untyped, form(Untyped([AT]))) == Untyped(form([AT]))


def test_a_class_whose_types_are_not_found_is_refused_when_it_is_registered() -> None:
    @dataclasses.dataclass
    class Outer:
        inner: Innerr  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(rmq.InvalidType, match=r"Outer: .*Innerr"):
        takes(Outer, {})


def test_constraints_hold_for_what_the_form_says() -> None:
    length = Annotated[bytes, pydantic.Field(max_length=2)]

    assert takes(length, "AP8=") == b"\x00\xff"
    with pytest.raises(rmq.DecodeError, match="at most 2 bytes"):
        takes(length, "AP8AAA==")


def test_durations_of_other_writers_are_read() -> None:
    assert takes(dt.timedelta, "P1W2DT3H4M5.1234567S") == dt.timedelta(
        weeks=1, days=2, hours=3, minutes=4, seconds=5, microseconds=123456
    )
    assert takes(Decimal, 1.1) == Decimal("1.1")


def test_sets_are_written_alike_whatever_the_hashes_of_their_members() -> None:
    code = (
        "from uuid import UUID; from rmq.kernel.core.codec import JSON; "
        "print(JSON.encode([{'b', 'a', 'c'}, {1, 'a', None}, {UUID(int=n) for n in range(9)}]))"
    )
    written = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240,
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in range(3)
    }  # fmt: skip
    assert len(written) == 1
