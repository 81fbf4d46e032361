"""Script calls: load a script that the server lacks, repeat what may be repeated, explain errors.

Each method is a generator of operations, for either transport to perform.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import hiredis
import redis

from rmq.core import keys as rmq_keys
from rmq.core.settings import Fsync, Replicated
from rmq.errors import RMQError
from rmq.protocol.divide import divide
from rmq.protocol.functions import Calls, function_name
from rmq.protocol.scripts import Script
from rmq.protocol.steps import Command
from rmq.transport.cluster_slots import hash_slot
from rmq.transport.durability import check_wait, wait_words
from rmq.transport.operations import Exchange, Operations, call, repeat
from rmq.transport.redis_errors import REDIS_ERRORS, Kind, code_of, kind_of, translate
from rmq.transport.retry_deadline import RetryDeadline
from rmq.transport.url import Address


def words_of(command: Command[Any], calls: Calls = "scripts") -> tuple[Any, ...]:
    """Return the words of a script call, or of the call of its function."""
    keys = command.keys
    if calls == "scripts":
        return ("EVALSHA", command.script.sha, len(keys), *keys, *command.args)
    return ("FCALL", function_name(command.script.name), len(keys), *keys, *command.args)


def request_of(command: Command[Any], calls: Calls) -> tuple[bytes, int]:
    """Return what is sent for a command, and how many replies come back."""
    if not command.write:
        return hiredis.pack_command(words_of(command, calls)), 1
    words = (("MULTI",), command.write, words_of(command, calls), ("EXEC",))
    return b"".join(map(hiredis.pack_command, words)), len(words)


def reply_of(replies: Sequence[Any]) -> Any:
    """Return the reply of the script among the replies to a request, or the error that came."""
    if len(replies) == 1:
        return replies[0]
    for reply in replies:
        if isinstance(reply, BaseException):
            return reply  # refused before the transaction ran, which did nothing then
    wrote, reply = replies[-1]
    return wrote if isinstance(wrote, BaseException) else reply


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

    def deadline(self, name: str) -> RetryDeadline:
        """Begin the retry deadline of a command."""
        return RetryDeadline(name, self._address, self._retry_for)

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

        deadline = self.deadline(commands[0].script.name)

        def attempt() -> Operations[list[Any]]:
            # Loaded beforehand: a command repeated alone would come after its successors.
            if self._address.calls == "scripts":
                for script in {command.script for command in commands} - self.loaded:
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
        requests = [request_of(command, self._address.calls) for command in commands]
        if durability is not None:
            requests.append((hiredis.pack_command(wait_words(durability)), 1))
        packed, counts = zip(*requests, strict=True)
        flat = iter((yield Exchange(b"".join(packed), sum(counts))))
        replies = [reply_of(list(itertools.islice(flat, count))) for count in counts]
        for reply in replies:
            if isinstance(reply, redis.RedisError) and kind_of(reply) is Kind.AGAIN:
                raise reply  # repeat all of it: the commands that were done are safe to do twice
        return replies

    def _call(self, command: Command[Any]) -> Operations[Any]:
        reply = reply_of((yield Exchange(*request_of(command, self._address.calls))))
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def _load(self, script: Script) -> Operations[None]:
        yield from call("SCRIPT", "LOAD", script.text)
        self.loaded.add(script)

    def _explain(
        self, command: Command[Any], error: BaseException, deadline: RetryDeadline
    ) -> Operations[RMQError]:
        """Translate the error of a command; name the key if it holds a wrong type."""
        if is_unknown(self._address.calls, error, deadline.may_be_done):
            return deadline.failure(error, True)
        wrong_key = ""
        if code_of(error) == "WRONGTYPE":
            with contextlib.suppress(*REDIS_ERRORS):
                types = []
                for key in command.keys:
                    types.append((yield from call("TYPE", key)))
                wrong_key = key_of_wrong_type(command, types)
        keys = [rmq_keys.printable(key) for key in command.keys]
        return translate(error, command.script.name, keys, wrong_key)


def _needs_loading(reply: Any) -> bool:
    """Whether a reply says that the server does not have the script."""
    return isinstance(reply, redis.RedisError) and kind_of(reply) is Kind.RELOAD


def is_unknown(calls: Calls, error: BaseException, may_be_done: bool) -> bool:
    """Whether an error leaves unknown what an earlier attempt without a reply has done.

    At maxmemory Redis does not begin a function that adds. A script begins, and recognizes there
    what it has done before.
    """
    return may_be_done and calls == "functions" and code_of(error) == "OOM"


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
