"""Texts of errors: reading them never raises, even if the exception's own methods do."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rmq.kernel.core import failure
from tests.lua.failures import failure as encoded, item

AT = 1_790_000_000_000  # epoch ms


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

    entry = failure.decode(encoded(1, 2, "f", failure.encode(error), at=AT))

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
        entry = encoded(0, 17, "f", failure.encode(error), at=AT)

    decoded = failure.decode(entry)

    assert decoded is not None
    assert (decoded.reason, decoded.deliveries) == ("failed", 17)
    assert decoded.error.startswith("KeyError: 'xxx")
    assert len(decoded.error) == failure.ERROR_CHARS
    assert len(decoded.traceback) <= failure.TRACEBACK_CHARS
    assert failure.decode(b"") is None


def test_the_worker_is_kept_beside_the_error_and_alone() -> None:
    worker = failure.this_worker()
    assert worker.endswith(f":{os.getpid()}")

    for error, text in ((ValueError("x"), "ValueError: x"), (None, "")):
        entry = encoded(16, 1, "f", failure.encode(error, worker), at=AT)
        (attempt,) = failure.attempts(entry)
        assert (attempt.error, attempt.worker) == (text, worker)
        assert round(attempt.at.timestamp() * 1000) == AT

    assert failure.encode(None) == b""


def test_equal_failures_are_read_once_whatever_came_before() -> None:
    told = failure.encode("why")
    entries = [
        encoded(0, 3, "f", told, at=AT),
        encoded(0, 3, "f", told, at=AT + 1, items=[item("f", AT)]),
    ]

    decoded = [failure.decode(entry) for entry in entries]

    assert decoded[0] == failure.Failure("failed", 3, "why")
    assert decoded[1] is decoded[0], "read once"
    assert [len(failure.attempts(entry)) for entry in entries] == [1, 2]
    assert failure.attempts(b"") == ()


UNREADABLE = failure.Attempt(1, datetime.fromtimestamp(0, UTC), "failed", "unreadable")
WHOLE = encoded(15, 2, "f", failure.encode("why"), at=AT, items=[item("f", 1)])


@pytest.mark.parametrize("entry", [WHOLE[:size] for size in (1, 2, 3, 9, 12, 14, 22)])
def test_an_entry_that_was_cut_is_one_attempt(entry: bytes) -> None:
    assert failure.attempts(WHOLE)[1].number == 1
    assert failure.attempts(entry) == (UNREADABLE,)
    assert failure.decode(entry) == failure.Failure("failed", 1, "unreadable")


def test_an_entry_with_a_flag_that_is_not_known_is_one_attempt() -> None:
    for flags in set(range(256)) - {0, 1, 8, 9}:
        assert failure.attempts(WHOLE[:3] + bytes((flags,)) + WHOLE[4:]) == (UNREADABLE,)


def test_a_time_beyond_the_year_9999_is_its_end() -> None:
    (attempt,) = failure.attempts(encoded(15, 2, "f", at=2**48 - 1))

    assert attempt.at == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@given(st.binary(max_size=60), st.sampled_from([b"", b"\x00", b"\x01", b"\x08", b"\x09"]))
def test_no_entry_is_too_broken_to_be_read(rest: bytes, flags: bytes) -> None:
    entry = b"\x01\x02f" + flags + rest

    assert failure.decode(entry) is not None
    assert all(isinstance(attempt, failure.Attempt) for attempt in failure.attempts(entry))
