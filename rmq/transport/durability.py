"""Durability of a pipeline: the command that waits for replicas or disks, its limit, its reply."""

from __future__ import annotations

from typing import Any

from rmq.core.settings import Fsync, Replicated
from rmq.core.validation import duration_ms
from rmq.errors import ConfigurationError
from rmq.transport.denied import denied
from rmq.transport.redis_errors import code_of


def check_wait(durability: Replicated | Fsync, timeout_s: float) -> None:
    """Refuse to wait for copies as long as for a reply: the send would be repeated meanwhile.

    Raises:
        ConfigurationError: the wait is not below `timeout_s`.
    """
    wait_s = duration_ms(durability.timeout, "timeout") / 1000
    if wait_s >= timeout_s:
        raise ConfigurationError(
            f"durability: its timeout of {wait_s:g} s is not below the client's timeout of "
            f"{timeout_s:g} s for a reply; give Client(timeout=...) more"
        )


def wait_words(durability: Replicated | Fsync) -> tuple[Any, ...]:
    """Return the command that waits for copies."""
    timeout = duration_ms(durability.timeout, "timeout")
    if isinstance(durability, Fsync):
        return ("WAITAOF", 1, durability.n, timeout)
    return ("WAIT", durability.n, timeout)


def confirmed(durability: Replicated | Fsync, reply: Any) -> tuple[int, int]:
    """Return how many replicas and how many local disks confirmed.

    Raises:
        ConfigurationError: this server cannot wait so, or this user may not.
    """
    if isinstance(reply, BaseException):
        is_unknown = str(reply).startswith("unknown command")
        if is_unknown and isinstance(durability, Replicated):
            raise ConfigurationError(
                "durability: this server has no WAIT; use 'memory', with min-replicas-to-write on "
                "the server"
            ) from reply
        if is_unknown:
            raise ConfigurationError(
                "durability: this server has no WAITAOF (Redis 7.2 and later have); use "
                "rmq.Replicated(...), or appendfsync always on the server with 'memory'"
            ) from reply
        if isinstance(durability, Fsync) and code_of(reply) == "WAITAOF":
            raise ConfigurationError(
                "durability: fsync needs appendonly yes on the server"
            ) from reply
        if code_of(reply) == "NOPERM":  # the messages are stored; every send would wait in vain
            raise denied("durability", str(reply), []) from reply
        return 0, 0
    if isinstance(durability, Fsync):
        return int(reply[1]), int(reply[0])
    return int(reply), 0
