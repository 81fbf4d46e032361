"""Calls on their way to the nodes of a cluster: where each stands, and what is sent for several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import redis

from rmq.errors import StorageError
from rmq.kernel.transport.cluster.joined_replies import is_redirection
from rmq.kernel.transport.connections.pool import pack, request_of
from rmq.kernel.transport.errors import Kind, code_of, kind_of
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.hash_slots import Node
from rmq.kernel.transport.lua.script_loader import Script

_ASKING = pack(("ASKING",))


class Task:
    """A call on its way.

    Args:
        slot: the hash slot of its keys; None: any node may carry it out.
        call: a command, or the words of a plain one.
        node: the node that it is for, whatever serves the slot.

    Attributes:
        asked: the node to send it to behind ASKING.
        losses: how often it was sent, and no reply came.
        error: why it is to be sent again; None: it is done, and `reply` is its reply or refusal.
    """

    __slots__ = ("asked", "call", "count", "error", "losses", "node", "reply", "slot")

    def __init__(
        self, slot: int | None, call: Command[Any] | Sequence[Any], node: Node | None = None
    ) -> None:
        self.slot = slot
        self.call = call
        self.node = node
        self.asked: Node | None = None
        self.count = 0  # replies that come back
        self.losses = 0
        self.error: BaseException | None = redis.RedisError("not sent yet")
        self.reply: Any = None

    @property
    def script(self) -> Script | None:
        """The script that it calls."""
        if isinstance(self.call, Command) and self.call.script.sha:
            return self.call.script
        return None

    @property
    def fails_fast(self) -> bool:
        """Whether it is not repeated while the master of its slot is away."""
        return isinstance(self.call, Command) and self.call.fails_fast

    def pack(self) -> bytes:
        """Return what is sent."""
        if isinstance(self.call, Command):
            packed, self.count = request_of(self.call)
        else:
            packed, self.count = pack(tuple(self.call)), 1
        if self.asked is not None:
            packed, self.count = _ASKING + packed, self.count + 1
        return packed

    def note_lost(self, error: BaseException) -> None:
        """Note that no reply came."""
        self.error, self.asked = error, None
        if kind_of(error) is Kind.UNKNOWN:
            self.losses += 1
            if isinstance(self.call, Command):
                self.call = self.call.again()

    def lacks(self, script: Script) -> bool:
        """Return whether its node refused it because it does not have this script."""
        return self.script is script and _is_unloaded(self.error)

    def refuse(self, refusal: BaseException) -> None:
        """Note that the node refused to load its script, for good or for now."""
        self.asked = None
        if kind_of(refusal) is Kind.AGAIN:
            self.error = refusal
        else:
            self.reply, self.error = refusal, None

    def fail(self, failure: StorageError, repeat_for: float) -> None:
        """End it with an error, which its caller may handle by repeating it."""
        failure._repeat_for = repeat_for
        self.reply, self.error = failure, None


def packed_part(loads: Sequence[Script], part: Sequence[Task], wait: bytes) -> tuple[bytes, int]:
    """Return what is sent to a node, and how many replies come back."""
    words: list[tuple[Any, ...]] = [("SCRIPT", "LOAD", script.text) for script in loads]
    texts = map(pack, words)
    packed = b"".join([*texts, *(task.pack() for task in part), wait])
    return packed, len(words) + sum(task.count for task in part) + bool(wait)


def missing_scripts(part: Iterable[Task], loaded: set[Script], beforehand: bool) -> list[Script]:
    """Return the scripts to load with a part.

    Those of several commands are loaded beforehand: a command that is repeated alone would come
    after its successors.
    """
    scripts = {
        task.script: None
        for task in part
        if task.script is not None
        and (beforehand or task.asked is not None or _is_unloaded(task.error))
    }
    return [script for script in scripts if script not in loaded]


def _is_unloaded(error: BaseException | None) -> bool:
    return error is not None and kind_of(error) is Kind.RELOAD


def worst_error(tasks: Sequence[Task]) -> BaseException:
    """Return the error that decides when to go on: a lost reply before all others."""

    def weight(error: BaseException) -> int:
        if kind_of(error) is Kind.UNKNOWN:
            return 0
        return 3 if is_redirection(error) else 2 if code_of(error) == "TRYAGAIN" else 1

    return min((task.error for task in tasks if task.error is not None), key=weight)
