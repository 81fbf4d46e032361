"""Bodies against annotations, and models on their way out and back."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib.util
import uuid
from decimal import Decimal
from enum import Enum
from typing import (  # noqa: UP035
    Annotated,
    Any,
    Dict,
    List,
    NotRequired,
    Optional,
    TypedDict,
    Union,
)  # fmt: skip

import pytest

import rmq
from rmq.kernel.core import body_types, codec

pydantic = pytest.importorskip("pydantic")
msgspec = pytest.importorskip("msgspec")


def takes(annotation: Any, body: Any) -> Any:
    read = body_types.converter(annotation)
    return body if read is None else read(body)


def refuses(annotation: Any, body: Any, *words: str) -> None:
    read = body_types.converter(annotation)
    assert read is not None
    with pytest.raises(rmq.DecodeError) as caught:
        read(body)
    for word in ("body", *words):
        assert word in str(caught.value)


# --- builtin types -------------------------------------------------------------------------------

VALUES: dict[type, Any] = {
    dict: {"a": 1}, list: [1], str: "text", int: 7, float: 1.5, bool: True, bytes: b"raw",
    type(None): None,
}  # fmt: skip


@pytest.mark.parametrize("wanted", VALUES)
@pytest.mark.parametrize("found", VALUES)
def test_a_builtin_takes_its_own_and_no_other(wanted: type, found: type) -> None:
    body = VALUES[found]

    if wanted is found or (wanted is float and found is int):
        assert takes(wanted, body) is body
    elif wanted is bytes and found is str:
        assert takes(bytes, "dGV4dA==") == body.encode()
        refuses(bytes, "no base64", "str does not fit bytes")
    else:
        refuses(wanted, body, found.__name__, wanted.__name__)


@pytest.mark.parametrize("wanted", [int, float])
def test_a_bool_is_no_number(wanted: type) -> None:
    refuses(wanted, True, "bool", wanted.__name__)


@pytest.mark.parametrize("anything", [Any, object, None])
def test_any_takes_everything_without_looking(anything: Any) -> None:
    assert body_types.converter(anything) is None


# --- unions and what is inside -------------------------------------------------------------------


@pytest.mark.parametrize("annotation", [Union[int, str], int | str, Union[str, int]])  # noqa: UP007
def test_a_union_takes_each_of_its_types(annotation: Any) -> None:
    assert takes(annotation, 7) == 7
    assert takes(annotation, "7") == "7"
    refuses(annotation, 7.5, "float does not fit int", "float does not fit str")
    refuses(annotation, True)


@pytest.mark.parametrize("annotation", [Optional[int], int | None, Union[int, None]])  # noqa: UP007, UP045
def test_optional_takes_none(annotation: Any) -> None:
    assert takes(annotation, None) is None
    assert takes(annotation, 7) == 7
    refuses(annotation, "7")


def test_a_union_with_any_takes_everything() -> None:
    assert body_types.converter(Union[int, Any]) is None  # noqa: UP007


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (list[int], [[], [1, 2]], [(1,), {"0": 1}, [1, "2"], [True], None]),
        (List[str], [["a"]], [[1], "a"]),  # noqa: UP006
        (list[Any], [[1, "a", None]], [{}, "a"]),
        (dict[str, int], [{}, {"a": 1}], [{"a": "1"}, [("a", 1)], {1: 1}]),
        (Dict[str, float], [{"a": 1}], [{"a": True}]),  # noqa: UP006
        (dict[str, Any], [{"a": object}], [[], {2: 3}]),
        (dict[str, list[int | None]], [{"a": [1, None]}], [{"a": [1, "x"]}, {"a": None}]),
        (list[dict[str, int]] | None, [None, [{"a": 1}]], [{"a": 1}, [{"a": None}]]),
    ],
)
def test_what_is_inside_is_looked_at_too(annotation: Any, good: list[Any], bad: list[Any]) -> None:
    for body in good:
        assert takes(annotation, body) == body
    for body in bad:
        refuses(annotation, body)


# --- models --------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


class Line(pydantic.BaseModel):
    sku: str
    count: int = 1


class Order(pydantic.BaseModel):
    id: uuid.UUID
    at: dt.datetime
    total: Decimal
    lines: list[Line]
    colour: Colour = Colour.RED
    names: dict[int, str] = {}  # noqa: RUF012


class LineStruct(msgspec.Struct):
    sku: str
    count: int = 1


class OrderStruct(msgspec.Struct):
    id: uuid.UUID
    at: dt.datetime
    total: Decimal
    lines: list[LineStruct]
    colour: Colour = Colour.RED
    names: dict[int, str] = {}  # noqa: RUF012
    raw: bytes = b""


@dataclasses.dataclass
class LineData:
    sku: str
    count: int = 1


@dataclasses.dataclass
class OrderData:
    id: int
    lines: list[LineData]
    note: str | None = None


class OrderDict(TypedDict):
    id: int
    note: str


FACTS: dict[str, Any] = {
    "id": uuid.UUID(int=7),
    "at": dt.datetime(2026, 10, 5, 12, 0, 0, 250_000, dt.UTC),
    "total": Decimal("19.90"),
    "names": {1: "one", 2: "two"},
}


@pytest.mark.parametrize("how", [codec.JSON, codec.MSGPACK])
@pytest.mark.parametrize(
    "model",
    [
        Order(lines=[Line(sku="a"), Line(sku="b", count=2)], **FACTS),
        OrderStruct(lines=[LineStruct("a"), LineStruct("b", 2)], raw=b"\x00\xff", **FACTS),
        OrderData(7, [LineData("a"), LineData("b", 2)], "fragile"),
    ],
    ids=["pydantic", "msgspec", "dataclass"],
)
def test_a_model_goes_out_and_comes_back_equal(how: codec.Codec, model: Any) -> None:
    body = how.decode(how.encode(model))

    assert takes(type(model), body) == model


@pytest.mark.parametrize("how", [codec.JSON, codec.MSGPACK])
def test_models_inside_other_bodies_go_out_too(how: codec.Codec) -> None:
    body = how.decode(how.encode({"lines": [Line(sku="a"), LineStruct("b"), LineData("c")]}))

    assert [line["sku"] for line in body["lines"]] == ["a", "b", "c"]
    assert takes(dict[str, list[Line]], body) == {"lines": [Line(sku=sku) for sku in "abc"]}


@pytest.mark.parametrize("model", [Line, LineStruct, LineData])
def test_a_body_that_does_not_fit_a_model_tells_the_reason(model: type) -> None:
    refuses(model, {"count": 2}, "dict does not fit Line", "sku")
    refuses(model, {"sku": "a", "count": "many"}, "count")
    refuses(model, "a")
    refuses(model, None)


@pytest.mark.parametrize("model", [Line, LineStruct, LineData])
def test_models_may_be_part_of_unions_and_lists(model: type) -> None:
    assert takes(model | None, None) is None
    assert takes(model | str, {"sku": "a"}) == model(sku="a")
    assert takes(list[model], [{"sku": "a"}]) == [model(sku="a")]  # type: ignore[valid-type]
    refuses(list[model], [{"sku": "a"}, {}])  # type: ignore[valid-type]


def test_a_typed_dict_is_checked_and_stays_a_dict() -> None:
    class Changed(OrderDict):
        at: dt.datetime
        raw: NotRequired[bytes]

    assert takes(OrderDict, {"id": 7, "note": "x"}) == {"id": 7, "note": "x"}
    refuses(OrderDict, {"id": 7}, "it has no 'note'")
    refuses(OrderDict, {"id": "x", "note": "x"})
    for sent in (
        Changed(id=7, note="x", at=dt.datetime(2026, 1, 2)),
        Changed(id=7, note="x", at=dt.datetime(2026, 1, 2), raw=b"\xff"),
    ):
        assert takes(Changed, codec.JSON.decode(codec.JSON.encode(sent))) == sent


def test_constraints_of_an_annotation_hold() -> None:
    def handle(count: Annotated[int, pydantic.Field(gt=0)]) -> None: ...

    client = rmq.Client("redis://127.0.0.1:1/0")
    client.topic("orders").handler()(handle)
    read = client._handlers.by_topic["orders"].default.body_converter

    assert read is not None
    assert read(1) == 1
    with pytest.raises(rmq.DecodeError, match="greater than 0"):
        read(-1)


# --- where a library is missing ------------------------------------------------------------------


Complex = dict[float, OrderDict]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Leaves one of the libraries, or none."""
    find = importlib.util.find_spec

    def leave(*kept: str) -> None:
        gone = {"pydantic", "msgspec"} - set(kept)
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *a: None if name in gone else find(name, *a)
        )

    return leave


@pytest.mark.parametrize("annotation", [Complex, dict[float, str], Annotated[Complex, 1] | None])
def test_without_a_library_a_model_is_refused_with_the_line_that_installs_it(
    only: Any, annotation: Any
) -> None:
    only()

    with pytest.raises(rmq.InvalidType) as caught:
        body_types.converter(annotation)

    assert 'pip install ".[pydantic]" in a checkout of RMQ, or msgspec' in str(caught.value)


def test_without_a_library_registration_names_the_handler(only: Any) -> None:
    only()
    topic = rmq.Client("redis://127.0.0.1:1/0").topic("orders")

    with pytest.raises(rmq.InvalidType, match=r"handler .*handle: the body's type dict: .*pip"):

        @topic.handler()
        def handle(body: Complex) -> None: ...


@pytest.mark.parametrize("library", ["pydantic", "msgspec"])
def test_either_library_reads_what_rmq_does_not(only: Any, library: str) -> None:
    only(library)

    assert takes(dict[float, int], {"1.5": 1}) == {1.5: 1}


class Plain:
    def __init__(self, id: int) -> None: ...


@pytest.mark.parametrize("kept", [("pydantic",), ("msgspec",), ("pydantic", "msgspec")])
def test_a_class_that_no_library_can_build_is_refused_when_it_is_registered(
    only: Any, kept: tuple[str, ...]
) -> None:
    only(*kept)

    with pytest.raises(rmq.InvalidType, match="Plain"):
        body_types.converter(Plain)
