"""What a transport sends: one call of one script, and how to read the reply."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from rmq.protocol.scripts import Script

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
    """One call of one script.

    Args:
        script: the script to call.
        keys: its KEYS.
        args: its ARGV.
        parse: reads the reply, or raises one of RMQ's errors.
        says_again: the script wants to know when a call is repeated: a last argument of 1.
    """

    __slots__ = ("args", "keys", "parse", "says_again", "script")

    def __init__(
        self,
        script: Script,
        keys: Sequence[bytes],
        args: Sequence[Any],
        parse: Callable[[Any], T],
        says_again: bool = False,
    ) -> None:
        self.script = script
        self.keys = keys
        self.args = args
        self.parse = parse
        self.says_again = says_again

    def again(self) -> Command[T]:
        """The same call, as it is sent after one whose reply did not come."""
        if not self.says_again:
            return self
        return Command(self.script, self.keys, [*self.args, 1], self.parse)

    def __repr__(self) -> str:
        return f"Command({self.script.name!r}, {list(self.keys)!r})"
