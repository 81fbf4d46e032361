"""Calls of functions, without a connection: what is sent, and what errors say."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from redis.exceptions import AskError, MovedError

import rmq
from rmq.kernel.transport import url as urls
from rmq.kernel.transport.calls import Exchange, ScriptCalls
from rmq.kernel.transport.cluster_calls import ClusterCalls
from rmq.kernel.transport.cluster_slots import ExchangeAll, SlotTable
from rmq.kernel.transport.errors import translate
from rmq.kernel.transport.functions import function_name, library_name
from rmq.kernel.transport.pool import request_of
from rmq.kernel.transport.scripts import load
from rmq.kernel.transport.steps import Command

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
        return ScriptCalls(address, 10.0, 10.0, set())
    table = SlotTable([("a", 1)])
    table.read([[0, 16383, [b"a", 1]]], ("a", 1))
    return ClusterCalls(address, 10.0, 10.0, table, {})


@pytest.mark.parametrize("write", [(), ("HSET", b"{a}b", "f", "v")])
def test_a_function_is_called_by_its_name_with_the_same_keys_and_arguments(
    write: tuple[Any, ...],
) -> None:
    script, count = request_of(command(write), "scripts")
    function, same = request_of(command(write), "functions")

    name, sha = function_name("send").encode(), load("send").sha.encode()
    words = b"$7\r\nEVALSHA\r\n$40\r\n" + sha, b"$5\r\nFCALL\r\n$%d\r\n%s" % (len(name), name)
    assert (script.replace(*words), count) == (function, same)
    assert name.startswith(library_name().encode())


@pytest.mark.parametrize("url", ["redis://a", "redis+cluster://a:1"])
def test_nothing_is_loaded_before_functions(url: str) -> None:
    given = [command(), command()]
    _, sent = drive(calls_of(f"{url}?calls=scripts").pipeline(given, None), *[b"1"] * 3)
    assert b"LOAD" in b"".join(sent)

    one = calls_of(f"{url}?calls=functions")
    _, sent = drive(one.pipeline([command()], None), b"1")
    assert len(sent) == 1
    assert b"LOAD" not in sent[0]


@pytest.mark.parametrize("url", ["redis://a", "redis+cluster://a:1"])
@pytest.mark.parametrize(
    ("kind", "lost", "raised"),
    [
        ("functions", True, rmq.OutcomeUnknown),  # it may be stored, and could not be asked
        ("functions", False, rmq.QueueFull),
        ("scripts", True, rmq.QueueFull),  # a script would have said that it is stored
    ],
)
def test_a_repeated_send_that_is_refused_at_maxmemory(
    url: str, kind: str, lost: bool, raised: type[rmq.RMQError]
) -> None:
    calls = calls_of(f"{url}?calls={kind}")
    loads = [b"sha"] if kind == "scripts" and not url.startswith("redis+") else []
    answers = [LOST, OOM] if lost else [OOM]

    (values, _), _ = drive(calls.pipeline([command()], None), *loads, *answers)

    assert type(values[0]) is raised


def test_a_call_that_had_no_reply_and_is_refused_at_maxmemory_is_open() -> None:
    calls = calls_of("redis://a?calls=functions")

    with pytest.raises(rmq.OutcomeUnknown, match="may have been done"):
        drive(calls.repeat_command(command(), LOST), OOM)
    with pytest.raises(rmq.QueueFull):
        drive(calls.repeat_command(command(), OOM))


def test_errors_say_what_to_do() -> None:
    for text in ("Function not found", "ERR Function not found"):
        error = translate(redis.ResponseError(text), "send", ["k"])
        assert type(error) is rmq.ConfigurationError
        assert "rmq functions load" in str(error)
        assert library_name() in str(error)
    for text in ("unknown command `FCALL`, with", "ERR unknown command 'FUNCTION', with"):
        error = translate(redis.ResponseError(text), "send", ["k"])
        assert type(error) is rmq.ConfigurationError
        assert "Redis 7.0" in str(error)
    for text in ("unknown command 'SCRIPT', with", "unknown command `EVALSHA`, with"):
        error = translate(redis.ResponseError(text), "send", ["k"])
        assert type(error) is rmq.ConfigurationError
        assert "rmq functions load" in str(error)
        assert "calls=functions" in str(error)
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


@pytest.mark.parametrize(
    "url",
    [
        "redis://h/0", "rediss://h", "unix:///s?db=0", "embedded:///d", "redis+sentinel://h/s",
        "redis+cluster://h",
    ],
)  # fmt: skip
def test_every_url_takes_the_option(url: str) -> None:
    assert urls.parse(url).calls == "scripts"
    mark = "&" if "?" in url else "?"
    assert urls.parse(f"{url}{mark}calls=functions").calls == "functions"
