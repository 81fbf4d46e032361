import msgpack
import pytest
from hypothesis import given, strategies as st

from rmq.errors import DecodeError
from rmq.kernel.core import record
from rmq.kernel.core.codec import BYTES, JSON, MSGPACK, Compressed


def test_a_plain_record_is_eight_bytes_longer_than_its_body() -> None:
    data = record.head(1, 0, 100) + b"\0\0\0\x07" + b'"x"'
    read = record.read(data)
    assert len(data) == 8 + 3
    assert (read.codec, read.priority, read.offset_low, read.body) == (1, 100, 7, b'"x"')
    assert (read.due_ms, read.expires_ms, read.merge_key, read.headers) == (0, 0, "", {})


def test_every_field_is_read_where_it_is_flagged() -> None:
    flags = record.TIMED | record.EXPIRES | record.MERGES | record.HEADERS
    data = (
        record.head(2, flags, 1_048_575)
        + b"\xff\xff\xff\xff"
        + (1_790_000_000_000).to_bytes(6, "big")
        + (1_790_000_001_000).to_bytes(6, "big")
        + record.length_prefixed("ключ".encode())
        + record.length_prefixed(msgpack.packb({"a": "b"}))
        + b"body"
    )
    read = record.read(data)
    assert read == record.Record(
        2,
        flags,
        1_048_575,
        0xFFFFFFFF,
        1_790_000_000_000,
        1_790_000_001_000,
        "ключ",
        {"a": "b"},
        b"body",
    )


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        read = record.read(data)
    except DecodeError:
        return
    assert len(read.body) <= len(data) - 8


@given(st.lists(st.binary(max_size=40)))
def test_collected_bodies_come_apart_again(bodies: list[bytes]) -> None:
    joined = b"".join(len(b).to_bytes(4, "big") + b for b in bodies)
    assert record.collected_bodies(joined) == bodies
    if joined:
        with pytest.raises(DecodeError):
            record.collected_bodies(joined[:-1] if joined[-1:] and bodies[-1] else joined + b"\0")


@given(st.integers(0, 2**40), st.integers(0, 2**32 - 1))
def test_the_whole_acceptance_number_comes_back(number: int, later: int) -> None:
    assert record.offset_of(number % 2**32, number + later) == number


def collected(codec: int, *bodies: bytes) -> bytes:
    """A collecting record, as the merge script writes it."""
    data = record.head(codec, record.MERGES | record.COLLECTS, 0) + bytes(4)
    data += record.length_prefixed(b"key")
    return data + b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def test_the_value_of_a_record_is_the_body_as_its_codec_wrote_it() -> None:
    compressed = Compressed("json", how="zlib", above=0)
    body = ["x" * 1000]
    plain = record.head(JSON.number, 0, 100) + bytes(4) + JSON.encode(body)
    packed = record.head(compressed.number, 0, 100) + bytes(4) + compressed.encode(body)

    assert len(packed) < len(plain)
    assert record.is_bare(plain[0])
    assert not record.is_bare(packed[0])
    assert record.value_of(plain) == record.value_of(packed) == JSON.encode(body)


def test_the_value_of_a_collecting_record_is_a_list_in_json_or_msgpack() -> None:
    assert record.value_of(collected(JSON.number, b"1", b'"a"')) == b'[1,"a"]'
    packed = collected(MSGPACK.number, MSGPACK.encode(1), MSGPACK.encode("a"))
    assert MSGPACK.decode(record.value_of(packed)) == [1, "a"]
    raw = collected(BYTES.number, b"1", b"a")
    assert MSGPACK.decode(record.value_of(raw)) == [b"1", b"a"]


def test_a_record_that_is_cut_short_has_no_value() -> None:
    with pytest.raises(DecodeError):
        record.value_of(collected(JSON.number, b"1")[:-1])


# --- types ---------------------------------------------------------------------------------------

TYPED = record.length_prefixed(msgpack.packb({"rmq-audit": "0123456789.1", "rmq-type": "a.b"}))
DUE, EXPIRY = (5).to_bytes(6, "big"), (9).to_bytes(6, "big")
KEY = record.length_prefixed(record.merge_key_of_type("k", "a.b").encode())


@pytest.mark.parametrize(
    ("flags", "envelope"),
    [
        (record.HEADERS, b""),
        (record.HEADERS | record.TIMED, DUE),
        (record.HEADERS | record.TIMED | record.EXPIRES, DUE + EXPIRY),
        (record.HEADERS | record.TIMED | record.MERGES, DUE + KEY),
    ],
)
def test_the_type_is_found_whatever_stands_before_the_headers(flags: int, envelope: bytes) -> None:
    data = record.head(1, flags, 100) + bytes(4) + envelope + TYPED + b"{}"

    assert record.type_of(data) == "a.b"
    assert record.headers_of(data) == record.read(data).headers
    assert record.read(data).merge_key == ("k" if flags & record.MERGES else "")


def test_a_bare_record_has_no_type_and_no_headers() -> None:
    data = record.head(1, 0, 100) + bytes(4) + b"{}"

    assert record.type_of(data) is None
    assert record.headers_of(data) == {}


def test_a_merge_key_is_stored_with_the_type_and_read_without_it() -> None:
    assert record.merge_key_of_type("k", None) == "k"
    assert record.merge_key_of_type("k", "a") != record.merge_key_of_type("k", "b")
