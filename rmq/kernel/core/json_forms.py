"""Write values of types that JSON lacks as JSON, and read them back.

    datetime        ISO 8601 with its offset, Z for UTC; a naive datetime has no offset
    date, time      ISO 8601
    timedelta       ISO 8601, days and seconds: P1DT3700.5S, -PT1S
    UUID, Decimal   text
    bytes           base64; also bytearray and memoryview
    Enum            the form of its value
    set, frozenset  a list, sorted by its members, or by their JSON if they cannot be compared
    objects         a map of the fields; pydantic models and msgspec structs write themselves

docs/codecs.md has the table. The annotation of a handler selects how a form is read (see `READERS`
and `rmq.kernel.core.body_types`). msgpack bodies have the same forms, except for bytes.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import json
import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

JSON_TYPES = (dict, list, tuple, str, int, float, type(None))
_MICROSECOND, _MINUTE = timedelta(microseconds=1), timedelta(minutes=1)
_BYTES = (bytes, bytearray, memoryview)


# --- written -------------------------------------------------------------------------------------


def to_builtins(value: Any) -> Any:
    """Convert a value to a type that JSON has.

    If the result is a list or a map, its members may need the same conversion.

    Raises:
        TypeError, ValueError: The value cannot be converted.
    """
    write = _BY_TYPE.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, Enum):
        value = value.value
        if isinstance(value, JSON_TYPES):
            return value
    for kind, write in _BY_TYPE.items():
        if isinstance(value, kind):
            return write(value)
    if isinstance(value, type):
        raise TypeError(f"the class {value.__name__} has no form in JSON; send an instance of it")
    if hasattr(value, "get_secret_value"):  # pydantic would write stars
        raise TypeError(f"{type(value).__name__} is not written; send value.get_secret_value()")
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    if hasattr(value, "__struct_fields__"):
        return importlib.import_module("msgspec").to_builtins(
            value, builtin_types=_LEFT_BY_MSGSPEC, enc_hook=to_builtins
        )
    if hasattr(value, "__pydantic_serializer__"):  # a pydantic dataclass
        return importlib.import_module("pydantic_core").to_jsonable_python(value, round_trip=True)
    own: Any = type(value)
    fields = fields_of(own)
    if fields is not None:
        return {name: _attribute(value, attribute) for attribute, name in fields}
    remedy = "list(value)" if hasattr(value, "__iter__") else "str(value)"
    raise TypeError(f"{type(value).__name__} has no form in JSON; send {remedy}")


@lru_cache(1024)
def fields_of(kind: Any) -> list[tuple[str, str]] | None:
    """Return the fields of a dataclass or an attrs class, or None for other classes.

    Each field is a pair of names: the attribute, and the parameter of the constructor. The names
    can differ, because attrs drops leading underscores.
    """
    if dataclasses.is_dataclass(kind):
        return [(field.name, field.name) for field in dataclasses.fields(kind)]
    attributes = getattr(kind, "__attrs_attrs__", None)
    if attributes is None:
        return None
    return [(each.name, getattr(each, "alias", each.name.lstrip("_"))) for each in attributes]


def is_object(kind: Any) -> bool:
    """Return whether a class is a dataclass, an attrs class, or one of pydantic or msgspec."""
    return hasattr(kind, "model_validate") or attributes_of(kind) is not None


def attributes_of(kind: Any) -> list[str] | None:
    """Return the names of the attributes that RMQ writes for an object.

    If the value has no such attributes, return None.
    """
    for names in ("__struct_fields__", "__pydantic_fields__"):
        if hasattr(kind, names):
            return list(getattr(kind, names))
    fields = fields_of(kind)
    return None if fields is None else [attribute for attribute, _ in fields]


def _attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except AttributeError:
        raise TypeError(f"{type(value).__name__} has no value in its field {name}") from None


def _datetime(value: datetime) -> str:
    offset = value.utcoffset()
    if offset and has_seconds(offset):  # before 1900; ISO 8601 has no seconds in an offset
        value = (value.replace(tzinfo=None) - offset).replace(tzinfo=UTC)
    return _zulu(value)


def has_seconds(offset: timedelta | None) -> bool:
    """Return whether the offset of a time zone has seconds, such as +01:00:30."""
    return bool(offset and offset % _MINUTE)


def _time(value: time) -> str:
    if value.tzinfo is not None:
        offset = value.utcoffset()
        if offset is None:
            raise ValueError(f"time: the offset of {value.tzinfo} depends on the date; send both")
        if offset % _MINUTE:
            raise ValueError(f"time: its offset {offset} is not a whole number of minutes")
    return _zulu(value)


def _zulu(value: datetime | time) -> str:
    text = value.isoformat()
    return f"{text[:-6]}Z" if text.endswith("+00:00") else text


def _timedelta(value: timedelta) -> str:
    sign = "-" if value.days < 0 else ""
    micros = abs(value // _MICROSECOND)
    days, micros = divmod(micros, 86_400_000_000)
    seconds, micros = divmod(micros, 1_000_000)
    text = f"{sign}P{days}D" if days or not (seconds or micros) else f"{sign}P"
    if seconds or micros:
        fraction = f".{micros:06}".rstrip("0") if micros else ""
        text += f"T{seconds}{fraction}S"
    return text


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"Decimal {value} is not a number; JSON has no such value")
    return str(value)


def _bytes(value: Any) -> str:
    return base64.b64encode(value).decode()


def _members(value: Any) -> list[Any]:
    """Return the members of a set in an order that is independent of their hashes."""
    kinds = set(map(type, value))
    if kinds <= {str} or kinds <= {int, float}:
        return sorted(value)
    return sorted(value, key=json_of)


def json_of(value: Any) -> str:
    """Return the JSON text of a value of a supported type. NaN is allowed."""
    return json.dumps(value, default=to_builtins)


_BY_TYPE: dict[type, Callable[[Any], Any]] = {
    datetime: _datetime,  # before its base class, date
    date: date.isoformat,
    time: _time,
    timedelta: _timedelta,
    UUID: str,
    Decimal: _decimal,
    **dict.fromkeys(_BYTES, _bytes),
    set: _members,
    frozenset: _members,
}
# msgspec writes these types itself, but an infinite Decimal and an offset with seconds differently.
_LEFT_BY_MSGSPEC = (datetime, date, time, timedelta, UUID, Decimal, *_BYTES)


# --- read ----------------------------------------------------------------------------------------

_DURATION = re.compile(
    r"([+-]?)P(?=.)(?:(\d+)W)?(?:(\d+)D)?"
    r"(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,6})\d*)?S)?)?",
    re.ASCII,
)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"give text, not {type(value).__name__}")
    return value


def _read_timedelta(value: Any) -> timedelta:
    match = _DURATION.fullmatch(_text(value))
    if match is None:
        raise ValueError(f"{value[:60]!r} is not a duration such as P1DT3700.5S")
    sign, weeks, days, hours, minutes, seconds, fraction = match.groups(default="0")
    size = timedelta(
        weeks=int(weeks), days=int(days), hours=int(hours), minutes=int(minutes),
        seconds=int(seconds), microseconds=int(fraction.ljust(6, "0")),
    )  # fmt: skip
    return -size if sign == "-" else size


def _read_decimal(value: Any) -> Decimal:
    text = str(value) if type(value) in (int, float) else _text(value)
    number = Decimal(text)
    if not number.is_finite():
        raise ValueError(f"{text[:60]!r} is not a number")
    return number


def _read_bytes(value: Any) -> bytes:
    return base64.b64decode(_text(value), validate=True)


# Each function raises ValueError, ArithmeticError or TypeError for a JSON value in another form.
READERS: dict[type, Callable[[Any], Any]] = {
    datetime: lambda value: datetime.fromisoformat(_text(value)),
    date: lambda value: date.fromisoformat(_text(value)),
    time: lambda value: time.fromisoformat(_text(value)),
    timedelta: _read_timedelta,
    UUID: lambda value: UUID(_text(value)),
    Decimal: _read_decimal,
    bytes: _read_bytes,
}


NAMED_DEPTH = 20  # an error never names a value that is nested deeper


def find_unwritable(value: Any, encode: Callable[[Any], bytes], path: str = "body") -> str:
    """Find the part of a body that a codec cannot write.

    Return the position and the type of this part, such as `body['at']: complex`.
    """
    for name, each in _inner(value) if path.count("[") < NAMED_DEPTH else ():
        try:
            encode(each)
        except RecursionError:
            break
        except (TypeError, ValueError, OverflowError):
            return find_unwritable(each, encode, f"{path}[{name!r:.60}]")
    return f"{path}: {type(value).__name__}"


def _inner(value: Any) -> Iterable[tuple[Any, Any]]:
    if not isinstance(value, JSON_TYPES):
        try:
            value = to_builtins(value)
        except Exception:  # a model runs code of its user
            return ()
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()
