"""Compressed bodies come back, only where it pays, and never grow beyond the limit."""

from __future__ import annotations

import os
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import hypothesis
import pytest
import zstandard
from hypothesis import given, strategies as st

import rmq
from rmq.errors import DecodeError
from rmq.kernel.core import body_limits, codec

MIB = 1024 * 1024
HOWS = ("zlib", "zstd")
LARGE = [{"id": number, "name": "somebody"} for number in range(500)]
NUMBERS = {"zlib": 1, "zstd": 2}


def zlib_of(size: int) -> bytes:
    writer = zlib.compressobj()
    return b"".join(writer.compress(bytes(MIB)) for _ in range(size // MIB)) + writer.flush()


def zstd_of(size: int) -> bytes:
    writer = zstandard.ZstdCompressor().compressobj(size=size)
    return b"".join(writer.compress(bytes(MIB)) for _ in range(size // MIB)) + writer.flush()


BOMBS = {"zlib": b"\x11" + zlib_of(64 * MIB), "zstd": b"\x21" + zstd_of(128 * MIB)}


@contextmanager
def peak() -> Iterator[list[int]]:
    """Return the most bytes that were allocated."""
    found: list[int] = []
    tracemalloc.start()
    try:
        yield found
        found.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("inner", ["json", "msgpack"])
@hypothesis.settings(max_examples=20)
@given(body=st.recursive(st.none() | st.text() | st.integers(-(2**60), 2**60), st.lists))
def test_a_body_comes_back_whatever_it_is(how: Any, inner: str, body: object) -> None:
    for above in (0, 20):
        data = rmq.Compressed(inner, how, above).encode(body)
        assert codec.decode(3, data) == body


@pytest.mark.parametrize("how", HOWS)
@given(body=st.binary(max_size=5000))
def test_bytes_come_back(how: Any, body: bytes) -> None:
    assert codec.decode(3, rmq.Compressed("bytes", how, 0).encode(body)) == body


@pytest.mark.parametrize("how", HOWS)
def test_the_first_byte_says_how_and_what_is_inside(how: Any) -> None:
    data = rmq.Compressed("msgpack", how).encode(LARGE)

    assert data[0] == NUMBERS[how] << 4 | codec.MSGPACK.number
    assert len(data) < len(codec.MSGPACK.encode(LARGE)) / 4


@pytest.mark.parametrize("how", HOWS)
def test_what_is_below_the_threshold_or_does_not_shrink_stays_plain(how: Any) -> None:
    noise = os.urandom(5000)

    assert rmq.Compressed("bytes", how, above=5001).encode(bytes(5000)) == b"\x00" + bytes(5000)
    assert rmq.Compressed("bytes", how, above=5000).encode(bytes(5000))[0] == NUMBERS[how] << 4
    assert rmq.Compressed("bytes", how, above=0).encode(noise) == b"\x00" + noise
    assert rmq.Compressed().encode({"id": 7}) == b'\x01{"id":7}'


# --- the guard ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOWS)
def test_a_bomb_is_refused_and_costs_no_more_memory_than_the_limit(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(BOMBS[how]) < 128 * 1024
    with peak() as most, pytest.raises(DecodeError, match="has more than 16777216"):
        codec.decode(3, BOMBS[how])
    assert most[0] < 40 * MIB  # zlib's buffer doubles as it grows

    monkeypatch.setattr(rmq.Compressed, "limit", MIB)
    with peak() as most, pytest.raises(DecodeError, match="has more than 1048576"):
        codec.decode(3, BOMBS[how])
    assert most[0] < 3 * MIB


def test_a_zstd_frame_that_lies_about_its_size_is_refused() -> None:
    bomb = zstd_of(128 * MIB)
    at = bomb.index((128 * MIB).to_bytes(4, "little"))
    lie = bomb[:at] + (1000).to_bytes(4, "little") + bomb[at + 4 :]
    assert zstandard.get_frame_parameters(lie).content_size == 1000

    with peak() as most, pytest.raises(DecodeError, match="is not zstd"):
        codec.decode(3, b"\x20" + lie)

    assert most[0] < MIB


def test_a_zstd_frame_without_a_size_is_refused() -> None:
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100))
    with pytest.raises(DecodeError, match="does not say its size"):
        codec.decode(3, b"\x20" + silent)


@pytest.mark.parametrize("how", HOWS)
def test_a_body_of_exactly_the_limit_passes_both_ways_and_one_more_does_not(
    how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rmq.Compressed, "limit", 5000)
    writer = rmq.Compressed("bytes", how)
    assert codec.decode(3, writer.encode(bytes(5000))) == bytes(5000)
    assert codec.decode(3, b"\x00" + bytes(5000)) == bytes(5000)

    with pytest.raises(rmq.PayloadTooLarge, match="5001 bytes before it is compressed"):
        writer.encode(bytes(5001))
    for data in (b"\x00" + bytes(5001), b"\x10" + zlib.compress(bytes(5001))):
        with pytest.raises(DecodeError, match=r"limit of this reader"):
            codec.decode(3, data)


@pytest.mark.parametrize("how", HOWS)
def test_the_bodies_of_a_collecting_message_share_the_limit(
    how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rmq.Compressed, "limit", 5000)
    piece = rmq.Compressed("bytes", how).encode(bytes(2500))

    assert codec.decode_all(3, [piece, piece]) == [bytes(2500)] * 2
    with pytest.raises(DecodeError, match="has more than 0"):
        codec.decode_all(3, [piece, piece, piece])


def test_the_limit_is_the_ceiling_of_bodies() -> None:
    assert rmq.Compressed.limit == body_limits.BODY_CEILING


# --- damage ------------------------------------------------------------------------------------


@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for first in range(256):
        with suppress(DecodeError):  # nothing else may come out
            codec.decode(3, bytes((first,)) + data)


@pytest.mark.parametrize("how", HOWS)
def test_a_body_that_is_cut_changed_or_longer_is_refused(how: Any) -> None:
    whole = rmq.Compressed("json", how).encode(LARGE)

    damaged = [whole[:size] for size in range(1, len(whole))]
    damaged += [
        whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :] for at in range(1, len(whole))
    ]
    damaged.append(whole + b"x")
    read = 0
    for data in damaged:
        try:
            assert codec.decode(3, data) == LARGE
            read += 1
        except DecodeError:
            pass

    assert read <= 5  # a bit that means nothing, such as zlib's note on its level
    assert codec.decode(3, whole) == LARGE, "a reader that failed reads on"


@pytest.mark.parametrize("data", [b"", b"\x31{}", b"\x03{}", b"\x13{}", b"\x0f{}", b"\x1f"])
def test_a_first_byte_that_says_nothing_known_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError, match="first byte"):
        codec.decode(3, data)


# --- what cannot work ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"how": "lz4"}, "how: 'lz4'; give 'zlib' or 'zstd'"),
        ({"how": None}, "how: None"),
        ({"codec": "compressed"}, "codec: 'compressed'; known are bytes, json, msgpack"),
        ({"above": -1}, "above: -1"),
        ({"above": 1.5}, "above: 1.5 is not a whole number"),
    ],
)
def test_an_argument_that_cannot_work_is_refused(arguments: Any, text: str) -> None:
    with pytest.raises(rmq.ConfigurationError, match=text):
        rmq.Compressed(**arguments)


def test_without_the_package_zstd_is_refused_and_a_zstd_body_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = rmq.Compressed(how="zstd").encode(LARGE)
    monkeypatch.setitem(sys.modules, "zstandard", None)

    with pytest.raises(rmq.ConfigurationError, match=r'pip install "\.\[zstd\]"'):
        rmq.Compressed(how="zstd")
    with pytest.raises(DecodeError, match=r'pip install "\.\[zstd\]"'):
        codec.decode(3, data)
    assert codec.decode(3, rmq.Compressed().encode(LARGE)) == LARGE
