"""Calls of scripts, without a connection: what is loaded, and what errors say."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from redis.exceptions import AskError, MovedError

import rmq
from rmq.kernel.transport import url as urls
from rmq.kernel.transport.cluster.cluster_commands import ClusterCommands
from rmq.kernel.transport.connections.operations import Exchange, ExchangeAll
from rmq.kernel.transport.errors import translate
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.hash_slots import SlotTable
from rmq.kernel.transport.lua.script_loader import load
from rmq.kernel.transport.single.server_commands import ServerCommands

OOM = redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")
LOST = redis.TimeoutError("no reply")


def command(write: tuple[Any, ...] = ()) -> Command[Any]:
    return Command(load("send"), [b"{a}"], [1], lambda reply: reply, write=write)


def drive(operations: Any, *answers: Any) -> tuple[Any, list[bytes]]:
    """The value of operations, and what they sent; an answer is a reply, or an error to raise."""
    left, sent, value = list(answers), [], None
    try:
        operation = next(operations)
        while True:
            value = None
            if isinstance(operation, Exchange | ExchangeAll):
                parts = operation.parts if isinstance(operation, ExchangeAll) else [operation]
                sent.append(parts[0].packed)
                answer = left.pop(0)
                if isinstance(operation, ExchangeAll):
                    value = [answer if answer is LOST else [answer] * parts[0].count]
                elif answer is LOST:
                    operation = operations.throw(answer)
                    continue
                else:
                    value = [answer] * parts[0].count
            operation = operations.send(value)
    except StopIteration as stop:
        return stop.value, sent


def calls_of(url: str) -> Any:
    address = urls.parse(url)
    if not address.nodes:
        return ServerCommands(address, 10.0, 10.0, set())
    table = SlotTable([("a", 1)])
    table.read([[0, 16383, [b"a", 1]]], ("a", 1))
    return ClusterCommands(address, 10.0, 10.0, table, {})


def test_errors_say_what_to_do() -> None:
    for text in ("unknown command 'SCRIPT', with", "unknown command `EVALSHA`, with"):
        error = translate(redis.ResponseError(text), "send", ["k"])
        assert type(error) is rmq.ConfigurationError
        assert "EVALSHA and SCRIPT LOAD" in str(error)
    for text in ("unknown command 'HELLO', with", "NOPROTO unsupported protocol version"):
        error = translate(redis.ResponseError(text), "send", ["k"])
        assert type(error) is rmq.ConfigurationError
        assert "RESP2" in str(error)
    for moved in (MovedError("7 h:7001"), AskError("7 h:7001")):
        error = translate(moved, "send", ["k"])
        assert type(error) is rmq.ConfigurationError
        assert "redis+cluster://h:7001" in str(error)
    other = translate(redis.ResponseError("unknown command `WAITAOF`, with"), "send", ["k"])
    assert type(other) is rmq.ScriptFailed


@pytest.mark.parametrize("url", ["redis://a", "redis+cluster://a:1"])
def test_scripts_of_several_commands_are_loaded_before_them(url: str) -> None:
    _, sent = drive(calls_of(url).pipeline([command(), command()], None), *[b"1"] * 3)

    assert b"LOAD" in b"".join(sent)


def test_an_eval_that_is_refused_for_now_has_not_loaded_the_script() -> None:
    forbidden = redis.ResponseError("unknown command 'SCRIPT', with")
    loading = redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory")
    no_keys = redis.ResponseError("user_script:1: no keys")
    answers = [forbidden, loading, forbidden, no_keys, 7]

    (values, _), sent = drive(calls_of("redis://a").pipeline([command()], None), *answers)

    assert values == [7]
    assert len(sent) == len(answers)


@pytest.mark.parametrize("url", ["redis://a", "redis+cluster://a:1"])
@pytest.mark.parametrize("lost", [True, False])
def test_a_repeated_send_that_is_refused_at_maxmemory_was_not_stored(url: str, lost: bool) -> None:
    """A script begins at maxmemory, and would have said that the message is stored."""
    loads = [] if url.startswith("redis+") else [b"sha"]
    answers = [LOST, OOM] if lost else [OOM]

    (values, _), _ = drive(calls_of(url).pipeline([command()], None), *loads, *answers)

    assert type(values[0]) is rmq.QueueFull
