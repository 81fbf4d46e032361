"""The base of all answers, and those of several matters."""

from __future__ import annotations

import hashlib

import msgspec


class Answer(msgspec.Struct, kw_only=True):
    """The body of an answer."""


def etag_of(answer: bytes) -> str:
    """Return the ETag of an answer as it is sent."""
    return f'"{hashlib.sha256(answer).hexdigest()[:24]}"'


class Count(Answer):
    """How many messages."""

    count: int


class Done(Answer):
    """Whether there was something to do."""

    done: bool
