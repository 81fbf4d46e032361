"""Bytes to fewer bytes and back, with a guard: nothing grows beyond what the caller allows.

What the bytes mean is the codec's matter (`rmq.core.codec.Compressed`).
"""

from __future__ import annotations

import threading
import zlib
from typing import Any, Literal

from rmq.core import optional_imports
from rmq.errors import ConfigurationError, DecodeError, InvalidValue

How = Literal["zlib", "zstd"]

PLAIN, ZLIB, ZSTD = 0, 1, 2  # as they stand in a body
NUMBERS: dict[str, int] = {"zlib": ZLIB, "zstd": ZSTD}
CEILING = 16 * 1024 * 1024  # bytes that one body may come to; rmq.core.settings.BODY_CEILING

_kept = threading.local()  # zstd's objects: dear to make, and of one thread at a time


def number_of(how: object) -> int:
    """The number of a way to compress.

    Raises:
        InvalidValue: there is no such way; ConfigurationError: its package is missing.
    """
    if not isinstance(how, str) or how not in NUMBERS:
        raise InvalidValue(f"how: {how!r}; give {' or '.join(map(repr, NUMBERS))}")
    if how == "zstd":
        _zstandard()
    return NUMBERS[how]


def compress(how: int, data: bytes) -> bytes:
    """Compress. What zstd writes says its size and carries a checksum, as zlib's does."""
    if how == ZLIB:
        return zlib.compress(data)
    writer = getattr(_kept, "writer", None)
    if writer is None:
        writer = _kept.writer = _zstandard().ZstdCompressor(write_checksum=True)
    made: bytes = writer.compress(data)
    return made


def decompress(how: int, data: bytes, most: int) -> bytes:
    """Undo `shrink`.

    Args:
        how: ZLIB or ZSTD.
        data: what was compressed.
        most: bytes that may come out. No more than that is ever made, whatever the data say.

    Raises:
        DecodeError: they would come to more, are cut short or damaged, or zstandard is missing.
    """
    return _from_zlib(data, most) if how == ZLIB else _from_zstd(data, most)


def _from_zlib(data: bytes, most: int) -> bytes:
    reader = zlib.decompressobj()
    try:
        made = reader.decompress(data, most + 1)
    except zlib.error as error:
        raise DecodeError(f"body of {len(data)} bytes is not zlib: {error}") from error
    if len(made) > most:
        raise _too_large(data, most)
    if not reader.eof:
        raise DecodeError(f"body of {len(data)} bytes of zlib is cut short")
    if reader.unused_data:
        raise DecodeError(
            f"body of {len(data)} bytes of zlib: {len(reader.unused_data)} of them come after "
            "its end"
        )
    return made


def _from_zstd(data: bytes, most: int) -> bytes:
    try:
        zstandard = _zstandard()
    except ConfigurationError as error:
        raise DecodeError(f"body of {len(data)} bytes: {error}") from error
    try:
        # A frame says its size in front, and zstd makes no more than that; so it is enough to ask.
        size = zstandard.get_frame_parameters(data).content_size
        if size == zstandard.CONTENTSIZE_UNKNOWN:
            raise DecodeError(f"body of {len(data)} bytes of zstd does not say its size")
        if size > most:
            raise _too_large(data, most)
        reader = getattr(_kept, "reader", None)
        if reader is None:
            reader = _kept.reader = zstandard.ZstdDecompressor(max_window_size=CEILING)
        made: bytes = reader.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DecodeError(f"body of {len(data)} bytes is not zstd: {error}") from error
    return made


def _zstandard() -> Any:
    return optional_imports.load("zstandard", "zstd", 'how="zstd"')


def _too_large(data: bytes, most: int) -> DecodeError:
    return DecodeError(
        f"body of {len(data)} compressed bytes comes to more than {most}, the limit of this reader "
        "(rmq.Compressed.limit)"
    )
