"""The state of a call to a node of a Redis Cluster, and functions that encode calls."""

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


class RoutedCall:
    """A call to a node of the cluster, and the state of this call.

    Args:
        slot: Hash slot of the keys, or None if any node can execute the command.
        command: A command, or the words of a plain command.
        node: Node that gets the call. Default: the master of the slot.

    Attributes:
        asked: Node that an ASK reply has named, or None. The next attempt sends ASKING and the call
            to this node.
        count: Number of replies to the call.
        losses: Number of attempts without a reply.
        error: Reason to send the call again, or None if the call has ended.
        reply: Reply to the ended call, or the error with which the node refused the call.
    """

    __slots__ = ("asked", "command", "count", "error", "losses", "node", "reply", "slot")

    def __init__(
        self, slot: int | None, command: Command[Any] | Sequence[Any], node: Node | None = None
    ) -> None:
        self.slot = slot
        self.command = command
        self.node = node
        self.asked: Node | None = None
        self.count = 0
        self.losses = 0
        self.error: BaseException | None = redis.RedisError("not sent yet")
        self.reply: Any = None

    @property
    def script(self) -> Script | None:
        """The script that the call executes, or None for a plain command."""
        if isinstance(self.command, Command) and self.command.script.sha:
            return self.command.script
        return None

    @property
    def fails_fast(self) -> bool:
        """Whether the call fails immediately, without retries, if its slot's master is missing."""
        return isinstance(self.command, Command) and self.command.fails_fast

    def pack(self) -> bytes:
        """Encode the commands of this call as bytes. Store the number of commands in `count`."""
        if isinstance(self.command, Command):
            packed, self.count = request_of(self.command)
        else:
            packed, self.count = pack(tuple(self.command)), 1
        if self.asked is not None:
            packed, self.count = _ASKING + packed, self.count + 1
        return packed

    def note_lost(self, error: BaseException) -> None:
        """Record that the connection was lost before the reply."""
        self.error, self.asked = error, None
        if kind_of(error) is Kind.UNKNOWN:
            self.losses += 1
            if isinstance(self.command, Command):
                self.command = self.command.as_repeat()

    def lacks_script(self, script: Script) -> bool:
        """Return whether the node refused the call because it does not have this script."""
        return self.script is script and _is_unloaded(self.error)

    def refuse(self, refusal: BaseException) -> None:
        """Record that the node refused to load the script of the call."""
        self.asked = None
        if kind_of(refusal) is Kind.AGAIN:
            self.error = refusal
        else:
            self.reply, self.error = refusal, None

    def fail(self, failure: StorageError, repeat_for: float) -> None:
        """End the call with an error.

        Args:
            failure: Error that the caller gets.
            repeat_for: Number of seconds for which the caller may repeat the call.
        """
        failure._repeat_for = repeat_for
        self.reply, self.error = failure, None


def pack_calls(
    loads: Sequence[Script], part: Sequence[RoutedCall], wait: bytes
) -> tuple[bytes, int]:
    """Encode the commands for a node as bytes. Return the bytes and the number of replies."""
    words: list[tuple[Any, ...]] = [("SCRIPT", "LOAD", script.text) for script in loads]
    texts = map(pack, words)
    packed = b"".join([*texts, *(call.pack() for call in part), wait])
    return packed, len(words) + sum(call.count for call in part) + bool(wait)


def missing_scripts(
    part: Iterable[RoutedCall], loaded: set[Script], load_first: bool
) -> list[Script]:
    """Return the scripts that RMQ must load on a node together with its calls.

    Args:
        part: Calls to the node.
        loaded: Scripts that the node has.
        load_first: Whether to load all missing scripts before the calls. Otherwise, RMQ loads a
            script only after the node has reported that it is missing. RMQ then repeats the call,
            which may run after later calls.
    """
    scripts = {
        call.script: None
        for call in part
        if call.script is not None
        and (load_first or call.asked is not None or _is_unloaded(call.error))
    }
    return [script for script in scripts if script not in loaded]


def _is_unloaded(error: BaseException | None) -> bool:
    return error is not None and kind_of(error) is Kind.RELOAD


def worst_error(calls: Sequence[RoutedCall]) -> BaseException:
    """Return the most important error of several calls that RMQ will try again.

    A lost reply is more important than any other error.
    """

    def weight(error: BaseException) -> int:
        if kind_of(error) is Kind.UNKNOWN:
            return 0
        return 3 if is_redirection(error) else 2 if code_of(error) == "TRYAGAIN" else 1

    return min((call.error for call in calls if call.error is not None), key=weight)
