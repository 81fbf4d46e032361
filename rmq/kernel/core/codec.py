"""Encode and decode bodies: JSON (the default), msgpack or bytes, also compressed or encrypted.

Each stored message has the number of its codec, so a consumer needs no configuration. If a codec
cannot read a body, it raises DecodeError. There is no pickle codec. Custom codecs have the numbers
4 to 7. Installed packages list their codecs as entry points (`GROUP`).

See `json_codec` for JSON, `json_forms` for types that JSON lacks, `compression`, `encryption`, and
`object_store` for bodies outside of Redis.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Protocol

import msgpack

from rmq.errors import (
    ConfigurationError,
    DecodeError,
    EncodeError,
    InvalidValue,
    PayloadTooLarge,
)  # fmt: skip
from rmq.kernel.core import compression, encryption, object_store, packages
from rmq.kernel.core.body_limits import BODY_CEILING
from rmq.kernel.core.body_types import plain_form
from rmq.kernel.core.compression import PLAIN, How
from rmq.kernel.core.encryption import Keys
from rmq.kernel.core.json_codec import JsonCodec
from rmq.kernel.core.json_forms import find_unwritable, to_builtins
from rmq.kernel.core.validation import check_int


class Codec(Protocol):
    """Encodes and decodes bodies.

    Each message is stored with the `number` of the codec that encoded its body.
    """

    name: str
    number: int

    def encode(self, body: Any) -> bytes:
        """Encode a body as bytes, or raise EncodeError."""

    def decode(self, data: bytes) -> Any:
        """Decode a body from bytes, or raise DecodeError."""


class BytesCodec:
    """Writes bodies that are bytes."""

    name = "bytes"
    number = 0

    def encode(self, body: Any) -> bytes:
        """Return a bytes-like body as bytes. Raise EncodeError for any other body."""
        if type(body) is bytes:
            return body
        if isinstance(body, bytes | bytearray | memoryview):
            return bytes(body)
        raise EncodeError(f"body: {type(body).__name__}; the bytes codec takes bytes")

    def decode(self, data: bytes) -> Any:
        """Return the bytes unchanged."""
        return data


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not accepted")


# TypeError: a list as the key of a map.
_NOT_MSGPACK = (ValueError, TypeError, msgpack.UnpackException, RecursionError, OverflowError)
_packb = partial(msgpack.packb, use_bin_type=True)
_unpack: Callable[[bytes], Any] = partial(
    msgpack.unpackb, raw=False, ext_hook=_no_extension, strict_map_key=False
)
_form = partial(plain_form, write=partial(_packb, default=to_builtins), read=_unpack)
_pack: Callable[[Any], bytes] = partial(_packb, default=_form)


class MsgpackCodec:
    """Writes bodies as msgpack, and refuses extension types."""

    name = "msgpack"
    number = 2

    def encode(self, body: Any) -> bytes:
        """Encode a body as msgpack.

        If msgpack cannot write a part of the body, raise an EncodeError that names this part.
        """
        try:
            return _pack(body)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            found = find_unwritable(body, _pack)
            raise EncodeError(f"{found} cannot be written as msgpack: {error}") from error

    def decode(self, data: bytes) -> Any:
        """Decode a body. Raise DecodeError for invalid bytes and for extension types."""
        try:
            return _unpack(data)
        except _NOT_MSGPACK as error:
            raise DecodeError(f"body of {len(data)} bytes is not msgpack: {error}") from error


BYTES, JSON, MSGPACK = BytesCodec(), JsonCodec(), MsgpackCodec()
BY_NAME: dict[str, Codec] = {codec.name: codec for codec in (BYTES, JSON, MSGPACK)}
GROUP = "rmq.codecs"  # entry points in which installed packages list their codecs
_loading = threading.RLock()  # reentrant: a package may look up a codec while it is loaded
_unloadable: dict[str, str] | None = None


def load_installed() -> dict[str, str]:
    """Register the codecs of installed packages once.

    Returns:
        A dict with the name of each codec that cannot be used, and the reason.
    """
    global _unloadable
    with _loading:
        if _unloadable is None:
            _unloadable = {}
            for entry in packages.entry_points(GROUP):
                try:
                    found = entry.load()
                    codec = register(found() if isinstance(found, type) else found)
                    BY_NAME.setdefault(entry.name, codec)
                except Exception as error:  # the package's own code may raise anything
                    _unloadable[entry.name] = f"{type(error).__name__}: {error}"
        return _unloadable


def by_name(name: str) -> Codec:
    """Return the codec with this name, from RMQ or from an installed package.

    Raises:
        ConfigurationError: There is no codec with this name, or it cannot be used.
    """
    if not isinstance(name, str):
        raise ConfigurationError(f"codec: {name!r}; give a name, or an object with encode, decode")
    if name not in BY_NAME:
        why = load_installed().get(name)
        if why:
            raise ConfigurationError(f"codec: {name!r} of an installed package: {why}")
    if name not in BY_NAME:
        raise ConfigurationError(f"codec: {name!r}; known are {', '.join(BY_NAME)}")
    return BY_NAME[name]


def by_number(number: int) -> Codec | None:
    """Return the codec with this number, or None if no installed package has it."""
    if number not in BY_NUMBER and CUSTOM_MIN <= number <= CUSTOM_MAX:
        load_installed()
    return BY_NUMBER.get(number)


class Compressed:
    """Writes bodies with another codec and compresses them if that makes them smaller.

    Every consumer reads these bodies without configuration. A topic's `max_body` limits the size of
    the stored body.

    The first byte of a stored body is 16 * method + the number of the other codec. The methods are
    0 (plain), 1 (zlib), 2 (zstd), 3 (encrypted) and 4 (offloaded).

    Args:
        codec: Codec that writes the body first: "json", "msgpack", "bytes", or the name of a codec
            from an installed package.
        how: "zlib" or "zstd". zstd is faster and compresses more, but producers and consumers need
            the extra `zstd`.
        above: Minimum size of a body that is compressed, in bytes. If compression would not make a
            body smaller, the body is not compressed.

    Attributes:
        limit: Largest body before compression and after decompression, in bytes. For a message that
            collects several bodies (`merge="collect"`), the limit applies to the sum of its bodies.
            The limit protects a consumer from a small body that expands to gigabytes. To change the
            limit for the whole process, set it on the class, to less than 16 MiB.

    Raises:
        InvalidValue: An argument has an invalid value.
        ConfigurationError: `how` is "zstd" and its package is missing.
    """

    name = "compressed"
    number = 3
    limit: ClassVar[int] = BODY_CEILING

    def __init__(self, codec: str = "json", how: How = "zlib", above: int = 1024) -> None:
        self._inner = by_name(codec)
        self._how = compression.number_of(how)
        self._above = check_int(above, "above", 0, BODY_CEILING)
        self._repr = f"rmq.Compressed({codec!r}, {how!r}, above={above})"

    def __repr__(self) -> str:
        return self._repr

    def encode(self, body: Any) -> bytes:
        """Encode the body, and compress it if that makes it smaller.

        Raises:
            EncodeError: The other codec cannot write the body.
            PayloadTooLarge: The body is larger than `limit` before compression, so no consumer
                could read it.
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
        """Read a plain, compressed or encrypted body.

        Raises:
            DecodeError: The body is damaged, has an unknown compression, or is larger than `limit`
                after decompression. The error is also raised if this process does not have the key.
        """
        codec, plain_bytes = self.unpack(data, self.limit)
        return decode(codec.number, plain_bytes)

    def unpack(self, data: bytes, max_bytes: int, cut: bool = False) -> tuple[Codec, bytes]:
        """Decompress a body. Return the codec that wrote it, and the decompressed bytes.

        If the body is larger than `max_bytes` after decompression, raise DecodeError. If `cut` is
        True, return only the first `max_bytes` bytes instead.
        """
        data = _decrypted(data)
        if not data:
            raise DecodeError("body of 0 bytes: the first byte, which names its format, is missing")
        how, number = data[0] >> 4, data[0] & 15
        codec = by_number(number)
        if codec is None and number <= CUSTOM_MAX:
            raise _unknown(number, data)
        if how > max(compression.NUMBERS.values()) or codec is None or codec is COMPRESSED:
            raise DecodeError(f"body of {len(data)} bytes: its first byte, {data[0]}, is unknown")
        rest = data[1:]
        if how != PLAIN:
            read = compression.decompress_beginning if cut else compression.decompress
            return codec, read(how, rest, max_bytes)
        if cut:
            return codec, rest[:max_bytes]
        if len(rest) > max_bytes:
            raise DecodeError(f"body of {len(rest)} bytes: the limit of this reader is {max_bytes}")
        return codec, rest


_SEALED = bytes((encryption.FIRST,))
NO_ENCRYPTED_LIST = (
    "several encrypted bodies, of a merged message, would become one that is not encrypted; "
    "redrive the dead letter where it is"
)
NO_COPY = (
    "its body is in a store, where one message alone may have it; redrive the dead letter where it "
    "is, or to another topic"
)


def _decrypted(data: bytes) -> bytes:
    if data[:1] != _SEALED:
        if data[:1] == object_store.FIRST:
            raise object_store.not_read(data[1:])
        return data
    try:
        return encryption.unseal(data)
    except DecodeError:
        if _unloadable is not None:
            raise
    load_installed()  # a codec of a package may have the key
    return encryption.unseal(data)


class Encrypted:
    """Writes bodies with another codec and encrypts them with AES-256-GCM.

    You must install the extra `encrypted`.

    A process decrypts bodies with the keys of all its `Encrypted` objects, and with the keys in the
    environment variable RMQ_KEYS_FILE or RMQ_KEYS. Each key works for every topic. If a process
    does not have the key of a message, the message becomes a dead letter. You can redrive the dead
    letter later.

    A topic's `max_body` limits the size of the encrypted body. Encryption adds 31 bytes and the id
    of the key.

    Only the body is encrypted and authenticated. Headers, type, keys, times and priority are not.

    Args:
        keys: Map from the id of a key to the key. An id has 1 to 64 characters of A-Z a-z 0-9 . _
            -, and a key has 32 bytes. RMQ encrypts with the last key, and decrypts with all keys.
            You may change the map at any time. You may also give a function that returns a map. RMQ
            calls this function for each body. Default: the keys in the environment variables.
        inner: Codec that writes the body before encryption. You may give any codec of a topic, or
            `rmq.Compressed()`.

    Raises:
        InvalidValue: A key is not valid. The error shows the id of the key, never the key itself.
        ConfigurationError: The package `cryptography` is missing.
    """

    name = "encrypted"
    number = Compressed.number

    def __init__(self, keys: Keys | None = None, inner: str | Codec = "json") -> None:
        self._repr = f"rmq.Encrypted(inner={inner!r})"
        self._source = encryption.source_of(keys)
        del keys  # the next lines may raise, and a traceback must not show keys (encryption.py)
        self._source.open()
        self._inner = by_name(inner) if isinstance(inner, str) else register(inner)
        if isinstance(self._inner, Encrypted):
            raise InvalidValue("inner: it is encrypted already")
        if isinstance(self._inner, Offloaded):
            raise InvalidValue("inner: it is offloaded; give rmq.Offloaded the rmq.Encrypted")

    def __repr__(self) -> str:
        return self._repr

    def encode(self, body: Any) -> bytes:
        """Write the body and encrypt it.

        Raises:
            EncodeError: The other codec cannot write the body.
            InvalidValue, ConfigurationError: There is no key.
        """
        return encryption.seal(self._source, _coded(self._inner, body))

    def decode(self, data: bytes) -> Any:
        """Read a body. Raises DecodeError in the same cases as `Compressed.decode`."""
        return COMPRESSED.decode(data)


def _coded(codec: Codec, body: Any) -> bytes:
    """Encode a body in the format that compressed and encrypted bodies share (codec 3)."""
    data, number = codec.encode(body), codec.number
    return data if number == Compressed.number else bytes((PLAIN << 4 | number,)) + data


class Offloaded:
    """Writes bodies with another codec, and stores large bodies outside of Redis.

    The store is any file system that fsspec supports (the extra `offloaded`). RMQ writes a large
    body to the store as an object. The message then contains a reference to the object, with the
    object's size and SHA-256. RMQ writes the object before the message. RMQ removes the object
    after the message is settled, cancelled, expired or purged.

    Only `send` and `send_many` use the store. If a message has a merge key, or comes from a
    schedule, a stage or an outbox, its body is in Redis.

    A process reads bodies from the stores of all its `Offloaded` objects, and from the stores in
    the environment variable RMQ_STORES. Each store works for every topic. If RMQ cannot read an
    object, the message fails and is retried, and then becomes a dead letter. Use each store, or
    each folder of a store, for one Redis only.

    Args:
        store: URL of the store, such as file:///srv/bodies, s3://bucket/folder or memory://folder.
            Options come from fsspec's own configuration. A URL with a password is refused.
        above: Maximum size of a body that is stored in Redis, in bytes.
        inner: Codec that writes the body before RMQ stores it. You may give any codec of a topic,
            `rmq.Compressed()` or `rmq.Encrypted(keys)`.

    Attributes:
        limit: Maximum size of an object that is written or read, in bytes. The limit applies to the
            whole process.

    Raises:
        InvalidValue: An argument has an invalid value.
        ConfigurationError: The package fsspec is missing, or fsspec needs another package for this
            store.
    """

    name = "offloaded"
    number = Compressed.number
    limit: ClassVar[int] = 256 * 1024 * 1024

    def __init__(self, store: str, above: int = 262_144, inner: str | Codec = "json") -> None:
        self.store = object_store.open_store(store)
        self.above = check_int(above, "above", 0, BODY_CEILING)
        self._inner = by_name(inner) if isinstance(inner, str) else register(inner)
        if isinstance(self._inner, Offloaded):
            raise InvalidValue("inner: it is offloaded already")
        self._repr = f"rmq.Offloaded({store!r}, above={above}, inner={inner!r})"

    @property
    def inner(self) -> Codec:
        """The codec that writes a body before RMQ stores it."""
        return self._inner

    def __repr__(self) -> str:
        return self._repr

    def encode(self, body: Any) -> bytes:
        """Encode the body. RMQ then stores the bytes in Redis, or in the store as an object.

        Raises:
            EncodeError: The other codec cannot write the body.
            PayloadTooLarge: The body is larger than `limit`.
        """
        if type(body) is Coded:
            return body
        data = _coded(self._inner, body)
        if len(data) > self.limit:
            raise PayloadTooLarge(f"body: {len(data)} bytes; at most {self.limit} can be offloaded")
        return data

    def decode(self, data: bytes) -> Any:
        """Read a body from Redis. Raises DecodeError in the same cases as `Compressed.decode`."""
        return COMPRESSED.decode(data)


class Coded(bytes):
    """The result of `Offloaded`: the encoded body, or the reference to its object in the store."""


def decode_object(data: bytes) -> Any:
    """Read a stored object, or raise DecodeError."""
    codec, plain_bytes = COMPRESSED.unpack(data, max(Compressed.limit, len(data)))
    return decode(codec.number, plain_bytes)


def reference_of(number: int, data: bytes) -> bytes | None:
    """Return the reference to a body in an object store. Return None if the body is in Redis."""
    is_offloaded = number == Compressed.number and data[:1] == object_store.FIRST
    return data[1:] if is_offloaded else None


CUSTOM_MIN, CUSTOM_MAX = 4, 7  # numbers of custom codecs
COMPRESSED = Compressed()
_OWN = (BytesCodec, JsonCodec, MsgpackCodec, Compressed, Encrypted, Offloaded)
BY_NUMBER: dict[int, Codec] = {codec.number: codec for codec in (BYTES, JSON, MSGPACK, COMPRESSED)}


class RawCodec:
    """Stores bytes that another codec has encoded.

    RMQ stores the number of the other codec with the message.
    """

    name = "raw"
    passes_bytes = True

    def __init__(self, number: int) -> None:
        self.number = number

    def encode(self, body: Any) -> bytes:
        """Return the bytes unchanged."""
        return bytes(body)

    def decode(self, data: bytes) -> Any:
        """Return the bytes unchanged."""
        return data


def register(codec: Codec) -> Codec:
    """Register a custom codec, so that it decodes every body with the codec's number.

    The function does not register a codec with the attribute `passes_bytes`, because another codec
    encodes the bodies.

    Raises:
        ConfigurationError: The number is not 4 to 7, or another codec has it.
    """
    number = getattr(codec, "number", None)
    if not isinstance(number, int) or not 0 <= number <= CUSTOM_MAX:
        raise ConfigurationError(f"codec: {codec!r} has number {number!r}; give it 4 to 7")
    if isinstance(codec, _OWN) or getattr(codec, "passes_bytes", False):
        return codec
    registered = BY_NUMBER.setdefault(number, codec)
    if type(registered) is not type(codec):
        raise ConfigurationError(
            f"codec: number {number} of {codec!r} is already used by {registered!r}; "
            + ("give it another number" if number >= CUSTOM_MIN else "give it 4 to 7")
        )
    return codec


def decode(number: int, data: bytes) -> Any:
    """Read a body with the codec that has this number.

    Raises:
        DecodeError: The codec is unknown, or it did not write these bytes.
    """
    codec = by_number(number)
    if codec is None:
        raise _unknown(number, data)
    if number < CUSTOM_MIN:
        return codec.decode(data)
    try:
        return codec.decode(data)
    except DecodeError:
        raise
    except Exception as error:  # custom codecs may raise anything
        name = getattr(codec, "name", type(codec).__name__)
        raise DecodeError(f"body of {len(data)} bytes is not {name}: {error!r:.200}") from error


def is_encrypted(number: int, data: bytes) -> bool:
    """Return whether a body with this codec number is encrypted."""
    return number == Compressed.number and data[:1] == _SEALED


def _unknown(number: int, data: bytes) -> DecodeError:
    why = "; ".join(f"{name} cannot be used: {why}" for name, why in load_installed().items())
    return DecodeError(
        f"body of {len(data)} bytes: codec number {number} is unknown here; "
        + (why or "install the package that has it (docs/codecs.md)")
    )


class Encoded:
    """Stores bodies that are already encoded."""

    passes_bytes = True

    def __init__(self, number: int) -> None:
        known = by_number(number)
        self.number = number
        self.name = known.name if known else f"codec {number}"

    def encode(self, body: Any) -> bytes:
        """Return the body unchanged."""
        return bytes(body)

    def decode(self, data: bytes) -> Any:
        """Decode the bytes with the codec that encoded them."""
        return decode(self.number, data)


class SharedLimit:
    """Reads several bodies, and limits their total size after decompression.

    The limit is `Compressed.limit`. So a page of messages, or a message that collects several
    bodies, needs no more memory than one body.
    """

    def __init__(self) -> None:
        self._left = Compressed.limit

    def unpack(self, number: int, data: bytes) -> tuple[int, bytes]:
        """Decompress a body. Return the number of its codec, and the bytes that this codec wrote.

        Raises:
            DecodeError: The bytes are damaged, or are larger than the remaining limit. Each error
                halves the remaining limit, so that many damaged bodies do not take long.
        """
        if number != Compressed.number:
            return number, data
        # Before the limit is checked: a missing key must not use up the limit.
        data = _decrypted(data)
        left = self._left
        self._left //= 2
        codec, plain_bytes = COMPRESSED.unpack(data, left)
        self._left = left - len(plain_bytes)
        return codec.number, plain_bytes

    def decode(self, number: int, data: bytes) -> Any:
        """Read a body. Raises DecodeError in the same cases as the module's function `decode`."""
        return decode(*self.unpack(number, data))


def decode_all(number: int, pieces: Iterable[bytes]) -> list[Any]:
    """Read all bodies of a message that collects several bodies.

    Raises:
        DecodeError: The codec is unknown, or it did not write one of the bodies.
    """
    shared = SharedLimit()
    return [shared.decode(number, piece) for piece in pieces]
