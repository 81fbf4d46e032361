"""Bodies of records as they are shown: no more is decompressed than that."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable

import msgpack
import pytest

from rmq.http_framework import message
from rmq.http_framework.message import body_of_record
from rmq.kernel.core import compression, record
from rmq.kernel.core.record import Record

JSON, MSGPACK, COMPRESSED = 1, 2, 3
MOST = message.SHOWN_MAX


def stored(codec: int, body: bytes, collects: bool = False) -> Record:
    return Record(
        codec, record.MERGES + record.COLLECTS if collects else 0, 0, 1, 0, 0, "", {}, body
    )


def packed(data: bytes, codec: int = JSON) -> bytes:
    return bytes((compression.ZLIB << 4 | codec,)) + zlib.compress(data)


def collected(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


LONG = json.dumps([{"n": n} for n in range(20_000)], separators=(",", ":")).encode()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each call decompressed."""
    sizes: list[int] = []

    def noting(read: Callable[[int, bytes, int], bytes]) -> Callable[[int, bytes, int], bytes]:
        def noted(how: int, data: bytes, most: int) -> bytes:
            found = read(how, data, most)
            sizes.append(len(found))
            return found

        return noted

    beginning = noting(compression.decompress_beginning)
    monkeypatch.setattr(compression, "decompress_beginning", beginning)
    monkeypatch.setattr(compression, "decompress", noting(compression.decompress))
    return sizes


def test_of_a_small_body_that_grows_the_beginning_is_decompressed(read: list[int]) -> None:
    bomb = packed(b"[" + b"[]," * 2_000_000 + b"[]]")

    body, unreadable = body_of_record(stored(COMPRESSED, bomb), MOST)

    assert (body.kind, len(body.text), body.is_truncated, body.size) == ("json", MOST, True, None)
    assert (unreadable, read) == ("", [MOST + 1])


def test_bodies_of_a_collecting_message_share_what_is_shown(read: list[int]) -> None:
    bomb = packed(json.dumps("x" * 50_000).encode())

    body, _ = body_of_record(stored(COMPRESSED, collected(*[bomb] * 9), collects=True), MOST)

    assert (body.kind, len(body.text), body.is_truncated) == ("json", MOST, True)
    assert sum(read) <= MOST + 2


@pytest.mark.parametrize("codec", [JSON, COMPRESSED])
def test_all_of_a_long_body_is_its_text_as_it_was_written(codec: int) -> None:
    data = LONG + b" " * message.DECODED_MAX
    body, unreadable = body_of_record(stored(codec, data if codec == JSON else packed(data)), None)

    assert (body.kind, body.text, body.is_truncated) == ("json", data.decode(), False)
    assert (body.size, unreadable) == (len(data), "")


@pytest.mark.parametrize(
    ("entry", "kind", "text"),
    [
        (stored(JSON, b'{"n":1}'), "json", '{"n": 1}'),
        (stored(COMPRESSED, packed(b'{"n":1}')), "json", '{"n": 1}'),
        (stored(MSGPACK, msgpack.packb({"n": 1})), "json", '{"n": 1}'),
        (stored(JSON, json.dumps("x" * 2 * MOST).encode()), "text", "x" * MOST),
        (stored(0, b"ab"), "base64", "YWI="),
        (stored(JSON, collected(b"1", b'"a"'), collects=True), "json", '[1, "a"]'),
    ],
)  # fmt: skip
def test_a_body_is_shown_as_its_codec_wrote_it(entry: Record, kind: str, text: str) -> None:
    body, unreadable = body_of_record(entry, MOST)

    assert (body.kind, body.text, unreadable) == (kind, text, "")


@pytest.mark.parametrize(
    "entry",
    [
        stored(JSON, b"no JSON"),
        stored(JSON, b"no JSON" + b" " * 2 * message.DECODED_MAX),
        stored(COMPRESSED, b"\x11no zlib"),
        stored(COMPRESSED, b""),
        stored(JSON, collected(b"1")[:-1], collects=True),
        stored(JSON, b"[" * 30_000 + b"]" * 30_000),
    ],
)
def test_a_body_that_cannot_be_decoded_is_shown_as_it_is_stored(entry: Record) -> None:
    body, unreadable = body_of_record(entry, None)

    assert (body.kind, body.size) == ("base64", len(entry.body))
    assert unreadable


def test_msgpack_that_is_too_large_to_be_decoded_is_bytes() -> None:
    entry = stored(MSGPACK, msgpack.packb([[]] * 2 * message.DECODED_MAX))

    body, unreadable = body_of_record(entry, None)

    assert (body.kind, body.size, body.is_truncated) == ("base64", len(entry.body), False)
    assert "too large to be decoded" in unreadable
