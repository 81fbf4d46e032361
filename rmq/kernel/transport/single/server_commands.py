"""Execute commands on one server: load missing scripts, repeat commands, explain errors.

The generators in this module have the rules that the blocking and the asyncio transport share.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import AskError

from rmq.errors import RMQError, ScriptFailed
from rmq.kernel.core import keys as rmq_keys
from rmq.kernel.core.settings import Fsync, Replicated
from rmq.kernel.core.validation import UNREADABLE
from rmq.kernel.transport.connections.operations import Exchange, Operations, call
from rmq.kernel.transport.connections.pool import pack, reply_of, request_of
from rmq.kernel.transport.errors import REDIS_ERRORS, Kind, code_of, forbids, kind_of, translate
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.hash_slots import divide, hash_slot
from rmq.kernel.transport.lua.script_loader import Script
from rmq.kernel.transport.single.durability import check_wait, wait_words
from rmq.kernel.transport.single.retry_deadline import RetryDeadline, repeat
from rmq.kernel.transport.url import Address

_log = logging.getLogger("rmq")


def refusal_of_transactions(key: bytes) -> Operations[BaseException | None]:
    """Check whether the server runs a script in a transaction.

    If the server refuses, return the refusal, otherwise None. The check calls a script that does
    not exist, so it changes nothing. If the ACL forbids transactions, the function raises an error,
    because the operator may change the ACL.
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


class ServerCommands:
    """Executes the commands of one transport on one server.

    Args:
        address: Address of the server, for errors.
        retry_for: How long to repeat a failed command, in seconds.
        timeout_s: Maximum wait for a reply, in seconds.
        loaded: Scripts that this client has loaded. The server loses scripts when it restarts.
    """

    def __init__(
        self, address: Address, retry_for: float, timeout_s: float, loaded: set[Script]
    ) -> None:
        self._address = address
        self._retry_for = retry_for
        self._timeout_s = timeout_s
        self.loaded = loaded
        # Whether the server is a proxy in front of a cluster. Consumers of several slots then get
        # no hand-overs, because one call cannot leave credits in several slots.
        self.is_divided = False
        # Whether the server runs a script in a transaction; None: not checked yet.
        self._accepts_transactions: bool | None = None

    def deadline(self, name: str) -> RetryDeadline:
        """Return a new retry deadline for a command."""
        return RetryDeadline(name, self._address, self._retry_for)

    def accepts_transactions(self, key: bytes) -> Operations[bool]:
        """Return whether the server runs a script in a transaction.

        Args:
            key: A key of the slot. A proxy chooses the server by this key.

        Raises:
            RMQError: This user may not use transactions, or no reply arrived before the retry
                deadline.
        """
        if self._accepts_transactions is None:
            try:
                refusal = yield from repeat(
                    lambda: refusal_of_transactions(key), self.deadline("send")
                )
            except REDIS_ERRORS as error:
                raise translate(error, "send", [rmq_keys.printable(key)]) from error
            self._accepts_transactions = refusal is None
            if refusal is not None:
                _log.info(
                    "%s runs no script in a transaction (%s), so large bodies are stored in their "
                    "records, which costs Redis more time. Nothing is lost",
                    self._address.described,
                    str(refusal)[:200],
                )
        return self._accepts_transactions

    def for_this_server(self, command: Command[Any]) -> Operations[Command[Any]]:
        """Remove the transaction from a command if this server refuses transactions."""
        if not command.write or (yield from self.accepts_transactions(command.keys[0])):
            return command
        return command.without_transaction()

    def first_command(self, command: Command[Any]) -> Operations[Any]:
        """Execute a command that writes a large body, in a transaction if the server allows one."""
        suited = yield from self.for_this_server(command)
        error: BaseException
        try:
            return (yield from self._call(suited))
        except REDIS_ERRORS as failure:
            error = failure
        return (yield from self.repeat_command(suited, error))

    def repeat_command(self, command: Command[Any], error: BaseException) -> Operations[Any]:
        """Execute a command after a failed first attempt. Return the raw reply.

        Args:
            command: The command.
            error: Error of the first attempt.

        Raises:
            RMQError: The command was refused, or the retry deadline has passed.
        """
        deadline = self.deadline(command.script.name)
        divided = divide(command, hash_slot) if code_of(error) == "CROSSSLOT" else None
        if divided is not None:
            self.is_divided = True
            values, _ = yield from self.pipeline(divided.parts, None)
            return divided.join(values)

        def attempt() -> Operations[Any]:
            repeated = command.as_repeat()
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
        """Execute several commands in one round trip.

        Returns:
            The value or RMQError of each command, and the last reply. With a durability, the last
            reply is the reply to WAIT or WAITAOF.
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
            # Load scripts first: a command that is repeated alone would run after later commands.
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
                        raise reply  # the scripts were flushed again: repeat the whole pipeline
                    replies[number] = reply
                if durability is not None:
                    replies[-1] = second[-1]  # the second wait also covers the repeated commands
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
        """Execute a plain command, and return its reply.

        Raises:
            RMQError: The command was refused, or the retry deadline has passed.
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
                raise reply  # repeat the whole pipeline: each command is safe to repeat
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
                if kind_of(refusal) is Kind.REFUSED:  # the caller of a pipeline names its first
                    raise translate(refusal, script.name, []) from refusal
                raise
            (reply,) = yield Exchange(*eval_request(script))
            if not is_loaded_by(reply):
                raise (refusal if forbids(reply) else reply) from None
        self.loaded.add(script)

    def _explain(
        self, command: Command[Any], error: BaseException, deadline: RetryDeadline
    ) -> Operations[RMQError]:
        """Convert the error of a command to an RMQError.

        If a key has a value of a wrong type, the error names the key.
        """
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
    """Encode commands that load a script with EVAL, for servers that refuse SCRIPT LOAD.

    Return the bytes and the number of commands. EVAL also loads a script. The script gets no keys,
    so it fails before it changes anything.
    """
    return pack(("EVAL", script.text, 0)), 1


def is_loaded_by(reply: Any) -> bool:
    """Return whether the reply to `eval_request` shows that the server now has the script."""
    if not isinstance(reply, BaseException):
        return True
    return kind_of(reply) is Kind.REFUSED and not forbids(reply)


def _needs_loading(reply: Any) -> bool:
    return isinstance(reply, redis.RedisError) and kind_of(reply) is Kind.RELOAD


def key_of_wrong_type(command: Command[Any], types: Sequence[Any]) -> str:
    """Describe the first key of a command that has a value of the wrong type."""
    for key, kind in zip(command.keys, types, strict=True):
        expected = rmq_keys.type_of(key)
        if isinstance(kind, bytes) and kind != b"none" and kind.decode() != expected:
            return f"{rmq_keys.printable(key)} (a {kind.decode()}, RMQ keeps a {expected} there)"
    return ""


def parsed(command: Command[Any], reply: Any) -> Any:
    """Convert a reply with `Command.parse`. Return the value, or the RMQError of `parse`."""
    try:
        return command.parse(reply)
    except RMQError as error:
        return error
    except UNREADABLE as error:
        return unreadable(command, error)


def unreadable(command: Command[Any], error: Exception) -> ScriptFailed:
    """Return the error for a reply that contains a value which RMQ has not written."""
    keys = ", ".join(rmq_keys.printable(key) for key in command.keys[:3])
    return ScriptFailed(
        f"{command.script.name}: RMQ cannot read a value in {keys} ({ascii(error)[:120]}). "
        "Another program wrote it, or another version of RMQ; correct or delete it"
    )
