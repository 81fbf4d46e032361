"""Write and read JSON with msgspec if it is installed, otherwise with the standard library.

Producers with msgspec and producers without msgspec write the same bytes. For this reason, RMQ uses
msgspec only for bodies that both libraries write in the same way. The standard library handles all
other bodies, and all errors (docs/decisions/0022).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any
from uuid import UUID

from rmq.errors import DecodeError, EncodeError
from rmq.kernel.core.body_types import plain_form
from rmq.kernel.core.json_forms import JSON_TYPES, find_unwritable, has_seconds, to_builtins

MSGSPEC_MIN = (0, 19)  # older versions misread some integers of more than 64 bits

_KNOWN = frozenset(JSON_TYPES)
_SCALARS = frozenset((str, int, bool, type(None)))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _writer(default: Callable[[Any], Any]) -> Callable[[Any], str]:
    return json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default
    ).encode


class StdlibJson:
    """Writes and reads JSON with the standard library.

    Attributes:
        write_at_once: Fast function that writes a body. Use it only if `is_written_alike` is True
            for the body.
        read_at_once: Fast function that reads JSON. It may refuse JSON that `decode` accepts.
    """

    def __init__(self) -> None:
        # Ready-made objects are faster: json.dumps builds an encoder for each call with keywords.
        self.write_unchecked = _writer(to_builtins)
        self._write = _writer(self.plain)
        self._read = json.JSONDecoder(parse_constant=_no_constant).decode
        self.write_at_once, self.read_at_once = self.encode, self.decode

    def plain(self, value: Any) -> Any:
        """Return the JSON form of a value, or raise TypeError or ValueError."""
        return plain_form(value, self.write_unchecked, self._read)

    def encode(self, body: Any) -> bytes:
        """Encode a value as JSON.

        If this is impossible, raise TypeError, ValueError or RecursionError.
        """
        return self._write(body).encode()

    def decode(self, data: bytes) -> Any:
        """Decode JSON. If the bytes cannot be decoded, raise ValueError or RecursionError."""
        return self._read(data.decode())


class MsgspecJson:
    """Writes and reads JSON with msgspec, or with the standard library if the results would differ.

    Args:
        msgspec: The package.
        stdlib: Writer and reader for all bodies that msgspec would write or read differently.
    """

    def __init__(self, msgspec: Any, stdlib: StdlibJson) -> None:
        self.write_at_once = msgspec.json.Encoder().encode
        self.read_at_once = msgspec.json.Decoder().decode
        # Before msgspec 0.21 its own errors are not ValueErrors.
        self._left_to_stdlib = (ValueError, TypeError, RecursionError, msgspec.MsgspecError)
        self._stdlib = stdlib

    def plain(self, value: Any) -> Any:
        """Return the JSON form of a value, or raise TypeError, ValueError or RecursionError."""
        return plain_form(value, self._write_unchecked, self.decode)

    def _write_unchecked(self, value: Any) -> bytes:
        return (
            self.write_at_once(value)
            if is_written_alike(value)
            else (self._stdlib.write_unchecked(value).encode())
        )

    def encode(self, body: Any) -> bytes:
        """Encode a value as JSON.

        If this is impossible, raise TypeError, ValueError or RecursionError.
        """
        try:
            # An object becomes a map of its fields.
            value = body if type(body) in _KNOWN else self.plain(body)
            if is_written_alike(value):
                data: bytes = self.write_at_once(value)
                return data
        except self._left_to_stdlib:
            pass  # a surrogate or a cycle: raise the standard library's error on every machine
        return self._stdlib.encode(body)

    def decode(self, data: bytes) -> Any:
        """Decode JSON. If the bytes cannot be decoded, raise ValueError or RecursionError."""
        try:
            return self.read_at_once(data)
        except self._left_to_stdlib:  # a number of 1e999, a lone surrogate, or invalid JSON
            return self._stdlib.decode(data)


def is_written_alike(body: Any) -> bool:
    """Return whether msgspec and the standard library write the same bytes for a body.

    The bytes are the same for builtin types, and for dates, UUIDs and similar values, but not for
    their subclasses. msgspec also differs for infinite Decimals, time zone offsets with seconds,
    sets, NaN (it writes null), and floats with an exponent.
    """
    kind = type(body)
    if kind is dict:
        for name, value in body.items():
            if type(name) is not str:
                return False
            if type(value) not in _SCALARS and not is_written_alike(value):
                return False
        return True
    if kind is list or kind is tuple:
        for value in body:
            if type(value) not in _SCALARS and not is_written_alike(value):
                return False
        return True
    if kind in _SCALARS:
        return True
    check = _CHECKS.get(kind)
    return check is not None and check(body)


def _float(number: float) -> bool:
    return bool(1e-4 <= abs(number) < 1e16 or number == 0)


def _datetime(value: datetime) -> bool:
    return value.tzinfo is None or value.tzinfo is UTC or not has_seconds(value.utcoffset())


_CHECKS: dict[type, Callable[[Any], bool]] = {
    float: _float,
    datetime: _datetime,
    Decimal: Decimal.is_finite,
    **dict.fromkeys((date, timedelta, UUID, bytes), lambda value: True),
}


def installed() -> StdlibJson | MsgspecJson:
    """Return the JSON implementation of this installation: msgspec if it is installed."""
    stdlib = StdlibJson()
    try:
        msgspec: Any = importlib.import_module("msgspec")
    except ImportError:
        return stdlib
    version = tuple(int(part) for part in msgspec.__version__.split(".")[:2])
    return MsgspecJson(msgspec, stdlib) if version >= MSGSPEC_MIN else stdlib


class JsonCodec:
    """Writes bodies as JSON in UTF-8. It neither writes nor reads NaN and infinity."""

    name = "json"
    number = 1

    @cached_property
    def _json(self) -> StdlibJson | MsgspecJson:
        return installed()  # at the first body: `import rmq` loads no extra

    def encode(self, body: Any) -> bytes:
        """Encode a body as JSON.

        If a part of the body has no JSON form, raise an EncodeError that names this part.
        """
        try:
            if is_written_alike(body):
                return self._json.write_at_once(body)
        except Exception:
            pass  # `encode` has the same errors with every JSON library
        try:
            return self._json.encode(body)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            found = find_unwritable(body, self._json.encode)
            raise EncodeError(f"{found} cannot be written as JSON: {error}") from error

    def decode(self, data: bytes) -> Any:
        """Decode a body from JSON. If the bytes are not JSON, raise DecodeError."""
        try:
            return self._json.read_at_once(data)
        except Exception:
            pass  # `decode` reads more, and has the same errors with every JSON library
        try:
            return self._json.decode(data)
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"body of {len(data)} bytes is not JSON: {error}") from error
