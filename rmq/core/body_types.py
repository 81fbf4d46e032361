"""From an annotation to a check: what the body of a message must be before a handler sees it.

Builtin types are checked here. Models are built by the library they belong to, pydantic or msgspec;
whichever is installed reads dataclasses and the rest of `typing` too.
"""

from __future__ import annotations

import importlib
import importlib.util
import types
from collections.abc import Callable
from typing import Annotated, Any, Union, get_args, get_origin

from rmq.errors import DecodeError, InvalidType

Converter = Callable[[Any], Any]

_PLAIN = (dict, list, str, int, float, bool, bytes, type(None))


def converter(annotation: Any) -> Converter | None:
    """How to make a body what the annotation asks for; None where anything will do.

    The reader raises DecodeError for a body that does not fit.

    Raises:
        InvalidType: nothing that is installed can read this annotation.
    """
    if annotation in (Any, object, None):
        return None
    if annotation in _PLAIN:
        return _builtin(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _union([type(None) if one is None else one for one in args])
    if origin is list and len(args) == 1:
        return _list(converter(args[0]))
    if origin is dict and len(args) == 2 and args[0] is str:
        return _dict(converter(args[1]))
    if hasattr(annotation, "model_validate"):
        return _guarded(annotation.model_validate, annotation)
    if hasattr(annotation, "__struct_fields__"):
        return _by_msgspec(annotation)
    why: list[str] = []
    for library, make in (("pydantic", _by_pydantic), ("msgspec", _by_msgspec)):
        if importlib.util.find_spec(library):
            try:
                return make(annotation)
            except Exception as error:  # each library has errors of its own
                why.append(f"{library}: {str(error).splitlines()[0]}")
    if origin is Annotated and not why:
        return converter(args[0])
    raise InvalidType(
        f"the body's type {_name(annotation)}: RMQ checks builtin types by itself; for this one "
        + (
            f"see what its library says ({'; '.join(why)}), or annotate it as Any"
            if why
            else 'pip install "rmq[pydantic]" or "rmq[msgspec]", or annotate it as Any'
        )
    )


def _name(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)


def _misfit(wanted: Any, body: Any, why: object = "") -> DecodeError:
    found = type(body).__name__
    return DecodeError(f"body: {found} does not fit {_name(wanted)}" + (f": {why}" if why else ""))


def _builtin(wanted: Any) -> Converter:
    def read(body: Any) -> Any:
        if type(body) is wanted or (wanted is float and type(body) is int):
            return body
        raise _misfit(wanted, body)

    return read


def _union(wanted: list[Any]) -> Converter | None:
    readers = [converter(one) for one in wanted]

    def read(body: Any) -> Any:
        problems = []
        for one in readers:
            assert one is not None
            try:
                return one(body)
            except DecodeError as error:
                problems.append(str(error))
        raise DecodeError("; ".join(problems))

    return None if None in readers else read


def _list(inner: Converter | None) -> Converter:
    def read(body: Any) -> Any:
        if type(body) is not list:
            raise _misfit(list, body)
        return body if inner is None else [inner(one) for one in body]

    return read


def _dict(inner: Converter | None) -> Converter:
    def read(body: Any) -> Any:
        if type(body) is not dict:
            raise _misfit(dict, body)
        for name in body:  # msgpack knows other keys than JSON
            if type(name) is not str:
                raise _misfit(str, name, f"the key {name!r}")
        return body if inner is None else {name: inner(one) for name, one in body.items()}

    return read


def _guarded(validate: Converter, wanted: Any) -> Converter:
    def read(body: Any) -> Any:
        try:
            return validate(body)
        except Exception as error:  # each library has errors of its own
            raise _misfit(wanted, body, error) from error

    return read


def _by_pydantic(wanted: Any) -> Converter:
    return _guarded(importlib.import_module("pydantic").TypeAdapter(wanted).validate_python, wanted)


def _by_msgspec(wanted: Any) -> Converter:
    msgspec: Any = importlib.import_module("msgspec")
    found = importlib.import_module("msgspec.inspect").type_info(wanted)
    if type(found).__name__ == "CustomType":
        raise InvalidType(f"{_name(wanted)} is no type that msgspec can build")
    # JSON has no keys but text: {1: "one"} came as {"1": "one"}.
    return _guarded(lambda body: msgspec.convert(body, wanted, str_keys=True), wanted)
