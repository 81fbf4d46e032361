"""Codecs: write bodies as JSON (the default), msgpack, bytes or compressed; never as pickle.

The record holds the number of its codec, so a consumer needs no configuration. Bytes that cannot be
read raise DecodeError; the consumer makes such a message a dead letter with the reason.

JSON is written and read by the standard library, or by msgspec where it is installed. Producers
with and without msgspec write the same bytes: msgspec gets only bodies that both write alike, and
everything else, errors included, is left to the standard library (docs/decisions/0022). How types
are written that JSON does not have: `rmq.kernel.core.forms`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol

import msgpack

from rmq.errors import ConfigurationError, DecodeError, EncodeError, PayloadTooLarge
from rmq.kernel.core import compression
from rmq.kernel.core.compression import CEILING, PLAIN, How
from rmq.kernel.core.forms import JSON_TYPES, to_builtins
from rmq.kernel.core.validation import check_int


class Codec(Protocol):
    """Writes bodies to bytes and reads them back; `number` is stored with each message."""

    name: str
    number: int

    def encode(self, body: Any) -> bytes:
        """Return the bytes of a body; raises EncodeError."""

    def decode(self, data: bytes) -> Any:
        """Return the body that the bytes hold; raises DecodeError."""


class BytesCodec:
    """Writes bodies that are bytes already."""

    name = "bytes"
    number = 0

    def encode(self, body: Any) -> bytes:
        """Return the bytes of a bytes-like body; raises EncodeError for any other."""
        if type(body) is bytes:
            return body
        if isinstance(body, bytes | bytearray | memoryview):
            return bytes(body)
        raise EncodeError(f"body: {type(body).__name__}; the bytes codec takes bytes")

    def decode(self, data: bytes) -> Any:
        """Return the bytes; never raises."""
        return data


class StdlibJson:
    """Writes and reads JSON with the standard library."""

    def __init__(self) -> None:
        # Keyword-free calls on ready-made objects: json.dumps builds an encoder for each call.
        self._write = json.JSONEncoder(
            ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=to_builtins
        ).encode
        self._read = json.JSONDecoder(parse_constant=_no_constant).decode

    def encode(self, body: Any) -> bytes:
        """Write JSON; raises TypeError, ValueError or RecursionError."""
        return self._write(body).encode()

    def decode(self, data: bytes) -> Any:
        """Read JSON; raises ValueError or RecursionError."""
        return self._read(data.decode())


class MsgspecJson:
    """Writes and reads JSON with msgspec, and what it does differently with the standard library.

    Args:
        msgspec: the package.
        stdlib: for everything else.
    """

    def __init__(self, msgspec: Any, stdlib: StdlibJson) -> None:
        self._write = msgspec.json.Encoder().encode
        self._read = msgspec.json.Decoder().decode
        # Before msgspec 0.21 its own errors are no ValueError.
        self._left_to_stdlib = (ValueError, RecursionError, msgspec.MsgspecError)
        self._stdlib = stdlib

    def encode(self, body: Any) -> bytes:
        """Write JSON; raises TypeError, ValueError or RecursionError."""
        try:
            if is_written_alike(body):
                data: bytes = self._write(body)
                return data
        except self._left_to_stdlib:
            pass  # a surrogate, a cycle: the standard library's error is the same everywhere
        return self._stdlib.encode(body)

    def decode(self, data: bytes) -> Any:
        """Read JSON; raises ValueError or RecursionError."""
        try:
            return self._read(data)
        except self._left_to_stdlib:  # a number of 1e999, a lone surrogate, or no JSON
            return self._stdlib.decode(data)


class JsonCodec:
    """Writes bodies as JSON in UTF-8; refuses NaN and infinity when it writes and reads."""

    name = "json"
    number = 1

    @cached_property
    def _json(self) -> StdlibJson | MsgspecJson:
        return installed()  # at the first body: `import rmq` loads no extra

    def encode(self, body: Any) -> bytes:
        """Return the JSON of a body; EncodeError names the part that has none."""
        try:
            return self._json.encode(body)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            found = _find_unwritable(body, self._json.encode)
            raise EncodeError(f"{found} cannot be written as JSON: {error}") from error

    def decode(self, data: bytes) -> Any:
        """Return the body; raises DecodeError for bytes that are not JSON."""
        try:
            return self._json.decode(data)
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"body of {len(data)} bytes is not JSON: {error}") from error


NAMED_DEPTH = 20  # an error names no value that is nested deeper


def _find_unwritable(value: Any, encode: Callable[[Any], bytes], path: str = "body") -> str:
    """Return which value of a body cannot be written, and its type, as `body['at']: complex`."""
    for name, each in _inner(value) if path.count("[") < NAMED_DEPTH else ():
        try:
            encode(each)
        except RecursionError:
            break
        except (TypeError, ValueError, OverflowError):
            return _find_unwritable(each, encode, f"{path}[{name!r:.60}]")
    return f"{path}: {type(value).__name__}"


def _inner(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return what is inside of a map, a list, or a value that is written as one of them."""
    if not isinstance(value, JSON_TYPES):
        try:
            value = to_builtins(value)
        except Exception:  # a model runs code of its user
            return ()
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


# TypeError: a list as the key of a map.
_NOT_MSGPACK = (ValueError, TypeError, msgpack.UnpackException, RecursionError, OverflowError)


_pack: Callable[[Any], bytes] = partial(msgpack.packb, use_bin_type=True, default=to_builtins)


class MsgpackCodec:
    """Writes bodies as msgpack; refuses extension types when it writes and reads."""

    name = "msgpack"
    number = 2

    def encode(self, body: Any) -> bytes:
        """Return the msgpack of a body; EncodeError names the part that has none."""
        try:
            return _pack(body)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            found = _find_unwritable(body, _pack)
            raise EncodeError(f"{found} cannot be written as msgpack: {error}") from error

    def decode(self, data: bytes) -> Any:
        """Return the body; DecodeError for other bytes, and for extension types."""
        try:
            return msgpack.unpackb(data, raw=False, ext_hook=_no_extension, strict_map_key=False)
        except _NOT_MSGPACK as error:
            raise DecodeError(f"body of {len(data)} bytes is not msgpack: {error}") from error


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not accepted")


BYTES, JSON, MSGPACK = BytesCodec(), JsonCodec(), MsgpackCodec()
BY_NAME: dict[str, Codec] = {codec.name: codec for codec in (BYTES, JSON, MSGPACK)}


def by_name(name: str) -> Codec:
    """Return the codec with this name.

    Raises:
        ConfigurationError: no codec has that name.
    """
    try:
        return BY_NAME[name]
    except (KeyError, TypeError):
        raise ConfigurationError(f"codec: {name!r}; known are {', '.join(BY_NAME)}") from None


class Compressed:
    """Writes bodies with another codec and compresses them where that makes them smaller.

    Every consumer reads them without configuration. In Redis: one byte (16 * how + the number of
    the other codec; how: 0 plain, 1 zlib, 2 zstd), then the data. A topic's `max_body` counts these
    bytes.

    Args:
        codec: the codec that writes the body first: "json", "msgpack" or "bytes".
        how: "zlib", or "zstd" (quicker and smaller; it needs the extra `zstd`, for consumers too).
        above: bodies of fewer bytes are not compressed, nor are those that would not get smaller.

    Attributes:
        limit: the most bytes of a body before it is compressed and after it is decompressed; of a
            collecting message, of all its bodies. It protects a consumer from a few bytes that grow
            to gigabytes. It holds for the process: set it on the class, to less than 16 MiB.

    Raises:
        InvalidValue: an argument has another value.
        ConfigurationError: how is "zstd" and its package is missing.
    """

    name = "compressed"
    number = 3
    limit: ClassVar[int] = CEILING

    def __init__(self, codec: str = "json", how: How = "zlib", above: int = 1024) -> None:
        self._inner = by_name(codec)
        self._how = compression.number_of(how)
        self._above = check_int(above, "above", 0, CEILING)
        self._repr = f"rmq.Compressed({codec!r}, {how!r}, above={above})"

    def __repr__(self) -> str:
        return self._repr

    def encode(self, body: Any) -> bytes:
        """Write the body, compressed if that makes it smaller.

        Raises:
            EncodeError: the other codec cannot write it.
            PayloadTooLarge: it is over `limit` before it is compressed: no consumer could read it.
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
        """Read a body, compressed or not.

        Raises:
            DecodeError: it would be larger than `limit`, is cut short or damaged, or was
                compressed in a way that is unknown here.
        """
        codec, plain_bytes = self.unpack(data, self.limit)
        return codec.decode(plain_bytes)

    def unpack(self, data: bytes, max_bytes: int, cut: bool = False) -> tuple[Codec, bytes]:
        """Return the codec that wrote a body, and its bytes decompressed, at most `max_bytes`.

        Where there are more, `cut` returns the first; else that is an error.
        """
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
            read = compression.beginning if cut else compression.decompress
            return codec, read(how, rest, max_bytes)
        if cut:
            return codec, rest[:max_bytes]
        if len(rest) > max_bytes:
            raise DecodeError(f"body of {len(rest)} bytes: the limit of this reader is {max_bytes}")
        return codec, rest


CUSTOM_MIN = 4  # codecs of users have this number or a larger one
COMPRESSED = Compressed()
BY_NUMBER: dict[int, Codec] = {codec.number: codec for codec in (BYTES, JSON, MSGPACK, COMPRESSED)}


class RawCodec:
    """Writes bodies that are bytes of another codec already, under the number of that codec."""

    name = "raw"

    def __init__(self, number: int) -> None:
        self.number = number

    def encode(self, body: Any) -> bytes:
        """Return the bytes unchanged."""
        return bytes(body)

    def decode(self, data: bytes) -> Any:
        """Return the bytes unchanged."""
        return data


def register(codec: Codec) -> Codec:
    """Register a user's codec: it reads every record that names its number.

    Numbers 4 to 7 are for such codecs. A codec with a lower number writes bytes that RMQ's own
    codec of that number reads.

    Raises:
        ConfigurationError: the number is not 0 to 7, or another codec has it.
    """
    number = getattr(codec, "number", None)
    if not isinstance(number, int) or not 0 <= number <= 7:
        raise ConfigurationError(f"codec: {codec!r} has number {number!r}; give it 4 to 7")
    registered = BY_NUMBER.setdefault(number, codec)
    if number >= CUSTOM_MIN and type(registered) is not type(codec):
        raise ConfigurationError(
            f"codec: number {number} of {codec!r} is that of {registered!r} already; "
            "give it another"
        )
    return codec


def decode(number: int, data: bytes) -> Any:
    """Read a body by the codec number of its record.

    Raises:
        DecodeError: the codec is unknown, or it did not write these bytes.
    """
    codec = BY_NUMBER.get(number)
    if codec is None:
        raise DecodeError(f"body of {len(data)} bytes: codec number {number} is unknown here")
    return codec.decode(data)


class Encoded:
    """A codec for bodies that are encoded already."""

    def __init__(self, number: int) -> None:
        known = BY_NUMBER.get(number)
        self.number = number
        self.name = known.name if known else f"codec {number}"

    def encode(self, body: Any) -> bytes:
        """Return the body as it is."""
        return bytes(body)

    def decode(self, data: bytes) -> Any:
        """Decode with the codec of that number."""
        return decode(self.number, data)


class SharedLimit:
    """Reads bodies that are in memory at a time: decompressed they share `Compressed.limit`.

    So a page of messages, or a collecting message, grows no larger than one body may.
    """

    def __init__(self) -> None:
        self._left = Compressed.limit

    def unpack(self, number: int, data: bytes) -> tuple[int, bytes]:
        """Return the number of the codec that wrote a body, and the bytes that it wrote.

        Raises:
            DecodeError: they are damaged, or too many. It costs half of what is left: else a page
                of such bodies would take as long as if they all were read.
        """
        if number != Compressed.number:
            return number, data
        left = self._left
        self._left //= 2
        codec, plain_bytes = COMPRESSED.unpack(data, left)
        self._left = left - len(plain_bytes)
        return codec.number, plain_bytes

    def decode(self, number: int, data: bytes) -> Any:
        """Read a body; raises as `decode`."""
        return decode(*self.unpack(number, data))


def decode_all(number: int, pieces: Iterable[bytes]) -> list[Any]:
    """Read the bodies of a collecting message.

    Raises:
        DecodeError: the codec is unknown, or it did not write one of the bodies.
    """
    shared = SharedLimit()
    return [shared.decode(number, piece) for piece in pieces]


MSGSPEC_MIN = (0, 19)  # older ones read some integers of more than 64 bits as other numbers

_SCALARS = frozenset((str, int, bool, type(None)))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def is_written_alike(body: Any) -> bool:
    """Whether msgspec and the standard library write the same bytes for a body.

    They do for exact builtin types. msgspec writes some others differently (an infinite Decimal,
    the members of a set, subclasses); NaN would become null, and floats with an exponent look
    different.
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
    if kind is float:
        return bool(1e-4 <= abs(body) < 1e16 or body == 0)
    return kind in _SCALARS


def installed() -> StdlibJson | MsgspecJson:
    """Return what writes and reads JSON here: msgspec if it is installed."""
    stdlib = StdlibJson()
    try:
        msgspec: Any = importlib.import_module("msgspec")
    except ImportError:
        return stdlib
    version = tuple(int(part) for part in msgspec.__version__.split(".")[:2])
    return MsgspecJson(msgspec, stdlib) if version >= MSGSPEC_MIN else stdlib
