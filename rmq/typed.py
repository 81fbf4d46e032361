"""From an annotation to a check: what the body of a message must be before a handler sees it.

Builtin types are checked here. Models are built by the library they belong to, pydantic or msgspec;
whichever is installed reads dataclasses and the rest of `typing` too.
"""

from __future__ import annotations

import importlib
import importlib.util
import types
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin

from rmq.errors import DecodeError, InvalidType

Reader = Callable[[Any], Any]

_PLAIN = (dict, list, str, int, float, bool, bytes, type(None))


def reader(annotation: Any) -> Reader | None:
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
        return _list(reader(args[0]))
    if origin is dict and len(args) == 2 and args[0] is str:
        return _dict(reader(args[1]))
    if hasattr(annotation, "model_validate"):
        return _guarded(annotation.model_validate, annotation)
    if hasattr(annotation, "__struct_fields__"):
        return _by_msgspec(annotation)
    if importlib.util.find_spec("pydantic"):
        adapter = importlib.import_module("pydantic").TypeAdapter(annotation)
        return _guarded(adapter.validate_python, annotation)
    if importlib.util.find_spec("msgspec"):
        return _by_msgspec(annotation)
    raise InvalidType(
        f"the body's type {_name(annotation)}: RMQ checks builtin types by itself; for this one "
        'pip install "rmq[pydantic]" or "rmq[msgspec]", or annotate it as Any'
    )


def _name(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)


def _misfit(wanted: Any, body: Any, why: object = "") -> DecodeError:
    found = type(body).__name__
    return DecodeError(f"body: {found} does not fit {_name(wanted)}" + (f": {why}" if why else ""))


def _builtin(wanted: Any) -> Reader:
    def read(body: Any) -> Any:
        if type(body) is wanted or (wanted is float and type(body) is int):
            return body
        raise _misfit(wanted, body)

    return read


def _union(wanted: list[Any]) -> Reader | None:
    readers = [reader(one) for one in wanted]

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


def _list(inner: Reader | None) -> Reader:
    def read(body: Any) -> Any:
        if type(body) is not list:
            raise _misfit(list, body)
        return body if inner is None else [inner(one) for one in body]

    return read


def _dict(inner: Reader | None) -> Reader:
    def read(body: Any) -> Any:
        if type(body) is not dict:
            raise _misfit(dict, body)
        return body if inner is None else {name: inner(one) for name, one in body.items()}

    return read


def _guarded(validate: Reader, wanted: Any) -> Reader:
    def read(body: Any) -> Any:
        try:
            return validate(body)
        except Exception as error:  # each library has errors of its own
            raise _misfit(wanted, body, error) from error

    return read


def _by_msgspec(wanted: Any) -> Reader:
    convert = importlib.import_module("msgspec").convert
    return _guarded(lambda body: convert(body, wanted), wanted)
