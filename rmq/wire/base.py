"""What the sync and the async executor share: options, patience, the words of a command."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from rmq import handle
from rmq import keys as our_keys
from rmq.commands import Command
from rmq.embedded import Embedded
from rmq.errors import ConfigurationError, OutcomeUnknown, RMQError, Unavailable
from rmq.flows import SAFETY_S
from rmq.settings import Fsync, Replicated
from rmq.trouble import Kind, kind_of, translate
from rmq.units import milliseconds
from rmq.url import Address, redact

log = logging.getLogger("rmq")

FIRST_PAUSE_S, LAST_PAUSE_S = 0.02, 1.0
FINE_S = 0.0015  # below this, a socket's millisecond timeouts are too coarse to be on time
TROUBLE = (redis.RedisError, OSError)


def options(address: Address, timeout_s: float) -> dict[str, Any]:
    """How every connection is made, whatever redis-py's version would have chosen."""
    return {
        "decode_responses": False,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": min(timeout_s, 5.0),
        **({} if address.scheme in ("unix", "embedded") else {"socket_keepalive": True}),
        **({"ssl_check_hostname": True} if address.scheme == "rediss" else {}),
    }


class Attempts:
    """How long to go on with one command: pauses that grow, until a deadline."""

    __slots__ = ("maybe_done", "pause", "until")

    def __init__(self, retry_for: float) -> None:
        self.until = time.monotonic() + retry_for
        self.pause = FIRST_PAUSE_S
        self.maybe_done = False

    def next_pause(self, error: BaseException, what: str, shown: str) -> float:
        """How long to wait before the next attempt; raises when there is none."""
        if kind_of(error) is Kind.UNKNOWN:
            self.maybe_done = True
        if time.monotonic() + self.pause > self.until:
            text = redact(str(error))[:200]
            if self.maybe_done:
                raise OutcomeUnknown(
                    f"{what}: no reply from {shown} ({text}); it may have been done. "
                    "Repeat it: every RMQ command is safe to run twice, a send with the same id"
                ) from error
            raise Unavailable(
                f"{what}: {shown} cannot be reached or is not ready ({text}); nothing was done. "
                "Check that Redis runs there: redis-cli ping"
            ) from error
        pause = self.pause * random.uniform(0.5, 1.0)
        self.pause = min(self.pause * 2, LAST_PAUSE_S)
        return pause


def wait_words(durability: Replicated | Fsync) -> tuple[Any, ...]:
    """The command that waits for copies."""
    timeout = milliseconds(durability.timeout, "timeout")
    if isinstance(durability, Fsync):
        return ("WAITAOF", 1, durability.n, timeout)
    return ("WAIT", durability.n, timeout)


def confirmed(durability: Replicated | Fsync, reply: Any) -> tuple[int, int]:
    """(replicas, local disks) that confirmed."""
    if isinstance(reply, BaseException):
        if "unknown command" in str(reply).lower():
            raise ConfigurationError(
                "durability: this server has no WAITAOF (Redis 7.2 and later have); use "
                "rmq.Replicated(...), or appendfsync always on the server with 'memory'"
            ) from reply
        if isinstance(durability, Fsync) and "appendonly" in str(reply).lower():
            raise ConfigurationError(
                "durability: fsync needs appendonly yes on the server"
            ) from reply
        return 0, 0
    if isinstance(durability, Fsync):
        return int(reply[1]), int(reply[0])
    return int(reply), 0


def words_of(command: Command[Any]) -> tuple[Any, ...]:
    """The words of a script call."""
    return ("EVALSHA", command.script.sha, len(command.keys), *command.keys, *command.args)


def needs_loading(reply: Any) -> bool:
    """Whether a reply says that the server does not have the script."""
    return isinstance(reply, redis.RedisError) and kind_of(reply) is Kind.RELOAD


def wrong_type(error: BaseException) -> bool:
    """Whether a key holds another type than the command takes."""
    return "WRONGTYPE" in str(error)


def culprit_of(command: Command[Any], types: Sequence[Any]) -> str:
    """The key of a command that holds another type than RMQ keeps there."""
    for key, found in zip(command.keys, types, strict=True):
        expected = our_keys.type_of(key)
        if isinstance(found, bytes) and found != b"none" and found.decode() != expected:
            return f"{our_keys.shown(key)} (a {found.decode()}, RMQ keeps a {expected} there)"
    return ""


def parsed(command: Command[Any], reply: Any) -> Any:
    """The value of a reply, or the RMQError that reading it raised."""
    try:
        return command.parse(reply)
    except RMQError as error:
        return error


class Base:
    """What both executors share: the address, the patience, the words of errors."""

    def __init__(self, address: Address, retry_for: float, timeout_s: float) -> None:
        self.address = address
        self.retry_for = retry_for
        self.timeout_s = timeout_s
        self.embedded: Embedded | None = None
        self._generation = handle.generation()

    def forked(self) -> bool:
        """Whether this process has forked since the last call: its lines are its parent's."""
        before, self._generation = self._generation, handle.generation()
        return before != self._generation

    def patient(self, durability: Replicated | Fsync | None) -> None:
        """Refuse to wait for copies longer than for a reply: the send would be repeated."""
        if durability is None:
            return
        wait_s = milliseconds(durability.timeout, "timeout") / 1000
        if wait_s >= self.timeout_s:
            raise ConfigurationError(
                f"durability: its timeout of {wait_s:g} s is not below the client's timeout of "
                f"{self.timeout_s:g} s for a reply; give Client(timeout=...) more"
            )

    def url(self) -> str:
        """What redis-py connects to now."""
        if self.embedded is None:
            return self.address.url
        return "unix://" + self.embedded.socket

    @contextlib.contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """Errors of making a connection, as ours."""
        try:
            yield
        except TROUBLE as error:
            raise translate(error, what, []) from error
        except ValueError as error:
            raise ConfigurationError(f"url: {self.address.shown}: {error}") from error


class Refused:
    """Stands where a subscription would: this Redis user may not listen to the channel.

    The consumer looks once in SAFETY_S instead. After AGAIN_S it asks to subscribe again, so that a
    repaired ACL needs no restart.
    """

    AGAIN_S = 60.0
    told = False  # one line in the log of a process is enough

    def __init__(self, channel: bytes) -> None:
        self.until = time.monotonic() + self.AGAIN_S
        if not Refused.told:
            Refused.told = True
            log.warning(
                "Redis does not let this user SUBSCRIBE to %s: nothing is lost, but a waiting "
                "consumer notices new messages up to %g s late. Give the user the channels: "
                "ACL SETUSER <user> '&%s*'",
                channel.decode(), SAFETY_S, channel.decode().split("{")[0],
            )  # fmt: skip


def not_permitted(error: BaseException) -> bool:
    """Whether the ACL of this Redis user does not allow the command or the channel."""
    classes = [cls.__name__ for cls in type(error).__mro__]
    return "NoPermissionError" in classes or str(error).startswith("NOPERM")


def hear(reply: Any, signals: set[int]) -> None:
    """Note the slot that a wake signal names."""
    if isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message":
        with contextlib.suppress(ValueError):
            signals.add(int(reply[2]))
