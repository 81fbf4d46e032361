"""Join the replies of several nodes of a cluster into one reply, and classify their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import AskError

from rmq.errors import RMQError
from rmq.kernel.core.settings import Fsync, Replicated
from rmq.kernel.transport.errors import Kind, code_of, kind_of
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.single.server_commands import parsed


def is_redirection(error: BaseException) -> bool:
    """Return whether the caller may repeat a call immediately after an error.

    The error then names another node, or says that a script is missing.
    """
    return isinstance(error, AskError) or kind_of(error) is Kind.RELOAD


def is_unreachable(error: BaseException) -> bool:
    """Return whether an error says that a node cannot be reached, or is not ready.

    If the error names another node for the slots, return False.
    """
    is_later = kind_of(error) in (Kind.AGAIN, Kind.UNKNOWN)
    return is_later and not is_redirection(error) and code_of(error) != "TRYAGAIN"


def joined(
    command: Command[Any], join: Callable[[Sequence[Any]], Any], values: Sequence[Any]
) -> Any:
    """Join the values of a command that RMQ has sent to several nodes in parts.

    Return the value of the whole command, or an RMQError.
    """
    try:
        return parsed(command, join(values))
    except RMQError as error:
        return error


def least(replies: Sequence[Any], durability: Replicated | Fsync | None) -> Any:
    """Return the smallest counts in the replies to WAIT or WAITAOF commands.

    If a reply is an error, return the first error.
    """
    for reply in replies:
        if isinstance(reply, BaseException):
            return reply
    if not replies:
        return [0, 0] if isinstance(durability, Fsync) else 0
    if isinstance(durability, Fsync):
        return [min(disks) for disks in zip(*replies, strict=True)]
    return min(replies)


def _in_order(order: list[int], replies: list[Any]) -> list[Any]:
    flat = [value for reply in replies for value in reply]
    return [value for _, value in sorted(zip(order, flat, strict=True), key=lambda pair: pair[0])]


def _sum(_: list[int], replies: list[Any]) -> int:
    return sum(replies)


# How to join the replies of the parts, from the positions of their keys in the command.
MANY_KEYS: dict[str, Callable[[list[int], list[Any]], Any]]
MANY_KEYS = {"MGET": _in_order, "UNLINK": _sum, "DEL": _sum, "EXISTS": _sum}
