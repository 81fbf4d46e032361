"""Wait until replicas or disks have the message of a durable send.

The commands are WAIT (replicas) and WAITAOF (disks).
"""

from __future__ import annotations

from typing import Any

from rmq.errors import ConfigurationError
from rmq.kernel.core.settings import Fsync, Replicated
from rmq.kernel.core.validation import duration_ms
from rmq.kernel.transport.errors import code_of, denied


def check_wait(durability: Replicated | Fsync, timeout_s: float) -> None:
    """Check that the client waits longer for a reply than the server waits for replicas or disks.

    Otherwise the client would repeat the send while the server waits.

    Raises:
        ConfigurationError: The server would wait as long as `timeout_s`, or longer.
    """
    wait_s = duration_ms(durability.timeout, "timeout") / 1000
    if wait_s >= timeout_s:
        raise ConfigurationError(
            f"durability: its timeout of {wait_s:g} s is not below the client's timeout of "
            f"{timeout_s:g} s for a reply; give Client(timeout=...) more"
        )


def wait_words(durability: Replicated | Fsync) -> tuple[Any, ...]:
    """Return the command that waits for replicas or disks: WAIT or WAITAOF."""
    timeout = duration_ms(durability.timeout, "timeout")
    if isinstance(durability, Fsync):
        return ("WAITAOF", 1, durability.n, timeout)
    return ("WAIT", durability.n, timeout)


def confirmed(durability: Replicated | Fsync, reply: Any) -> tuple[int, int]:
    """Return the number of replicas and the number of local disks that confirmed.

    Raises:
        ConfigurationError: The server cannot wait for replicas or disks, or the user has no right
            to wait.
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
        if code_of(reply) == "NOPERM":  # otherwise each send would wait without effect
            raise denied("durability", str(reply), []) from reply
        return 0, 0
    if isinstance(durability, Fsync):
        return int(reply[1]), int(reply[0])
    return int(reply), 0
