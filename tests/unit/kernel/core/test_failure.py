"""Texts of errors: reading them never raises, even if the exception's own methods do."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rmq.kernel.core import failure


class NoText(Exception):
    def __str__(self) -> str:
        return str({}["code"])


class Exits(Exception):
    def __str__(self) -> str:
        sys.exit(3)


class NotText(Exception):
    def __str__(self) -> Any:
        return 7


class Shy(Exception):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("it does not say what it is")


class NoTraceback(Exception):
    @property
    def __notes__(self) -> Any:
        raise SystemError("no notes")

    @property
    def __cause__(self) -> Any:
        raise RuntimeError("no cause")


def nested(error: Exception) -> BaseException:
    return ExceptionGroup("several", [error, ValueError("one")])


@pytest.mark.parametrize("kind", [NoText, Exits, NotText, Shy, NoTraceback])
@pytest.mark.parametrize("wrap", [lambda error: error, nested])
def test_an_exception_that_cannot_be_shown_is_reported_by_its_type(kind: Any, wrap: Any) -> None:
    error = wrap(kind("x"))

    entry = failure.decode(b"\x01\x02f" + failure.encode(error))

    assert entry is not None
    assert entry.error.startswith(type(error).__name__)


def test_the_text_of_an_exception_without_one_says_so() -> None:
    assert failure.text_of(NoText()) == "<str() of this NoText raised KeyError>"
    assert failure.summary(ValueError()) == "ValueError"
    assert failure.summary(ValueError("x")) == "ValueError: x"


def test_a_text_is_cut_to_size_wherever_it_is_shown() -> None:
    error = ValueError("x" * 5_000_000)

    for text in (failure.text_of(error), failure.text_of(str(error)), failure.render(error).text):
        assert len(text) == failure.ERROR_CHARS
    assert len(failure.summary(error)) <= failure.ERROR_CHARS + len("ValueError: ")


def test_what_was_rendered_is_encoded_as_the_error_was() -> None:
    try:
        raise KeyError("x" * 10_000)
    except KeyError as error:
        for given in (error, "a reason", "", None):
            assert failure.encode(failure.render(given), "w") == failure.encode(given, "w")


def test_a_failure_has_type_and_traceback_cut_to_size() -> None:
    try:
        raise KeyError("x" * 10_000)
    except KeyError as error:
        entry = b"\x00\x11f" + failure.encode(error)

    decoded = failure.decode(entry)

    assert decoded is not None
    assert (decoded.reason, decoded.deliveries) == ("failed", 17)
    assert decoded.error.startswith("KeyError: 'xxx")
    assert len(decoded.error) == failure.ERROR_CHARS
    assert len(decoded.traceback) <= failure.TRACEBACK_CHARS
    assert failure.decode(b"") is None
    assert failure.decode(b"\x00\x01f\xc1") is not None


def test_the_worker_is_kept_beside_the_error_and_alone() -> None:
    worker = failure.this_worker()
    assert worker.endswith(f":{os.getpid()}")

    for error, text in ((ValueError("x"), "ValueError: x"), (None, "")):
        entry = b"\x10\x01f" + failure.encode(error, worker)
        (attempt,) = failure.attempts(entry)
        assert (attempt.error, attempt.worker, attempt.at) == (text, worker, None)

    assert failure.encode(None) == b""


AT = (1_790_000_000_000).to_bytes(6, "big")


def test_equal_failures_are_read_once_whatever_came_before() -> None:
    told = failure.encode("why")
    item = b"f\x07" + AT
    entries = [
        b"\x00\x03f" + told,
        b"\x00\x03f\xc1\x00" + AT + told,
        b"\x00\x03f\xc1\x01" + AT + b"\x00\x03\x01\x00\x08" + item + told,
    ]

    decoded = [failure.decode(entry) for entry in entries]

    assert decoded[0] == failure.Failure("failed", 3, "why")
    assert all(each is decoded[0] for each in decoded), "read once"
    assert [len(failure.attempts(entry)) for entry in entries] == [1, 1, 2]
    assert failure.attempts(b"") == ()


@given(st.binary(max_size=60), st.booleans())
def test_no_entry_is_too_broken_to_be_read(rest: bytes, marked: bool) -> None:
    entry = b"\x01\x02f" + (b"\xc1" if marked else b"") + rest

    assert failure.decode(entry) is not None
    assert all(isinstance(attempt, failure.Attempt) for attempt in failure.attempts(entry))
