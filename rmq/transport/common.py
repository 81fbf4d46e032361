"""What the sync and the async transport share: options, patience, the words of a command."""

from __future__ import annotations

import contextlib
import logging
import random
import re
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from rmq.core import fork, keys as our_keys
from rmq.core.settings import Fsync, Replicated
from rmq.core.validation import duration_ms
from rmq.errors import ConfigurationError, OutcomeUnknown, RMQError, Unavailable
from rmq.protocol.steps import POLL_S, Command
from rmq.transport.embedded import Embedded
from rmq.transport.pool import CHECK_S, TROUBLE, ConnectionsBusy, Stale
from rmq.transport.redis_errors import Kind, code_of, kind_of, translate
from rmq.transport.url import Address, redact

log = logging.getLogger("rmq")

FIRST_PAUSE_S, LAST_PAUSE_S = 0.02, 1.0
FINE_S = 0.0015  # below this, a socket's millisecond timeouts are too coarse to be on time
HAND_BACK_S = 1.0  # how long an interrupted call may take to hand back what it had leased
PING_S = 10.0  # a subscription on which nothing came for so long is asked whether it lives
PONG_S = 5.0  # how long its answer may take
# The kernel asks too: routers forget connections that are silent for minutes.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


def options(address: Address, timeout_s: float) -> dict[str, Any]:
    """How every connection is made, whatever redis-py's version would have chosen."""
    keepalive = {
        "socket_keepalive": True,
        "socket_keepalive_options": {
            getattr(socket, name): seconds
            for name, seconds in _KEEPALIVE.items()
            if hasattr(socket, name)
        },
    }
    return {
        "decode_responses": False,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": min(timeout_s, 5.0),
        **({} if address.scheme in ("unix", "embedded") else keepalive),
        **({"ssl_check_hostname": True} if address.scheme == "rediss" else {}),
    }


class Attempts:
    """How long to go on with one command: pauses that grow, until a deadline."""

    __slots__ = ("fresh", "maybe_done", "pause", "until")

    def __init__(self, retry_for: float) -> None:
        self.until = time.monotonic() + retry_for
        self.pause = FIRST_PAUSE_S
        self.maybe_done = False
        self.fresh = False  # whether a new connection has been tried for a stale one

    def next_pause(self, error: BaseException, what: str, address: Address) -> float:
        """How long to wait before the next attempt; raises when there is none."""
        if kind_of(error) is Kind.UNKNOWN:
            self.maybe_done = True
        if isinstance(error, Stale) and not self.fresh:
            self.fresh = True
            return 0.0  # that an old connection has died tells nothing of the server
        # Who has waited in line for a connection has been as patient as with a server.
        if isinstance(error, ConnectionsBusy) or time.monotonic() + self.pause > self.until:
            # The caller is to read what happened, not where in here, nor at which attempts.
            error.__context__ = error.__traceback__ = None
            raise self._given_up(error, what, address) from error
        pause = self.pause * random.uniform(0.5, 1.0)
        self.pause = min(self.pause * 2, LAST_PAUSE_S)
        return pause

    def _given_up(self, error: BaseException, what: str, address: Address) -> RMQError:
        text, shown = redact(str(error))[:300], address.told
        if self.maybe_done:
            return OutcomeUnknown(
                f"{what}: no reply from {shown} ({text}); it may have been done. "
                "Repeat it: every RMQ command is safe to run twice, a send with the same id"
            )
        if isinstance(error, ConnectionsBusy):
            return Unavailable(f"{what}: {text}; nothing was done")
        return Unavailable(
            f"{what}: {shown} cannot be reached or is not ready ({text}); nothing was done. "
            "Check that Redis runs there: redis-cli ping"
        )


def wait_words(durability: Replicated | Fsync) -> tuple[Any, ...]:
    """The command that waits for copies."""
    timeout = duration_ms(durability.timeout, "timeout")
    if isinstance(durability, Fsync):
        return ("WAITAOF", 1, durability.n, timeout)
    return ("WAIT", durability.n, timeout)


def confirmed(durability: Replicated | Fsync, reply: Any) -> tuple[int, int]:
    """(replicas, local disks) that confirmed."""
    if isinstance(reply, BaseException):
        if str(reply).startswith("unknown command"):
            raise ConfigurationError(
                "durability: this server has no WAITAOF (Redis 7.2 and later have); use "
                "rmq.Replicated(...), or appendfsync always on the server with 'memory'"
            ) from reply
        if isinstance(durability, Fsync) and code_of(reply) == "WAITAOF":
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
    return code_of(error) == "WRONGTYPE"


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
        self._generation = fork.generation()

    def forked(self) -> bool:
        """Whether this process has forked since the last call: its lines are its parent's."""
        before, self._generation = self._generation, fork.generation()
        return before != self._generation

    def bounds(self) -> tuple[int, float, float]:
        """How many connections; how long to wait for one, and for a sign that it lives."""
        wait_s = self.timeout_s + self.retry_for
        return self.address.max_connections, wait_s, min(CHECK_S, self.timeout_s)

    def patient(self, durability: Replicated | Fsync | None) -> None:
        """Refuse to wait for copies longer than for a reply: the send would be repeated."""
        if durability is None:
            return
        wait_s = duration_ms(durability.timeout, "timeout") / 1000
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
            raise ConfigurationError(f"url: {self.address.shown}: {error}") from None
        except TypeError as error:
            option = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            if option is None:
                raise
            raise ConfigurationError(
                f"url: {self.address.shown}: there is no option {option.group(1)!r}; correct its "
                "name or leave it out. Options are those of redis-py's connections, and "
                "max_connections"
            ) from None


class SubscribedConnection:
    """A connection that listens to a channel, and when it was last known to live."""

    __slots__ = ("heard", "incident", "line", "pinged")

    def __init__(self, line: Any, incident: int) -> None:
        self.line = line
        self.incident = incident  # the pool's last one when this was made
        self.heard = time.monotonic()
        self.pinged: float | None = None  # when it was asked, unless it has answered

    def is_to_ping(self) -> bool:
        """Whether it was silent for so long that it is to be asked; notes that it is."""
        now = time.monotonic()
        if self.pinged is not None or now < self.heard + PING_S:
            return False
        self.pinged = now
        return True

    def hear(self, reply: Any, signals: set[int]) -> None:
        """Note that it lives, and the slot that a wake signal names."""
        self.heard, self.pinged = time.monotonic(), None
        if isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message":
            with contextlib.suppress(ValueError):
                signals.add(int(reply[2]))

    def was_silent(self) -> None:
        """Nothing is there to be read just now.

        Raises:
            redis.ConnectionError: it owes an answer for too long; nobody is at the other end.
        """
        if self.pinged is not None and time.monotonic() > self.pinged + PONG_S:
            raise redis.ConnectionError(f"a subscription did not answer for {PONG_S:g} s")


class Refused:
    """Stands where a subscription would: this Redis user may not listen to the channel.

    The consumer looks once in POLL_S instead. After AGAIN_S it asks to subscribe again, so that a
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
                channel.decode(), POLL_S, channel.decode().split("{")[0],
            )  # fmt: skip


def not_permitted(error: BaseException) -> bool:
    """Whether the ACL of this Redis user does not allow the command or the channel."""
    return code_of(error) == "NOPERM"
