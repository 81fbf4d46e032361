import contextlib

import pytest
from hypothesis import given, strategies as st

from rmq.errors import DecodeError
from rmq.kernel.core import codec

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) |
    st.text(
        st.characters(exclude_categories=["Cs"])
    ),
    lambda inner: st.lists(inner) |
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner), max_leaves=20,
)  # fmt: skip


@given(JSON)
def test_json_bodies_come_back(body: object) -> None:
    assert codec.JSON.decode(codec.JSON.encode(body)) == body


@given(st.binary())
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for number in range(8):
        with contextlib.suppress(DecodeError):  # nothing else may come out
            codec.decode(number, data)
    with pytest.raises(DecodeError, match=f"body of {len(data)} bytes: codec number 7"):
        codec.decode(7, data)


@pytest.mark.parametrize(
    "data",
    [b"NaN", b"Infinity", b"[" * 100_000, b"9" * 5000, b"\xff", b'"\\ud800', b"1 2", b""],
    ids=lambda d: ascii(d[:8]),
)
def test_hostile_json_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        codec.JSON.decode(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xc7\x01\x05x",
        b"\xa2\xff\xff",
        b"\x01\x02",
        b"\x81\x90\x00",
        b"",
    ],
    ids=lambda d: d[:4].hex(),
)
def test_hostile_msgpack_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        codec.MSGPACK.decode(data)
