"""Script calls: load a script that the server lacks, repeat what may be repeated, explain errors.

Generators of operations on connections hold the rules that both transports share: when to repeat,
what to load, how to listen, when copies are waited for. `Transport` performs the operations with
blocking calls, `AsyncTransport` awaits them; neither contains a rule. A retry deadline has pauses
that grow between attempts, and the error at its end.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import redis
from redis.exceptions import AskError

from rmq.errors import (
    ConfigurationError,
    OutcomeUnknown,
    RMQError,
    ScriptFailed,
    StorageError,
    Unavailable,
)
from rmq.kernel.core import keys as rmq_keys
from rmq.kernel.core.settings import Fsync, Replicated
from rmq.kernel.core.validation import UNREADABLE, duration_ms
from rmq.kernel.transport.connections.pool import (
    ConnectionsBusy,
    StaleConnection,
    pack,
    reply_of,
    request_of,
)
from rmq.kernel.transport.errors import (
    REDIS_ERRORS,
    Kind,
    advice,
    code_of,
    denied,
    forbids,
    kind_of,
    refusal_of_writes,
    translate,
)
from rmq.kernel.transport.flow.steps import Command, Subscription
from rmq.kernel.transport.hash_slots import ExchangeAll, RefreshTable, divide, hash_slot
from rmq.kernel.transport.lua.script_loader import Script
from rmq.kernel.transport.url import Address, redact

_log = logging.getLogger("rmq")


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


T = TypeVar("T")


class Exchange:
    """Send packed commands on one connection. The value is their replies, server errors included.

    `count`: how many commands they are. `late`: Redis answers late, as to a wait for copies.
    """

    __slots__ = ("count", "late", "packed")

    def __init__(self, packed: bytes, count: int, late: bool = False) -> None:
        self.packed = packed
        self.count = count
        self.late = late


class Pause:
    """Wait for so many seconds."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class RestartEmbedded:
    """Start the embedded server again if it is gone."""

    __slots__ = ()


class Subscribe:
    """Make a connection that is subscribed to channels. The value is a SubscribedConnection.

    `optional`: channels that are left out where the ACL forbids them. `shard`: a shard channel,
    left out where it is refused.
    """

    __slots__ = ("optional", "required", "shard")

    def __init__(
        self, required: Sequence[bytes], optional: Sequence[bytes] = (), shard: bytes = b""
    ) -> None:
        self.required = required
        self.optional = optional
        self.shard = shard

    def packed(self) -> bytes:
        """Return the commands, one for each channel."""
        words: list[tuple[Any, ...]] = [
            ("SUBSCRIBE", channel) for channel in (*self.required, *self.optional)
        ]
        if self.shard:
            words.append(("SSUBSCRIBE", self.shard))
        return b"".join(map(pack, words))


class Unsubscribe:
    """Close the connection of a subscription."""

    __slots__ = ("subscription",)

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription


class SendPing:
    """Send PING on a connection of redis-py; its reply is read later."""

    __slots__ = ("connection",)

    def __init__(self, connection: Any) -> None:
        self.connection = connection


class Read:
    """Read one reply from a SubscribedConnection.

    The value is None if none comes in time, RUNG if the wait is interrupted. A read that an
    exception ends has lost nothing: the next one goes on.
    """

    __slots__ = ("subscribed", "timeout_s")

    def __init__(self, subscribed: Any, timeout_s: float) -> None:
        self.subscribed = subscribed
        self.timeout_s = timeout_s


Operation = (
    Exchange
    | Pause
    | RestartEmbedded
    | Subscribe
    | Unsubscribe
    | SendPing
    | Read
    | ExchangeAll
    | RefreshTable
)
Operations = Generator[Operation, Any, T]


def refusal_of_transactions(key: bytes) -> Operations[BaseException | None]:
    """Look whether the server runs a script in a transaction; return its refusal.

    It calls a script that there is not, so nothing is changed, whatever is refused. That this user
    has no right to one is raised: whoever wrote the ACL decides.
    """
    words: list[tuple[Any, ...]] = [("MULTI",), ("EVALSHA", "0" * 40, 1, key), ("EXEC",)]
    replies = yield Exchange(b"".join(map(pack, words)), len(words))
    for reply in (*replies[:2], *(replies[2] if isinstance(replies[2], list) else replies[2:])):
        if not isinstance(reply, BaseException) or kind_of(reply) is Kind.RELOAD:
            continue
        is_denied = code_of(reply) == "NOPERM"
        if is_denied or kind_of(reply) is not Kind.REFUSED or isinstance(reply, AskError):
            raise reply
        return reply
    return None


def call(*words: Any) -> Operations[Any]:
    """Send one command; return its reply, or raise the server's error."""
    (reply,) = yield Exchange(pack(words), 1)
    if isinstance(reply, BaseException):
        raise reply
    return reply


def repeat(
    attempt: Callable[[], Operations[T]],
    deadline: RetryDeadline,
    error: BaseException | None = None,
) -> Operations[T]:
    """Attempt until it succeeds, is refused (raised as it is), or the deadline has passed.

    Args:
        attempt: makes the operations of one attempt.
        deadline: decides about pauses and the end.
        error: of an attempt that was made already.
    """
    while True:
        if error is not None:
            if kind_of(error) is Kind.REFUSED:
                raise error
            yield Pause(deadline.next_pause(error))
            yield RestartEmbedded()
        try:
            return (yield from attempt())
        except REDIS_ERRORS as failure:
            error = failure


FIRST_PAUSE_S, LAST_PAUSE_S = 0.02, 1.0
# With sentinels most outages are failovers of two seconds, and attempts ask a sentinel first.
FAILOVER_PAUSE_S = 0.2


class RetryDeadline:
    """Decides how long to go on with one command.

    Args:
        name: the command, for errors.
        address: the server, for errors.
        retry_for: seconds from now in which attempts may begin.
    """

    __slots__ = ("_address", "_name", "_pause_s", "_retried_stale", "_until", "may_be_done")

    def __init__(self, name: str, address: Address, retry_for: float) -> None:
        self._name = name
        self._address = address
        self._until = time.monotonic() + retry_for
        self._pause_s = FIRST_PAUSE_S
        self.may_be_done = False  # an attempt got no reply
        self._retried_stale = False  # whether a stale connection was replaced by a new one already

    def note_partly_done(self) -> None:
        """Note that a part of the command was done: it cannot end with nothing done."""
        self.may_be_done = True

    def next_pause(self, error: BaseException) -> float:
        """Return the seconds to wait before the next attempt.

        Raises:
            Unavailable: no attempt is left, and nothing was done.
            OutcomeUnknown: no attempt is left, and one of them may have been done.
        """
        if kind_of(error) is Kind.UNKNOWN:
            self.may_be_done = True
        if isinstance(error, StaleConnection) and not self._retried_stale:
            self._retried_stale = True
            return 0.0  # the death of an old connection says nothing about the server
        # A call that waited for a free connection has used up its time already.
        if isinstance(error, ConnectionsBusy) or time.monotonic() + self._pause_s > self._until:
            # The caller reads what happened, not the frames of the attempts.
            error.__context__ = error.__traceback__ = None
            raise self.failure(error, self.may_be_done) from error
        pause_s = self._pause_s * random.uniform(0.5, 1.0)
        longest_s = LAST_PAUSE_S if self._address.sentinels is None else FAILOVER_PAUSE_S
        self._pause_s = min(self._pause_s * 2, longest_s)
        return pause_s

    def failure(self, error: BaseException, may_be_done: bool) -> StorageError:
        """Return the error of a command for which no attempt is left."""
        text, server = redact(str(error))[:300], self._address.described
        if may_be_done:
            return OutcomeUnknown(
                f"{self._name}: no reply from {server} ({text}); it may have been done. "
                "Repeat it: every RMQ command is safe to run twice, a send with the same id"
            )
        if isinstance(error, ConnectionsBusy):
            return Unavailable(f"{self._name}: {text}; nothing was done")
        if code_of(error) == "MISCONF":
            return refusal_of_writes(self._name, server, text)
        fix = None
        if self._address.is_tls:
            fix = advice(str(error), "ssl_certfile=" in self._address.url)
        return Unavailable(
            f"{self._name}: {server} cannot be reached or is not ready ({text}); nothing was done. "
            f"{fix or 'Check that Redis runs there: redis-cli ping'}"
        )


class ScriptCalls:
    """Carries out the commands of one transport.

    Args:
        address: the server, for errors.
        retry_for: seconds in which a command is repeated.
        timeout_s: how long a connection waits for a reply.
        loaded: the scripts that the server is believed to have.
    """

    def __init__(
        self, address: Address, retry_for: float, timeout_s: float, loaded: set[Script]
    ) -> None:
        self._address = address
        self._retry_for = retry_for
        self._timeout_s = timeout_s
        self.loaded = loaded
        # Whether a proxy makes a cluster look like one server. A consumer of several slots takes no
        # hand-overs there: it would leave and withdraw its credits in calls of all its slots.
        self.is_divided = False
        # Whether the server runs a script in a transaction; None: it was not asked yet.
        self._takes_transactions: bool | None = None

    def deadline(self, name: str) -> RetryDeadline:
        """Begin the retry deadline of a command."""
        return RetryDeadline(name, self._address, self._retry_for)

    def takes_transactions(self, key: bytes) -> Operations[bool]:
        """Look whether the server runs a script in a transaction, in the slot of a key.

        Raises:
            RMQError: this user has no right to one, or no reply came before the retry deadline.
        """
        if self._takes_transactions is None:
            try:
                refusal = yield from repeat(
                    lambda: refusal_of_transactions(key), self.deadline("send")
                )
            except REDIS_ERRORS as error:
                raise translate(error, "send", [rmq_keys.printable(key)]) from error
            self._takes_transactions = refusal is None
            if refusal is not None:
                _log.info(
                    "%s runs no script in a transaction (%s), so large bodies stand in their "
                    "records, which takes it more time. Nothing is lost",
                    self._address.described,
                    str(refusal)[:200],
                )
        return self._takes_transactions

    def for_this_server(self, command: Command[Any]) -> Operations[Command[Any]]:
        """Return a command as this server takes it: without its transaction, if it refuses them."""
        if not command.write or (yield from self.takes_transactions(command.keys[0])):
            return command
        return command.alone()

    def first_command(self, command: Command[Any]) -> Operations[Any]:
        """Carry out a command of which it is not known whether this server takes it."""
        suited = yield from self.for_this_server(command)
        error: BaseException
        try:
            return (yield from self._call(suited))
        except REDIS_ERRORS as failure:
            error = failure
        return (yield from self.repeat_command(suited, error))

    def repeat_command(self, command: Command[Any], error: BaseException) -> Operations[Any]:
        """Carry out a command whose first attempt failed with `error`; return its raw reply.

        Raises:
            RMQError: it was refused, or the retry deadline has passed.
        """
        deadline = self.deadline(command.script.name)
        divided = divide(command, hash_slot) if code_of(error) == "CROSSSLOT" else None
        if divided is not None:
            self.is_divided = True
            values, _ = yield from self.pipeline(divided.parts, None)
            return divided.join(values)

        def attempt() -> Operations[Any]:
            repeated = command.again()
            try:
                return (yield from self._call(repeated))
            except redis.ResponseError as failure:
                if not _needs_loading(failure):
                    raise
            yield from self._load(command.script)
            return (yield from self._call(repeated))

        first = None if _needs_loading(error) else error
        try:
            return (yield from repeat(attempt, deadline, first))
        except REDIS_ERRORS as failure:
            raise (yield from self._explain(command, failure, deadline)) from failure

    def pipeline(
        self, commands: Sequence[Command[Any]], durability: Replicated | Fsync | None
    ) -> Operations[tuple[list[Any], Any]]:
        """Carry out several commands in one round trip.

        Returns:
            The value of each command or its RMQError, and the last reply: that of the wait for
            copies if there is a `durability`.
        """
        if durability is not None:
            check_wait(durability, self._timeout_s)
        if any(command.write for command in commands):
            suited = []
            for command in commands:
                suited.append((yield from self.for_this_server(command)))
            commands = suited

        deadline = self.deadline(commands[0].script.name)

        def attempt() -> Operations[list[Any]]:
            # Loaded beforehand: a command repeated alone would come after its successors.
            for script in {c.script for c in commands if c.script.sha} - self.loaded:
                yield from self._load(script)
            replies = yield from self._exchange(commands, durability)
            missing = [n for n in range(len(commands)) if _needs_loading(replies[n])]
            if missing:
                for script in {commands[n].script for n in missing}:
                    yield from self._load(script)
                second = yield from self._exchange([commands[n] for n in missing], durability)
                for number, reply in zip(missing, second, strict=False):
                    if _needs_loading(reply):
                        raise reply  # flushed once more: repeat all of it, as _exchange does
                    replies[number] = reply
                if durability is not None:
                    replies[-1] = second[-1]  # the second wait covers the repeated commands too
            return replies

        try:
            replies = yield from repeat(attempt, deadline)
        except REDIS_ERRORS as error:
            raise (yield from self._explain(commands[0], error, deadline)) from error
        values = []
        for command, reply in zip(commands, replies, strict=False):
            if isinstance(reply, BaseException):
                values.append((yield from self._explain(command, reply, deadline)))
            else:
                values.append(parsed(command, reply))
        return values, replies[-1]

    def raw_command(self, name: str, words: Sequence[Any]) -> Operations[Any]:
        """Carry out a plain command; return its reply.

        Raises:
            RMQError: it was refused, or the retry deadline has passed.
        """
        try:
            return (yield from repeat(lambda: call(*words), self.deadline(name)))
        except REDIS_ERRORS as error:
            shown = [w.decode() if isinstance(w, bytes) else str(w) for w in words[1:2]]
            raise translate(error, name, shown) from error

    def _exchange(
        self, commands: Sequence[Command[Any]], durability: Replicated | Fsync | None
    ) -> Operations[list[Any]]:
        requests = [request_of(command) for command in commands]
        if durability is not None:
            requests.append((pack(wait_words(durability)), 1))
        packed, counts = zip(*requests, strict=True)
        flat = iter((yield Exchange(b"".join(packed), sum(counts), durability is not None)))
        replies = [reply_of(list(itertools.islice(flat, count))) for count in counts]
        for reply in replies:
            if isinstance(reply, redis.RedisError) and kind_of(reply) is Kind.AGAIN:
                raise reply  # repeat all of it: the commands that were done are safe to do twice
        return replies

    def _call(self, command: Command[Any]) -> Operations[Any]:
        reply = reply_of((yield Exchange(*request_of(command))))
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def _load(self, script: Script) -> Operations[None]:
        try:
            yield from call("SCRIPT", "LOAD", script.text)
        except redis.ResponseError as refusal:
            if not forbids(refusal):
                if kind_of(refusal) is Kind.REFUSED:  # a caller of several would name the first
                    raise translate(refusal, script.name, []) from refusal
                raise
            (reply,) = yield Exchange(*eval_request(script))
            if not is_loaded_by(reply):
                raise (refusal if forbids(reply) else reply) from None
        self.loaded.add(script)

    def _explain(
        self, command: Command[Any], error: BaseException, deadline: RetryDeadline
    ) -> Operations[RMQError]:
        """Translate the error of a command; name the key if it holds a wrong type."""
        wrong_key = ""
        if code_of(error) == "WRONGTYPE":
            with contextlib.suppress(*REDIS_ERRORS):
                types = []
                for key in command.keys:
                    types.append((yield from call("TYPE", key)))
                wrong_key = key_of_wrong_type(command, types)
        keys = [rmq_keys.printable(key) for key in command.keys]
        return translate(error, command.script.name, keys, wrong_key)


def eval_request(script: Script) -> tuple[bytes, int]:
    """Return what loads a script without SCRIPT LOAD, and how many replies come back.

    EVAL also loads it. Without keys every script fails before it does anything.
    """
    return pack(("EVAL", script.text, 0)), 1


def is_loaded_by(reply: Any) -> bool:
    """Return whether the reply to `eval_request` says that the server has the script now."""
    if not isinstance(reply, BaseException):
        return True
    return kind_of(reply) is Kind.REFUSED and not forbids(reply)


def _needs_loading(reply: Any) -> bool:
    """Whether a reply says that the server does not have the script."""
    return isinstance(reply, redis.RedisError) and kind_of(reply) is Kind.RELOAD


def key_of_wrong_type(command: Command[Any], types: Sequence[Any]) -> str:
    """Describe the key of a command that holds another type than RMQ keeps there."""
    for key, kind in zip(command.keys, types, strict=True):
        expected = rmq_keys.type_of(key)
        if isinstance(kind, bytes) and kind != b"none" and kind.decode() != expected:
            return f"{rmq_keys.printable(key)} (a {kind.decode()}, RMQ keeps a {expected} there)"
    return ""


def parsed(command: Command[Any], reply: Any) -> Any:
    """Return the value of a reply, or the RMQError that reading it raised."""
    try:
        return command.parse(reply)
    except RMQError as error:
        return error
    except UNREADABLE as error:
        return unreadable(command, error)


def unreadable(command: Command[Any], error: Exception) -> ScriptFailed:
    """Return the error of a reply that has a value which RMQ did not write."""
    keys = ", ".join(rmq_keys.printable(key) for key in command.keys[:3])
    return ScriptFailed(
        f"{command.script.name}: RMQ cannot read a value in {keys} ({ascii(error)[:120]}). "
        "Another program wrote it, or another version of RMQ; correct or delete it"
    )


HAND_BACK_S = 1.0  # how long an interrupted call may take to hand back the messages it had leased
