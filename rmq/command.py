"""What an executor sends: one call of one script, and how to read the reply."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from rmq.scripts import Script

T = TypeVar("T")

_clock = b""


def set_clock(now_us: int | None) -> None:
    """Give every later command a time instead of the server's clock; for tests only."""
    global _clock
    _clock = b"" if now_us is None else b"%d" % now_us


def now() -> bytes:
    """What a command says of the time: nothing, for the server's clock, or a test's."""
    return _clock


def now_ms() -> int:
    """The time in epoch ms as far as this process knows it: a test's, or the local clock's.

    Good for telling years apart. Whether a moment has come is for the server's clock to say.
    """
    return int(_clock) // 1000 if _clock else time.time_ns() // 1_000_000


class Command(Generic[T]):
    """One call of one script."""

    __slots__ = ("args", "keys", "parse", "script")

    def __init__(
        self, script: Script, keys: Sequence[bytes], args: Sequence[Any], parse: Callable[[Any], T]
    ) -> None:
        self.script = script
        self.keys = keys
        self.args = args
        self.parse = parse

    def __repr__(self) -> str:
        return f"Command({self.script.name!r}, {list(self.keys)!r})"
