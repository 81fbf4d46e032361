"""Encrypted bodies, and where keys come from."""

from __future__ import annotations

import base64
import gc
import os
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import rmq
from rmq.kernel.core import codec, encryption, packages

pytest.importorskip("cryptography")

A, B, C = bytes(range(32)), b"B" * 32, b"\xff" * 32


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No keys of the environment, nor of other tests."""
    gc.collect()
    monkeypatch.delenv("RMQ_KEYS", raising=False)
    monkeypatch.delenv("RMQ_KEYS_FILE", raising=False)
    monkeypatch.setattr(encryption, "ENVIRONMENT", encryption._Environment())
    monkeypatch.setattr(codec, "_unloadable", {})
    yield
    gc.collect()


def coded(key: bytes) -> str:
    return base64.b64encode(key).decode()


def read(data: bytes) -> Any:
    """Read a body as a consumer does, by the number of its record."""
    return codec.decode(3, data)


BODIES = st.recursive(
    st.none() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abc"), inner),
)


@given(BODIES, st.sampled_from(["json", "msgpack", rmq.Compressed(above=0)]))
def test_bodies_come_back(body: Any, inner: Any) -> None:
    try:
        own = rmq.Encrypted({"k": A}, inner)
        assert read(own.encode(body)) == body
    except rmq.EncodeError:  # msgpack has no integers above 64 bits
        assert inner == "msgpack"


def test_the_same_body_is_never_written_twice_alike_and_cannot_be_seen() -> None:
    own = rmq.Encrypted({"k": A})

    written = {own.encode("a secret text") for _ in range(100)}

    assert len(written) == 100
    assert not any(b"secret" in data for data in written)
    assert {len(data) for data in written} == {2 + 1 + 12 + 1 + len('"a secret text"') + 16}


def test_the_last_key_encrypts_and_all_decrypt_while_they_change() -> None:
    keys = {"a": A}
    own = rmq.Encrypted(keys)
    first = own.encode(1)

    keys["b"] = B
    second = own.encode(2)
    assert (first[2:3], second[2:3]) == (b"a", b"b")
    assert [read(first), read(second)] == [1, 2]

    del keys["a"]
    assert read(second) == 2
    with pytest.raises(rmq.DecodeError, match="with the key 'a': this process does not have it"):
        read(first)


def test_keys_may_be_a_function() -> None:
    keys = {"a": A}
    own = rmq.Encrypted(lambda: dict(keys), "bytes")
    first = own.encode(b"1")
    keys["b"] = B
    assert own.encode(b"2")[2:3] == b"b"
    assert read(first) == b"1"


def test_a_function_that_fails_stops_a_send_and_makes_no_body_unreadable_for_others() -> None:
    def broken() -> dict[str, bytes]:
        raise OSError("the vault is away")

    reader = rmq.Encrypted({"a": A})
    own = rmq.Encrypted(broken)

    with pytest.raises(OSError, match="vault"):
        own.encode(1)
    assert read(reader.encode(1)) == 1
    with pytest.raises(
        rmq.DecodeError,
        match="with the key 'z': keys: the function that returns them raised OSError",
    ):
        read(rmq.Encrypted({"z": C}).encode(1))


def test_topics_may_have_other_keys_of_one_id() -> None:
    one, other = rmq.Encrypted({"k": A}), rmq.Encrypted({"k": B})

    assert [read(one.encode(1)), read(other.encode(2))] == [1, 2]


def test_another_key_of_that_id_is_an_error_that_names_the_id() -> None:
    data = rmq.Encrypted({"2026-11": A}).encode({"a": 1})
    gc.collect()
    reader = rmq.Encrypted({"2026-11": B})

    with pytest.raises(
        rmq.DecodeError, match="key '2026-11': this process has another key with that id"
    ):
        reader.decode(data)


def test_a_process_forgets_keys_that_nothing_keeps() -> None:
    data = rmq.Encrypted({"k": A}).encode(1)
    gc.collect()
    with pytest.raises(rmq.DecodeError, match="this process does not have it"):
        read(data)


@given(st.integers(0, 60), st.integers(1, 255))
def test_a_changed_byte_is_found(place: int, change: int) -> None:
    own = rmq.Encrypted({"key": A})
    data = bytearray(own.encode("some text of a body"))
    data[place % len(data)] ^= change

    with pytest.raises(rmq.DecodeError):
        own.decode(bytes(data))


@given(st.binary(max_size=80))
def test_any_bytes_are_refused(data: bytes) -> None:
    own = rmq.Encrypted({"key": A})
    with pytest.raises(rmq.DecodeError):
        own.decode(bytes((encryption.FIRST,)) + data)


def test_a_body_is_encrypted_once() -> None:
    own = rmq.Encrypted({"key": A})
    twice = encryption.seal(own._source, own.encode(1))
    with pytest.raises(rmq.DecodeError, match=r"its first byte, \d+, is unknown"):
        own.decode(twice)
    with pytest.raises(rmq.InvalidValue, match="inner: it is encrypted already"):
        rmq.Encrypted({"key": A}, own)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({}, "keys: there are no keys"),
        ({"a": A, "b": b"short"}, r"keys\['b'\]: 5 bytes; give 32 bytes"),
        ({"a": "x" * 32}, r"keys\['a'\]: str; give 32 bytes"),
        ({"a b": A}, "'a b' is not an id"),
        ({"": A}, "'' is not an id"),
        ({7: A}, "7 is not an id"),
        ([A], "keys: list; give a mapping"),
    ],
)
def test_keys_that_are_none_are_refused_at_once(keys: Any, text: str) -> None:
    with pytest.raises(rmq.InvalidValue, match=text):
        rmq.Encrypted(keys)
    with pytest.raises(rmq.InvalidValue, match=text):
        rmq.Encrypted(lambda: keys).encode(1)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = rmq.Encrypted({"a": A}).encode(1)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)

    with pytest.raises(rmq.ConfigurationError, match=re.escape(packages.install("encrypted"))):
        rmq.Encrypted({"a": A})
    with pytest.raises(rmq.DecodeError, match=r"encrypted; rmq.Encrypted: cryptography.* not inst"):
        read(data)


# --- keys of the environment ---------------------------------------------------------------------


def test_keys_come_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    data = rmq.Encrypted({"a": A}).encode(1)
    gc.collect()
    monkeypatch.setenv("RMQ_KEYS", f"a:{coded(A)}, b:{coded(B)}")

    assert read(data) == 1
    assert rmq.Encrypted().encode(2)[2:3] == b"b"
    assert read(rmq.Encrypted().encode(2)) == 2


def test_keys_of_a_file_are_read_again_when_it_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# of the orders\na:{coded(A)}  # old\n")
    monkeypatch.setenv("RMQ_KEYS_FILE", str(file))
    monkeypatch.setenv("RMQ_KEYS", f"z:{coded(C)}")  # the file is what counts
    own = rmq.Encrypted()
    first = own.encode(1)

    file.write_text(f"a:{coded(A)}\nb:{coded(B)}\n")
    second = own.encode(2)
    assert (first[2:3], second[2:3]) == (b"a", b"b")
    assert [read(first), read(second)] == [1, 2]

    file.unlink()
    with pytest.raises(rmq.DecodeError, match="RMQ_KEYS_FILE: No such file"):
        read(first)
    with pytest.raises(rmq.ConfigurationError, match="RMQ_KEYS_FILE: No such file"):
        own.encode(1)


def test_without_keys_the_variables_are_named() -> None:
    with pytest.raises(rmq.ConfigurationError, match="has no keys; give it some, or set RMQ_KEYS_"):
        rmq.Encrypted().encode(1)


@pytest.mark.parametrize("text", ["a", "a:", "a:b", f"a:{coded(A)[:-4]}", f"a b:{coded(A)}", "#x"])
def test_a_variable_that_is_wrong_says_which_key(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("RMQ_KEYS", text)
    with pytest.raises(rmq.ConfigurationError, match=r"its key 1 is not|has no keys"):
        rmq.Encrypted().encode(1)


# --- secrecy -------------------------------------------------------------------------------------


def frames_of_rmq(error: BaseException) -> str:
    """All variables of RMQ's own functions in a traceback, as some programs log them."""
    told = []
    seen: BaseException | None = error
    while seen is not None:
        for frame, _ in traceback.walk_tb(seen.__traceback__):
            if f"{os.sep}rmq{os.sep}kernel" in frame.f_code.co_filename:
                told.append(repr(frame.f_locals))
        told.append(repr(seen))
        seen = seen.__cause__ or seen.__context__
    assert len(told) > 1
    return "\n".join(told)


def failures(monkeypatch: pytest.MonkeyPatch) -> Iterator[BaseException]:
    """Everything that may go wrong with keys."""
    data = rmq.Encrypted({"a": A}).encode(1)
    gc.collect()
    variable = f"a:{coded(B)} b:{coded(C)[:-4]}"
    attempts: list[Any] = [
        lambda: rmq.Encrypted({"a": A, "b": B[:5]}),
        lambda: rmq.Encrypted(lambda: {"b": B, "a": A * 2}).encode(1),
        lambda: rmq.Encrypted({"a": B}).decode(data),
        lambda: rmq.Encrypted({"b": B}).decode(data),
        lambda: rmq.Encrypted({"c": A}).encode(1j),
        lambda: monkeypatch.setenv("RMQ_KEYS", variable) or read(data),
        lambda: rmq.Encrypted().encode(1),
        lambda: monkeypatch.setenv("RMQ_KEYS", f"a:{coded(B)}") or read(data),
    ]
    for attempt in attempts:
        with pytest.raises(rmq.RMQError) as caught:
            attempt()
        yield caught.value


def test_no_error_and_no_variable_of_its_traceback_has_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for error in failures(monkeypatch):
        told = frames_of_rmq(error)
        for key in (A, B, C, B[:5], C[:-4]):
            assert repr(key)[2:-1] not in told, error
            assert coded(key)[:-4] not in told, error


def test_a_key_in_a_variable_would_be_found() -> None:
    """Or the test above could not fail."""
    code = "def f(key):\n    raise ValueError('found')\n"
    space: dict[str, Any] = {}
    exec(compile(code, f"{os.sep}rmq{os.sep}kernel", "exec"), space)
    with pytest.raises(ValueError, match="found") as caught:
        space["f"](A)
    assert repr(A)[2:-1] in frames_of_rmq(caught.value)


def test_nothing_shows_keys() -> None:
    own = rmq.Encrypted({"a": A}, "msgpack")

    assert repr(own) == "rmq.Encrypted(inner='msgpack')"
    assert repr(own._source) == "<keys>"
    assert repr(A)[2:-1] not in repr(vars(own))
