"""What is told of an error: whatever the exception does, telling it does not raise."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from rmq.core import failure


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
def test_an_exception_that_cannot_be_shown_is_told_by_its_type(kind: Any, wrap: Any) -> None:
    error = wrap(kind("x"))

    entry = failure.decode(b"\x01\x02f" + failure.encode(error))

    assert entry is not None
    assert entry.error.startswith(type(error).__name__)


def test_the_text_of_an_exception_without_one_says_so() -> None:
    assert failure.text_of(NoText()) == "<str() of this NoText raised KeyError>"
    assert failure.summary(ValueError()) == "ValueError"
    assert failure.summary(ValueError("x")) == "ValueError: x"
