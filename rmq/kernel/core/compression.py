"""Compress bytes with zlib or zstd, and decompress them up to a limit.

The docstring of `rmq.kernel.core.codec.Compressed` describes the format of a compressed body.
"""

from __future__ import annotations

import threading
import zlib
from typing import Any, Literal

from rmq.errors import ConfigurationError, DecodeError, InvalidValue
from rmq.kernel.core import packages
from rmq.kernel.core.body_limits import BODY_CEILING

How = Literal["zlib", "zstd"]

PLAIN, ZLIB, ZSTD = 0, 1, 2  # as written in a body
NUMBERS: dict[str, int] = {"zlib": ZLIB, "zstd": ZSTD}

_zstd = threading.local()  # zstd's objects are expensive to make, and not thread-safe


def number_of(how: object) -> int:
    """Return the number of a compression method.

    Raises:
        InvalidValue: There is no such method.
        ConfigurationError: The package of the method is missing.
    """
    if not isinstance(how, str) or how not in NUMBERS:
        raise InvalidValue(f"how: {how!r}; give {' or '.join(map(repr, NUMBERS))}")
    if how == "zstd":
        _zstandard()
    return NUMBERS[how]


def compress(how: int, data: bytes) -> bytes:
    """Compress bytes.

    The result has a checksum. With the method zstd, the result also has the decompressed size.
    """
    if how == ZLIB:
        return zlib.compress(data)
    writer = getattr(_zstd, "writer", None)
    if writer is None:
        writer = _zstd.writer = _zstandard().ZstdCompressor(write_checksum=True)
    compressed: bytes = writer.compress(data)
    return compressed


def decompress(how: int, data: bytes, max_bytes: int) -> bytes:
    """Return the decompressed bytes.

    Args:
        how: ZLIB or ZSTD.
        data: Compressed bytes.
        max_bytes: Maximum size of the result, in bytes. The function does not trust the size that
            the data contain.

    Raises:
        DecodeError: The result would be larger than `max_bytes`, the data are incomplete or
            damaged, or the package zstandard is missing.
    """
    return _from_zlib(data, max_bytes) if how == ZLIB else _from_zstd(data, max_bytes)


def decompress_beginning(how: int, data: bytes, most: int) -> bytes:
    """Decompress only the decompress_beginning of the data.

    Args:
        how: ZLIB or ZSTD.
        data: Compressed bytes.
        most: Maximum size of the result, in bytes.

    Raises:
        DecodeError: These bytes are damaged, or the package zstandard is missing.
    """
    if how == ZLIB:
        return _from_zlib(data, most, cut=True)
    zstandard = _zstandard_for(data)
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=BODY_CEILING).stream_reader(data)
        first: bytes = reader.read(most)
    except zstandard.ZstdError as error:
        raise DecodeError(f"body of {len(data)} bytes is not zstd: {error}") from error
    return first


def _from_zlib(data: bytes, max_bytes: int, cut: bool = False) -> bytes:
    reader = zlib.decompressobj()
    try:
        result = reader.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise DecodeError(f"body of {len(data)} bytes is not zlib: {error}") from error
    if cut:
        return result[:max_bytes]
    if len(result) > max_bytes:
        raise _too_large(data, max_bytes)
    if not reader.eof:
        raise DecodeError(f"body of {len(data)} bytes of zlib is cut short")
    if reader.unused_data:
        raise DecodeError(
            f"body of {len(data)} bytes of zlib: {len(reader.unused_data)} of them come after "
            "its end"
        )
    return result


def _from_zstd(data: bytes, max_bytes: int) -> bytes:
    zstandard = _zstandard_for(data)
    try:
        # A frame begins with its size, and zstd never exceeds it, so checking the size is enough.
        size = zstandard.get_frame_parameters(data).content_size
        if size == zstandard.CONTENTSIZE_UNKNOWN:
            raise DecodeError(f"body of {len(data)} bytes of zstd does not say its size")
        if size > max_bytes:
            raise _too_large(data, max_bytes)
        reader = getattr(_zstd, "reader", None)
        if reader is None:
            reader = _zstd.reader = zstandard.ZstdDecompressor(max_window_size=BODY_CEILING)
        result: bytes = reader.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DecodeError(f"body of {len(data)} bytes is not zstd: {error}") from error
    return result


def _zstandard() -> Any:
    return packages.load("zstandard", "zstd", 'how="zstd"')


def _zstandard_for(data: bytes) -> Any:
    try:
        return _zstandard()
    except ConfigurationError as error:
        raise DecodeError(f"body of {len(data)} bytes: {error}") from error


def _too_large(data: bytes, max_bytes: int) -> DecodeError:
    return DecodeError(
        f"body of {len(data)} compressed bytes has more than {max_bytes} bytes decompressed, the "
        "limit of this reader (rmq.Compressed.limit), which bodies that are read together share"
    )
