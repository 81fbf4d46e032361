"""Check a body, and convert it to the type in a handler's annotation.

This module converts builtin types, dates, UUIDs, Enums, sets, dataclasses, and the other types of
`rmq.kernel.core.json_forms`. It needs no other package for these types. If pydantic or msgspec is
installed, that package converts its own models and all other types of `typing`.

When you send an object, RMQ writes it as JSON, and immediately reads the JSON back with the
object's class (`plain_form`). If the result differs from the object, RMQ refuses the send. So a
handler with this class as its annotation receives an equal object.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import sys
import threading
import types
import typing
from collections.abc import Callable, Iterable
from enum import Enum, Flag
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from rmq.errors import DecodeError, InvalidType
from rmq.kernel.core import json_forms
from rmq.kernel.core.packages import install

Converter = Callable[[Any], Any]

_PLAIN = (dict, list, str, int, float, bool, type(None))
_to_json = json.JSONEncoder(ensure_ascii=False).encode


def converter(annotation: Any) -> Converter | None:
    """Return a function that converts a body to the annotated type.

    The function raises DecodeError for a body of another type. If the annotation allows any body,
    `converter` returns None.

    Raises:
        InvalidType: No installed library can convert to this type.
    """
    for inner in ("__supertype__", "__value__"):  # NewType, and `type Name = ...`
        if hasattr(annotation, inner):
            return converter(getattr(annotation, inner))
    if annotation in (Any, object, None):
        return None
    if annotation in _PLAIN:
        return _builtin(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _union([type(None) if arg is None else arg for arg in args])
    if origin in (typing.Required, typing.NotRequired):
        return converter(args[0])
    if origin is Literal:
        return _literal(annotation, args)
    if origin is list and len(args) == 1:
        return _list(converter(args[0]))
    if origin is dict and len(args) == 2 and args[0] in (str, int):
        return _dict(converter(args[1]), args[0])
    if (origin or annotation) in (set, frozenset, tuple):
        return _collection(origin or annotation, args)
    if annotation in json_forms.READERS:
        return _form(annotation)
    if isinstance(annotation, type):
        if issubclass(annotation, Enum):
            return _enum(annotation)
        if issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
            return _named_tuple(annotation)
    if typing.is_typeddict(annotation) and not hasattr(annotation, "__pydantic_config__"):
        return _Object(annotation)
    if hasattr(annotation, "model_validate"):
        return _validated(annotation.model_validate, annotation.model_validate_json, annotation)
    if hasattr(annotation, "__struct_fields__"):
        return _by_msgspec(annotation)
    if (
        isinstance(annotation, type)
        and not hasattr(annotation, "__pydantic_validator__")
        and json_forms.fields_of(annotation) is not None
    ):
        return _Object(annotation)
    reasons: list[str] = []
    for library, make in (("pydantic", _by_pydantic), ("msgspec", _by_msgspec)):
        if importlib.util.find_spec(library):
            try:
                checked = make(annotation)
                return _formed(args[0], checked) if origin is Annotated else checked
            except Exception as error:  # each library has its own exceptions
                reasons.append(f"{library}: {str(error).splitlines()[0]}")
    if origin is Annotated and not reasons:
        return converter(args[0])
    raise InvalidType(
        f"the body's type {_name(annotation)}: RMQ reads types of docs/codecs.md; for this type "
        + (
            f"see the error of its library ({'; '.join(reasons)}), or annotate it as Any"
            if reasons
            else f"{install('pydantic')}, or msgspec instead of pydantic, or annotate it as Any"
        )
    )


def _formed(wanted: Any, check: Converter) -> Converter:
    if wanted not in json_forms.READERS:
        return check
    read = _form(wanted)
    return lambda body: check(read(body))


def _name(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)


def _does_not_fit(wanted: Any, body: Any, why: object = "") -> DecodeError:
    given = type(body).__name__
    return DecodeError(f"body: {given} does not fit {_name(wanted)}" + (f": {why}" if why else ""))


def _builtin(wanted: Any) -> Converter:
    def convert(body: Any) -> Any:
        if type(body) is wanted or (wanted is float and type(body) is int):
            return body
        raise _does_not_fit(wanted, body)

    return convert


def _union(wanted: list[Any]) -> Converter | None:
    converters = [converter(member) for member in wanted]

    def convert(body: Any) -> Any:
        problems = []
        for convert_member in converters:
            assert convert_member is not None
            try:
                return convert_member(body)
            except DecodeError as error:
                problems.append(str(error))
        raise DecodeError("; ".join(problems))

    return None if None in converters else convert


def _inside(place: object, error: DecodeError) -> DecodeError:
    return DecodeError(f"body[{place!r:.60}]{str(error).removeprefix('body')}")


def _each(inner: Converter | None, body: Iterable[tuple[Any, Any]]) -> list[Any]:
    converted = []
    for place, item in body:
        try:
            converted.append(item if inner is None else inner(item))
        except DecodeError as error:
            raise _inside(place, error) from error
    return converted


def _list(inner: Converter | None) -> Converter:
    def convert(body: Any) -> Any:
        if type(body) is not list:
            raise _does_not_fit(list, body)
        return body if inner is None else _each(inner, enumerate(body))

    return convert


def _dict(inner: Converter | None, names: type = str) -> Converter:
    def convert(body: Any) -> Any:
        if type(body) is not dict:
            raise _does_not_fit(dict, body)
        if names is int:  # JSON has only text keys: {1: "a"} arrives as {"1": "a"}
            try:
                body = {int(name): value for name, value in body.items()}
            except (TypeError, ValueError) as error:
                raise _does_not_fit(dict, body, error) from error
        else:
            for name in body:  # msgpack allows keys that are not text
                if type(name) is not str:
                    raise _does_not_fit(str, name, f"the key {name!r}")
        if inner is None:
            return body
        return dict(zip(body, _each(inner, body.items()), strict=True))

    return convert


def _literal(wanted: Any, values: tuple[Any, ...]) -> Converter:
    readers = [_enum(type(value)) if isinstance(value, Enum) else None for value in values]

    def convert(body: Any) -> Any:
        for value, read in zip(values, readers, strict=True):
            try:
                found = body if read is None else read(body)
            except DecodeError:
                continue
            if type(found) is type(value) and found == value:
                return value
        raise _does_not_fit(wanted, body)

    return convert


def _form(wanted: type) -> Converter:
    read = json_forms.READERS[wanted]

    def convert(body: Any) -> Any:
        if type(body) is wanted:  # msgpack has bytes, which need no conversion
            return body
        try:
            return read(body)
        except (ValueError, ArithmeticError, TypeError) as error:
            raise _does_not_fit(wanted, body, error) from error

    return convert


def _enum(wanted: type[Enum]) -> Converter:
    members: dict[str, Enum] = {}
    for member in wanted.__members__.values():
        try:
            members.setdefault(json_forms.json_of(member), member)
        except (TypeError, ValueError):  # a body cannot have this value
            continue

    def convert(body: Any) -> Any:
        try:
            member = members.get(json_forms.json_of(body))
            if member is not None:
                return member
            if type(body) is str or (type(body) is int and issubclass(wanted, Flag)):
                return wanted(body)  # by its _missing_, or a combination of flags
        except (ValueError, TypeError, RecursionError) as error:
            raise _does_not_fit(wanted, body, error) from error
        raise _does_not_fit(wanted, body, f"{body!r:.60} is not one of its values")

    return convert


def _collection(wanted: Any, args: tuple[Any, ...]) -> Converter:
    if wanted is tuple and args and args[-1] is not Ellipsis:
        return _fixed(tuple, [converter(arg) for arg in args], tuple)
    inner = converter(args[0]) if args else None

    def convert(body: Any) -> Any:
        if type(body) is not list:
            raise _does_not_fit(wanted, body)
        try:
            return wanted(_each(inner, enumerate(body)))
        except TypeError as error:  # a list in a set
            raise _does_not_fit(wanted, body, error) from error

    return convert


def _fixed(
    wanted: Any, inner: list[Converter | None], make: Callable[[list[Any]], Any]
) -> Converter:
    def convert(body: Any) -> Any:
        if type(body) is not list or len(body) != len(inner):
            raise _does_not_fit(wanted, body, f"it takes a list of {len(inner)}")
        return make(
            [
                _each(read, [(place, item)])[0]
                for place, (read, item) in enumerate(zip(inner, body, strict=True))
            ]
        )

    return convert


def _named_tuple(wanted: Any) -> Converter:
    hints = get_type_hints(wanted, include_extras=True)
    inner = [converter(hints.get(name, Any)) for name in wanted._fields]
    return _fixed(wanted, inner, lambda items: wanted(*items))


class _Object:
    """Builds a dataclass, an attrs class or a TypedDict from a map, and ignores unknown names."""

    def __init__(self, wanted: type) -> None:
        self._wanted = wanted
        self._fields: list[tuple[str, Converter | None, bool]] = []
        with _building:
            known = _being_made.setdefault(wanted, self)
            if known is not self:  # a class with a field of its own type
                self._fields = known._fields
                return
            try:
                hints = get_type_hints(wanted, include_extras=True)
                needed: Any = getattr(wanted, "__required_keys__", ())  # TypedDict
                pairs, arguments = json_forms.fields_of(wanted), hints
                if pairs is not None:
                    arguments = dict(inspect.signature(wanted).parameters)
                for attribute, name in zip(hints, hints, strict=True) if pairs is None else pairs:
                    if name in arguments:
                        hint = hints.get(attribute, Any)
                        # A NotRequired in a text annotation is missing from __required_keys__.
                        is_needed = name in needed and get_origin(hint) is not typing.NotRequired
                        self._fields.append((name, converter(hint), is_needed))
            except NameError as error:
                raise InvalidType(f"the body's type {_name(wanted)}: {error}") from error
            finally:
                del _being_made[wanted]

    def __call__(self, body: Any) -> Any:
        if type(body) is not dict:
            raise _does_not_fit(self._wanted, body, "it takes a map")
        given: dict[str, Any] = {}
        for name, read, is_needed in self._fields:
            if is_needed and name not in body:
                raise _does_not_fit(self._wanted, body, f"it has no {name!r}")
            if name in body:
                try:
                    given[name] = body[name] if read is None else read(body[name])
                except DecodeError as error:
                    raise _inside(name, error) from error
        try:
            return self._wanted(**given)
        except Exception as error:  # a field is missing, or the class refuses a value
            raise _does_not_fit(self._wanted, body, error) from error


_building = threading.RLock()  # one thread at a time builds classes
_being_made: dict[type, _Object] = {}


def _with_decode_error(validate: Converter, wanted: Any) -> Converter:
    def convert(body: Any) -> Any:
        try:
            return validate(body)
        except Exception as error:  # each library has its own exceptions
            raise _does_not_fit(wanted, body, error) from error

    return convert


def _validated(by_value: Converter, by_json: Converter, wanted: Any) -> Converter:
    """Return a function that validates a body as JSON if possible.

    Strict models and pydantic's `Json` accept only JSON. If the body has no JSON form, the function
    validates the Python value.
    """

    def validate(body: Any) -> Any:
        try:
            text = _to_json(body)
        except (TypeError, ValueError):  # msgpack's bytes, or values of a custom codec
            return by_value(body)
        return by_json(text)

    return _with_decode_error(validate, wanted)


def _by_pydantic(wanted: Any) -> Converter:
    adapter = importlib.import_module("pydantic").TypeAdapter(wanted)
    return _validated(adapter.validate_python, adapter.validate_json, wanted)


def _by_msgspec(wanted: Any) -> Converter:
    msgspec: Any = importlib.import_module("msgspec")
    try:
        info = importlib.import_module("msgspec.inspect").type_info(wanted)
    except TypeError as error:
        raise InvalidType(f"the body's type {_name(wanted)}: msgspec says: {error}") from None
    if type(info).__name__ == "CustomType":
        raise InvalidType(f"{_name(wanted)} is not a type that msgspec can build")
    # JSON has only text keys: {1: "a"} arrives as {"1": "a"}.
    return _with_decode_error(lambda body: msgspec.convert(body, wanted, str_keys=True), wanted)


# --- read back by a send -------------------------------------------------------------------------


def plain_form(value: Any, write: Callable[[Any], Any], read: Converter) -> Any:
    """Return the JSON form of a value, after a check that its class can read this form back.

    Args:
        value: Value to write.
        write: The codec's writer.
        read: The codec's reader.

    Raises:
        TypeError, ValueError: The value has no JSON form, or its class reads a different value
            back.
    """
    plain = json_forms.to_builtins(value)
    kind: Any = type(value)
    convert = _own_reader(kind)
    if convert is None:
        return plain
    if not hasattr(value, "model_dump"):  # pydantic has already written nested values
        plain = read(write(plain))
    name = kind.__name__
    try:
        place = _difference(value, convert(plain))
    except DecodeError as error:
        raise ValueError(f"a handler could not read it as {name}: {error!s:.300}") from error
    if place is not None:
        raise ValueError(
            f"a handler that reads it as {name} would get another value"
            + (f" in {place}" if place else "")
            + "; change the class, or send a dict (docs/codecs.md, Objects that do not come back)"
        )
    return plain


@lru_cache(1024)
def _own_reader(kind: Any) -> Converter | None:
    if not json_forms.is_object(kind):
        return None
    try:
        return converter(kind)
    except InvalidType:
        return None


def _difference(sent: Any, received: Any, place: str = "") -> str | None:
    try:
        if sent is received or sent == received or sent != sent:
            return None
    except Exception:  # the truth value of an array is undefined
        return None
    kind: Any = type(sent)
    if kind is type(received):
        names = json_forms.attributes_of(kind)
        if names is None and "__eq__" not in {n for each in kind.__mro__[:-1] for n in vars(each)}:
            return None  # its class defines no equality
        if names is not None:
            parts = [(f".{n}", getattr(sent, n, None), getattr(received, n, None)) for n in names]
            return _first_difference(parts, place)
    if isinstance(sent, list | tuple) and isinstance(received, list | tuple):
        if len(sent) == len(received):
            pairs = enumerate(zip(sent, received, strict=True))
            return _first_difference([(f"[{n}]", *pair) for n, pair in pairs], place)
    elif isinstance(sent, dict) and isinstance(received, dict) and sent.keys() == received.keys():
        return _first_difference([(f"[{n!r}]", sent[n], received[n]) for n in sent], place)
    return None if _is_form_of(received, sent) else place


def _first_difference(parts: Iterable[tuple[str, Any, Any]], place: str) -> str | None:
    for name, sent, received in parts:
        found = _difference(sent, received, (place + name).removeprefix("."))
        if found is not None:
            return found
    return None


def _is_form_of(received: Any, sent: Any) -> bool:
    """Return whether the received value is the JSON form of the sent value.

    A field of type Any receives this JSON form instead of the value.
    """
    for form in (_checked_form, _pydantic_form):
        with contextlib.suppress(Exception):  # it contains an object, or pydantic is missing
            if json.dumps(received) == json.dumps(sent, default=form):
                return True
    return False


def _checked_form(value: Any) -> Any:
    return plain_form(value, json_forms.json_of, json.loads)


def _pydantic_form(value: Any) -> Any:
    if json_forms.is_object(type(value)) or hasattr(value, "get_secret_value"):
        return _checked_form(value)
    return sys.modules["pydantic_core"].to_jsonable_python(value)
