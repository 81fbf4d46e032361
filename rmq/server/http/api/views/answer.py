"""The base of all answers, and those of several matters."""

from __future__ import annotations

import msgspec


class Answer(msgspec.Struct, kw_only=True):
    """The body of an answer."""


class Count(Answer):
    """How many messages."""

    count: int


class Done(Answer):
    """Whether there was something to do."""

    done: bool
