"""Body types: check and convert a body to the type that a handler's annotation names.

Builtin types are checked here. pydantic and msgspec build their own models, and dataclasses and the
rest of `typing` too if they are installed.
"""

from __future__ import annotations

import importlib.util
import types
from collections.abc import Callable
from typing import Annotated, Any, Union, get_args, get_origin

from rmq.errors import DecodeError, InvalidType
from rmq.kernel.core.packages import install

Converter = Callable[[Any], Any]

_PLAIN = (dict, list, str, int, float, bool, bytes, type(None))


def converter(annotation: Any) -> Converter | None:
    """Return a function that converts a body to the annotated type; None if any body will do.

    The function raises DecodeError for a body that does not fit.

    Raises:
        InvalidType: no installed library can convert to this type.
    """
    if annotation in (Any, object, None):
        return None
    if annotation in _PLAIN:
        return _builtin(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _union([type(None) if arg is None else arg for arg in args])
    if origin is list and len(args) == 1:
        return _list(converter(args[0]))
    if origin is dict and len(args) == 2 and args[0] is str:
        return _dict(converter(args[1]))
    if hasattr(annotation, "model_validate"):
        return _with_decode_error(annotation.model_validate, annotation)
    if hasattr(annotation, "__struct_fields__"):
        return _by_msgspec(annotation)
    reasons: list[str] = []
    for library, make in (("pydantic", _by_pydantic), ("msgspec", _by_msgspec)):
        if importlib.util.find_spec(library):
            try:
                return make(annotation)
            except Exception as error:  # each library has errors of its own
                reasons.append(f"{library}: {str(error).splitlines()[0]}")
    if origin is Annotated and not reasons:
        return converter(args[0])
    raise InvalidType(
        f"the body's type {_name(annotation)}: RMQ itself checks builtin types; for this one "
        + (
            f"see the error of its library ({'; '.join(reasons)}), or annotate it as Any"
            if reasons
            else f"{install('pydantic')}, or msgspec instead of pydantic, or annotate it as Any"
        )
    )


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


def _list(inner: Converter | None) -> Converter:
    def convert(body: Any) -> Any:
        if type(body) is not list:
            raise _does_not_fit(list, body)
        return body if inner is None else [inner(item) for item in body]

    return convert


def _dict(inner: Converter | None) -> Converter:
    def convert(body: Any) -> Any:
        if type(body) is not dict:
            raise _does_not_fit(dict, body)
        for name in body:  # msgpack allows keys that are not text
            if type(name) is not str:
                raise _does_not_fit(str, name, f"the key {name!r}")
        return body if inner is None else {name: inner(value) for name, value in body.items()}

    return convert


def _with_decode_error(validate: Converter, wanted: Any) -> Converter:
    def convert(body: Any) -> Any:
        try:
            return validate(body)
        except Exception as error:  # each library has errors of its own
            raise _does_not_fit(wanted, body, error) from error

    return convert


def _by_pydantic(wanted: Any) -> Converter:
    return _with_decode_error(
        importlib.import_module("pydantic").TypeAdapter(wanted).validate_python, wanted
    )


def _by_msgspec(wanted: Any) -> Converter:
    msgspec: Any = importlib.import_module("msgspec")
    info = importlib.import_module("msgspec.inspect").type_info(wanted)
    if type(info).__name__ == "CustomType":
        raise InvalidType(f"{_name(wanted)} is not a type that msgspec can build")
    # JSON has only text keys: {1: "a"} arrives as {"1": "a"}.
    return _with_decode_error(lambda body: msgspec.convert(body, wanted, str_keys=True), wanted)
