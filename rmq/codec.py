"""Bodies to bytes and back: JSON by default, msgpack and plain bytes on request, pickle never.

The codec's number travels in the record, so a reader needs no configuration. Bytes that cannot be
read raise DecodeError here; the consumer sends such a message to the DeadQueue with the reason.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from typing import Any, Protocol

import msgpack

from rmq.errors import ConfigurationError, DecodeError, EncodeError


class Codec(Protocol):
    """Writes and reads bodies."""

    name: str
    number: int

    def encode(self, body: Any) -> bytes:
        """The bytes of a body; raises EncodeError."""

    def decode(self, data: bytes) -> Any:
        """The body of bytes; raises DecodeError."""


def plain(value: Any) -> Any:
    """A pydantic model, a msgspec struct or a dataclass as what JSON and msgpack know."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "__struct_fields__"):
        return importlib.import_module("msgspec").to_builtins(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} is no JSON type, model, struct or dataclass")


class BytesCodec:
    """Bodies that are bytes already."""

    name = "bytes"
    number = 0

    def encode(self, body: Any) -> bytes:
        """Take bytes as they are."""
        if type(body) is bytes:
            return body
        if isinstance(body, bytes | bytearray | memoryview):
            return bytes(body)
        raise EncodeError(f"body: {type(body).__name__}; the bytes codec takes bytes")

    def decode(self, data: bytes) -> Any:
        """Give bytes as they are."""
        return data


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class JsonCodec:
    """Bodies as JSON, UTF-8; NaN and infinity are refused both ways."""

    name = "json"
    number = 1

    def __init__(self) -> None:
        # Keyword-free calls on ready-made objects: json.dumps builds an encoder for each call.
        self._write = json.JSONEncoder(
            ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain
        ).encode
        self._read = json.JSONDecoder(parse_constant=_no_constant).decode

    def encode(self, body: Any) -> bytes:
        """Write JSON."""
        try:
            return self._write(body).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise EncodeError(
                f"body: {type(body).__name__} cannot be written as JSON: {error}"
            ) from error

    def decode(self, data: bytes) -> Any:
        """Read JSON."""
        try:
            return self._read(data.decode())
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"body of {len(data)} bytes is not JSON: {error}") from error


class MsgpackCodec:
    """Bodies as msgpack; extension types are refused both ways."""

    name = "msgpack"
    number = 2

    def encode(self, body: Any) -> bytes:
        """Write msgpack."""
        try:
            packed: bytes = msgpack.packb(body, use_bin_type=True, default=plain)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EncodeError(
                f"body: {type(body).__name__} cannot be written as msgpack: {error}"
            ) from error
        return packed

    def decode(self, data: bytes) -> Any:
        """Read msgpack."""
        try:
            return msgpack.unpackb(data, raw=False, ext_hook=_no_extension, strict_map_key=False)
        except (ValueError, msgpack.UnpackException, RecursionError, OverflowError) as error:
            raise DecodeError(f"body of {len(data)} bytes is not msgpack: {error}") from error


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not taken")


BYTES, JSON, MSGPACK = BytesCodec(), JsonCodec(), MsgpackCodec()
BY_NAME: dict[str, Codec] = {codec.name: codec for codec in (BYTES, JSON, MSGPACK)}
BY_NUMBER: dict[int, Codec] = {codec.number: codec for codec in (BYTES, JSON, MSGPACK)}


def by_name(name: str) -> Codec:
    """The codec of a name.

    Raises:
        ConfigurationError: there is none of that name.
    """
    try:
        return BY_NAME[name]
    except (KeyError, TypeError):
        raise ConfigurationError(f"codec: {name!r}; known are {', '.join(BY_NAME)}") from None


def decode(number: int, data: bytes) -> Any:
    """Read a body by the codec number of its record.

    Raises:
        DecodeError: the codec is unknown, or the bytes are not of it.
    """
    codec = BY_NUMBER.get(number)
    if codec is None:
        raise DecodeError(f"body of {len(data)} bytes: codec number {number} is unknown here")
    return codec.decode(data)
