"""Bodies to bytes and back: JSON by default, msgpack, plain bytes, compressed; pickle never.

The codec's number travels in the record, so a reader needs no configuration. Bytes that cannot be
read raise DecodeError here; the consumer sends such a message to the DeadQueue with the reason.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

import msgpack

from rmq.core import compression
from rmq.core.compression import CEILING, PLAIN, How
from rmq.core.validation import check_int
from rmq.errors import ConfigurationError, DecodeError, EncodeError, PayloadTooLarge


class Codec(Protocol):
    """Writes and reads bodies."""

    name: str
    number: int

    def encode(self, body: Any) -> bytes:
        """The bytes of a body; raises EncodeError."""

    def decode(self, data: bytes) -> Any:
        """The body of bytes; raises DecodeError."""


def to_builtins(value: Any) -> Any:
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
            ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=to_builtins
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


# TypeError: a list as the key of a map.
_NOT_MSGPACK = (ValueError, TypeError, msgpack.UnpackException, RecursionError, OverflowError)


class MsgpackCodec:
    """Bodies as msgpack; extension types are refused both ways."""

    name = "msgpack"
    number = 2

    def encode(self, body: Any) -> bytes:
        """Write msgpack."""
        try:
            packed: bytes = msgpack.packb(body, use_bin_type=True, default=to_builtins)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise EncodeError(
                f"body: {type(body).__name__} cannot be written as msgpack: {error}"
            ) from error
        return packed

    def decode(self, data: bytes) -> Any:
        """Read msgpack."""
        try:
            return msgpack.unpackb(data, raw=False, ext_hook=_no_extension, strict_map_key=False)
        except _NOT_MSGPACK as error:
            raise DecodeError(f"body of {len(data)} bytes is not msgpack: {error}") from error


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not taken")


BYTES, JSON, MSGPACK = BytesCodec(), JsonCodec(), MsgpackCodec()
BY_NAME: dict[str, Codec] = {codec.name: codec for codec in (BYTES, JSON, MSGPACK)}


def by_name(name: str) -> Codec:
    """The codec of a name.

    Raises:
        ConfigurationError: there is none of that name.
    """
    try:
        return BY_NAME[name]
    except (KeyError, TypeError):
        raise ConfigurationError(f"codec: {name!r}; known are {', '.join(BY_NAME)}") from None


class Compressed:
    """Bodies of another codec, compressed where that pays. Every consumer reads them by itself.

    In Redis: one byte (16 * how + the number of the other codec; how: 0 plain, 1 zlib, 2 zstd),
    then the data. A topic's `max_body` counts these bytes.

    Args:
        codec: what writes the body first: "json", "msgpack" or "bytes".
        how: "zlib", or "zstd" (quicker and smaller; `pip install "rmq[zstd]"`, for consumers too).
        above: bodies of fewer bytes are left as they are, and so are those that do not shrink.

    Attributes:
        limit: bytes that a body may come to, both ways; of a collecting message, all its bodies. It
            guards a consumer against a few bytes that grow to gigabytes. For the whole process:
            set it on the class, lower than the 16 MiB it is.

    Raises:
        InvalidValue: an argument is none of these.
        ConfigurationError: "zstd" without the package.
    """

    name = "compressed"
    number = 3
    limit: ClassVar[int] = CEILING

    def __init__(self, codec: str = "json", how: How = "zlib", above: int = 1024) -> None:
        self._inner = by_name(codec)
        self._how = compression.number_of(how)
        self._above = check_int(above, "above", 0, CEILING)
        self._shown = f"rmq.Compressed({codec!r}, {how!r}, above={above})"

    def __repr__(self) -> str:
        return self._shown

    def encode(self, body: Any) -> bytes:
        """Write the body, compressed where that pays.

        Raises:
            EncodeError: the other codec cannot write it.
            PayloadTooLarge: it is over `limit` before it is compressed; nobody could read it.
        """
        data, how = self._inner.encode(body), PLAIN
        if len(data) > self.limit:
            raise PayloadTooLarge(
                f"body: {len(data)} bytes before it is compressed; at most {self.limit} can be read"
            )
        if len(data) >= self._above:
            smaller = compression.compress(self._how, data)
            if len(smaller) < len(data):
                data, how = smaller, self._how
        return bytes((how << 4 | self._inner.number,)) + data

    def decode(self, data: bytes) -> Any:
        """Read a body, whichever way it was compressed.

        Raises:
            DecodeError: it comes to more than `limit`, is cut short or damaged, or its way is
                unknown here.
        """
        codec, plain_bytes = self.unpack(data, self.limit)
        return codec.decode(plain_bytes)

    def decode_all(self, pieces: Iterable[bytes]) -> list[Any]:
        """Read the bodies of a collecting message, which share `limit`."""
        found, left = [], self.limit
        for piece in pieces:
            codec, plain_bytes = self.unpack(piece, left)
            left -= len(plain_bytes)
            found.append(codec.decode(plain_bytes))
        return found

    def unpack(self, data: bytes, most: int) -> tuple[Codec, bytes]:
        """The codec that wrote a body, and what it wrote; at most so many bytes come out."""
        if not data:
            raise DecodeError("body of 0 bytes is not compressed: its first byte says how")
        how, number = data[0] >> 4, data[0] & 15
        codec = BY_NUMBER.get(number)
        if how > max(compression.NUMBERS.values()) or codec is None or codec is COMPRESSED:
            raise DecodeError(
                f"body of {len(data)} bytes: its first byte, {data[0]}, names no way to read it"
            )
        rest = data[1:]
        if how != PLAIN:
            rest = compression.decompress(how, rest, most)
        elif len(rest) > most:
            raise DecodeError(f"body of {len(rest)} bytes: the limit of this reader is {most}")
        return codec, rest


OWN_MIN = 4  # the numbers that RMQ itself never uses begin here
COMPRESSED = Compressed()
BY_NUMBER: dict[int, Codec] = {codec.number: codec for codec in (BYTES, JSON, MSGPACK, COMPRESSED)}


def register(codec: Codec) -> Codec:
    """Make a codec of one's own known: every record that names its number is read by it.

    Numbers 4 to 7 are for such codecs. One with a lower number writes what RMQ's own codec of that
    number reads.

    Raises:
        ConfigurationError: the number is none of these, or another codec has it.
    """
    number = getattr(codec, "number", None)
    if not isinstance(number, int) or not 0 <= number <= 7:
        raise ConfigurationError(f"codec: {codec!r} has number {number!r}; give it 4 to 7")
    known = BY_NUMBER.setdefault(number, codec)
    if number >= OWN_MIN and type(known) is not type(codec):
        raise ConfigurationError(
            f"codec: number {number} of {codec!r} is that of {known!r} already; give it another"
        )
    return codec


def decode(number: int, data: bytes) -> Any:
    """Read a body by the codec number of its record.

    Raises:
        DecodeError: the codec is unknown, or the bytes are not of it.
    """
    codec = BY_NUMBER.get(number)
    if codec is None:
        raise DecodeError(f"body of {len(data)} bytes: codec number {number} is unknown here")
    return codec.decode(data)


def decode_all(number: int, pieces: Iterable[bytes]) -> list[Any]:
    """Read the bodies of a collecting message.

    Raises:
        DecodeError: the codec is unknown, or one of them is not of it.
    """
    if number == Compressed.number:
        return COMPRESSED.decode_all(pieces)
    return [decode(number, piece) for piece in pieces]
