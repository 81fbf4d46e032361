"""An object that is sent is the object that a handler of its class gets, or the send refuses it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import pathlib
import uuid
from decimal import Decimal
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import given, settings, strategies as st

import rmq
from rmq.kernel.core import body_types, codec, json_codec, json_forms
from rmq.kernel.core.json_codec import MsgspecJson, StdlibJson

attrs = pytest.importorskip("attrs")
msgspec = pytest.importorskip("msgspec")
p = pytest.importorskip("pydantic")

T = TypeVar("T")
NOW = dt.datetime(2026, 11, 28, 9, 30, 0, 250_000, dt.UTC)
CODECS: list[codec.Codec] = [codec.JSON, codec.MSGPACK, codec.JsonCodec()]
CODECS[2].__dict__["_json"] = StdlibJson()


def received(value: Any, how: codec.Codec = codec.JSON) -> Any:
    read = body_types.converter(type(value))
    assert read is not None
    return read(how.decode(how.encode(value)))


class Alias(p.BaseModel):
    order_id: int = p.Field(alias="orderId")


class Strict(p.BaseModel):
    model_config = p.ConfigDict(strict=True)
    id: uuid.UUID
    at: dt.datetime
    tags: tuple[int, ...]


class Computed(p.BaseModel):
    model_config = p.ConfigDict(extra="forbid")
    net: int

    @p.computed_field
    @property
    def gross(self) -> int:
        return self.net * 2


class WithJson(p.BaseModel):
    payload: p.Json[list[int]]


class Base64(p.BaseModel):
    model_config = p.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    raw: bytes


class Private(p.BaseModel):
    name: str
    _cache: dict[str, int] = p.PrivateAttr(default_factory=dict)


class Free(p.BaseModel):
    model_config = p.ConfigDict(extra="allow")
    anything: Any


class Box(p.BaseModel, Generic[T]):
    inside: T


@p.dataclasses.dataclass
class StrictData:
    id: uuid.UUID = p.Field(strict=True)
    order_id: int = p.Field(alias="orderId", default=0)


@dataclasses.dataclass
class Animal:
    name: str


@dataclasses.dataclass
class Dog(Animal):
    breed: str


@dataclasses.dataclass
class Loose:
    anything: Any
    pair: list[int]
    total: int = dataclasses.field(init=False, default=0)


def private() -> Private:
    model = Private(name="a")
    model._cache["a"] = 1
    return model


COMES_BACK: list[Any] = [
    Alias(orderId=7),
    Strict(id=uuid.UUID(int=7), at=NOW, tags=(1, 2)),
    Computed(net=1),
    WithJson(payload="[1]"),
    Base64(raw=b"\xff"),
    Free(anything="a", more=1),
    Box[dt.date](inside=dt.date(2026, 1, 2)),
    StrictData(id=uuid.UUID(int=7), orderId=3),
    Dog("Rex", "Pug"),
]


@pytest.mark.parametrize("how", CODECS, ids=["json", "msgpack", "stdlib"])
@pytest.mark.parametrize("value", COMES_BACK, ids=lambda v: type(v).__name__)
def test_an_object_comes_back_as_it_was_sent(value: Any, how: codec.Codec) -> None:
    assert received(value, how) == value
    assert CODECS[0].encode([value]) == CODECS[2].encode([value])


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (private(), Private(name="a")),
        (Free(anything={1: NOW, "b": (1,)}, at=NOW),
         Free(anything={"1": "2026-11-28T09:30:00.250000Z", "b": [1]},
              at="2026-11-28T09:30:00.250000Z")),
        (Free(anything=[dt.timedelta(hours=1), pathlib.Path("a")]), Free(anything=["PT1H", "a"])),
        (Loose(Dog("Rex", "Pug"), (1, 2)), Loose({"name": "Rex", "breed": "Pug"}, [1, 2])),
    ],
    ids=["private", "any in a model", "forms of pydantic", "any in a dataclass"],
)  # fmt: skip
def test_a_part_whose_type_is_not_said_arrives_as_json_has_it(value: Any, back: Any) -> None:
    assert received(value) == back


class Login(p.BaseModel):
    user: str
    password: p.SecretStr


class Told(Login):
    @p.field_serializer("password", when_used="json")
    def _told(self, password: p.SecretStr) -> str:
        return password.get_secret_value()


class Excluded(p.BaseModel):
    token: str = p.Field(default="", exclude=True)


class PydanticAnimal(p.BaseModel):
    name: str


class PydanticDog(PydanticAnimal):
    breed: str


class PydanticOwner(p.BaseModel):
    pets: list[PydanticAnimal]


class ReadAs(p.BaseModel):
    order_id: int = p.Field(validation_alias="orderId")


@dataclasses.dataclass
class Owner:
    pet: Animal


@dataclasses.dataclass
class EitherOwner:
    pet: Animal | Dog


@dataclasses.dataclass
class Opened:
    name: str
    mode: dataclasses.InitVar[str]


@dataclasses.dataclass
class Priced:
    net: int
    discount: dataclasses.InitVar[int] = 0
    total: int = dataclasses.field(init=False)

    def __post_init__(self, discount: int) -> None:
        self.total = self.net - discount


@attrs.define
class AttrsAnimal:
    name: str


@attrs.define
class AttrsDog(AttrsAnimal):
    breed: str


@attrs.define
class AttrsOwner:
    pet: AttrsAnimal


class StructAnimal(msgspec.Struct):
    name: str


class StructDog(StructAnimal):
    breed: str


class StructOwner(msgspec.Struct):
    pet: StructAnimal


REFUSED: list[tuple[Any, str]] = [
    (Login(user="a", password="hunter2"), r"Login would get another value in password; "),
    (Free(anything=p.SecretStr("a")), "in anything"),
    (Free(anything=[Login(user="a", password="hunter2")]), "in anything"),
    (Excluded(token="t"), "in token"),
    (PydanticOwner(pets=[PydanticAnimal(name="a"), PydanticDog(name="Rex", breed="Pug")]),
     r"in pets\[1\]"),
    (ReadAs(orderId=7), "could not read it as ReadAs: .*orderId"),
    (Owner(Dog("Rex", "Pug")), "in pet"),
    (EitherOwner(Dog("Rex", "Pug")), "in pet"),
    (Owner(7), r"could not read it as Owner: body\['pet'\]: int does not fit Animal"),  # type: ignore[arg-type]
    (Opened("a", "w"), "could not read it as Opened: .*'mode'"),
    (Priced(10, 1), "in total"),
    (AttrsOwner(AttrsDog("Rex", "Pug")), "in pet"),
    (StructOwner(StructDog("Rex", "Pug")), "in pet"),
]  # fmt: skip


@pytest.mark.parametrize("how", CODECS, ids=["json", "msgpack", "stdlib"])
@pytest.mark.parametrize(("value", "text"), REFUSED, ids=lambda v: type(v).__name__)
def test_an_object_that_would_arrive_as_another_is_refused(
    value: Any, text: str, how: codec.Codec
) -> None:
    for body, place in ((value, "body"), ({"in": [value]}, r"body\['in'\]\[0\]")):
        with pytest.raises(rmq.EncodeError, match=f"(?s){place}: .*{text}") as caught:
            how.encode(body)
        assert "hunter2" not in str(caught.value)


def test_the_ways_that_a_refusal_names_work() -> None:
    told = Told(user="a", password="hunter2")

    assert received(told).password.get_secret_value() == "hunter2"
    assert received(Excluded()) == Excluded()
    assert received(Priced(10)) == Priced(10)
    assert codec.JSON.decode(codec.JSON.encode(Excluded(token="t").model_dump())) == {}
    with pytest.raises(rmq.EncodeError, match=r"send value\.get_secret_value"):
        codec.JSON.encode(p.SecretStr("a"))


def test_a_class_that_no_handler_can_ask_for_is_sent_as_it_is() -> None:
    @dataclasses.dataclass
    class Local:
        inner: Nowhere  # type: ignore[name-defined]  # noqa: F821

    assert codec.JSON.decode(codec.JSON.encode(Local(7))) == {"inner": 7}


def test_msgpack_has_a_number_that_is_none() -> None:
    class Number(p.BaseModel):
        value: float

    assert math.isnan(received(Number(value=math.nan), codec.MSGPACK).value)


def test_a_struct_that_msgspec_cannot_read_is_refused_by_name() -> None:
    made = msgspec.defstruct("Made", [("pet", Animal | Dog)])

    with pytest.raises(rmq.errors.InvalidType, match=r"type Made: msgspec says: Type unions"):
        body_types.converter(made)
    # No handler can ask for it, so it is sent as it is.
    sent = codec.JSON.encode(made(Dog("Rex", "Pug")))
    assert codec.JSON.decode(sent) == {"pet": {"name": "Rex", "breed": "Pug"}}


# --- any model -----------------------------------------------------------------------------------

FIELDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(2**63), 2**63 - 1)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str, st.text(st.characters(codec="utf-8"))),
    (bool, st.booleans()),
    (uuid.UUID, st.uuids()),
    (dt.datetime, st.datetimes() | st.datetimes(timezones=st.just(dt.UTC))),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=2)),
    (int | None, st.none() | st.integers(-9, 9)),
    (list[dt.date], st.lists(st.dates(), max_size=3)),
    (dict[int, str], st.dictionaries(st.integers(-9, 9), st.just("a"), max_size=3)),
    (Animal, st.builds(Animal, st.just("a"))),
]
LOSSY: list[tuple[Any, Any]] = [(Animal, Dog("Rex", "Pug")), (Animal | Dog, Dog("Rex", "Pug"))]
PYDANTIC_LOSSY: list[tuple[Any, Any]] = [
    (p.SecretStr, p.SecretStr("hunter2")), (str, "left out"),
]  # fmt: skip


@st.composite
def objects(draw: st.DrawFn) -> tuple[Any, bool]:
    """Draw an object of a class that is made for it, and whether a part of it may not come back."""
    chosen = draw(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=4))
    fields = [(kind, draw(values)) for kind, values in chosen]
    make = draw(st.sampled_from(["pydantic", "dataclass", "attrs", "msgspec"]))
    lossy = draw(st.booleans())
    if lossy:
        fields.append(draw(st.sampled_from(LOSSY + PYDANTIC_LOSSY * (make == "pydantic"))))
    given = {f"f{n}": value for n, (_, value) in enumerate(fields)}
    hints = {f"f{n}": kind for n, (kind, _) in enumerate(fields)}
    if make == "pydantic":
        config = p.ConfigDict(
            strict=draw(st.booleans()), extra=draw(st.sampled_from(["forbid", "ignore"])),
            alias_generator=draw(st.sampled_from([None, str.upper])), populate_by_name=True,
        )  # fmt: skip
        model: dict[str, Any] = {name: (kind, ...) for name, kind in hints.items()}
        if fields[-1][1] == "left out":
            model[f"f{len(fields) - 1}"] = (str, p.Field(default="", exclude=True))
        return p.create_model("Made", __config__=config, **model)(**given), lossy
    if make == "dataclass":
        return dataclasses.make_dataclass("Made", hints.items())(**given), lossy
    if make == "attrs":
        parts = {name: attrs.field(type=kind) for name, kind in hints.items()}
        return attrs.make_class("Made", parts)(**given), lossy
    return msgspec.defstruct("Made", list(hints.items()))(**given), lossy


def check_any(drawn: tuple[Any, bool]) -> None:
    value, lossy = drawn
    for how in CODECS:
        try:
            assert received(value, how) == value
        except (rmq.EncodeError, rmq.errors.InvalidType):
            assert lossy
    if not lossy:
        texts = [CODECS[n].encode(value) for n in (0, 2)]
        assert json.loads(texts[0]) == json.loads(texts[1])


@given(objects())
@settings(deadline=None, max_examples=60)
def test_whatever_is_sent_is_received_or_refused(drawn: tuple[Any, bool]) -> None:
    check_any(drawn)


def test_a_send_that_does_not_read_back_is_found_by_these_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_codec, "plain_form", lambda value, *_: json_forms.to_builtins(value))
    control = codec.JsonCodec()
    control.__dict__["_json"] = MsgspecJson(msgspec, StdlibJson())

    for value in (Login(user="a", password="hunter2"), Owner(Dog("Rex", "Pug"))):
        assert received(value, control) != value
