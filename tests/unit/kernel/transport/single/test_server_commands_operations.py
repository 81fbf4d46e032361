"""Attempts at a command, without a connection: when they end, and in which order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

import rmq
from rmq.kernel.transport.connections.failures import ConnectionsBusy, NotConnected, StaleConnection
from rmq.kernel.transport.connections.operations import (
    Exchange,
    Operations,
    Pause,
    RestartEmbedded,
    call,
)
from rmq.kernel.transport.single.retry_deadline import LAST_PAUSE_S, RetryDeadline, repeat
from rmq.kernel.transport.url import parse

ADDRESS = parse("redis://:secret@h:1/0")


def deadline(retry_for: float) -> RetryDeadline:
    return RetryDeadline("send", ADDRESS, retry_for)


def test_error_reply_of_a_call_is_raised() -> None:
    operations = call("PING")
    (exchange,) = (next(operations),)
    assert isinstance(exchange, Exchange)
    assert (exchange.packed, exchange.count) == (b"*1\r\n$4\r\nPING\r\n", 1)

    with pytest.raises(redis.ResponseError, match="wrong"):
        operations.send([redis.ResponseError("wrong")])


def test_failed_attempt_is_repeated_after_a_pause_and_a_look_at_the_embedded_server() -> None:
    errors: Iterator[Exception] = iter([NotConnected("away")])

    def attempt() -> Operations[str]:
        for error in errors:
            raise error
        return "done"
        yield RestartEmbedded()

    results: list[str] = []

    def collect() -> Operations[None]:
        results.append((yield from repeat(attempt, deadline(10))))

    assert [type(operation) for operation in collect()] == [Pause, RestartEmbedded]
    assert results == ["done"]


def test_refusal_of_the_server_is_not_repeated() -> None:
    def attempt() -> Operations[str]:
        raise redis.ResponseError("WRONGTYPE Operation against a key")
        yield RestartEmbedded()

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        next(repeat(attempt, deadline(10)))


def test_stale_connection_is_replaced_once_without_a_pause() -> None:
    retries = deadline(10)

    assert retries.next_pause(StaleConnection("reset")) == 0
    assert 0 < retries.next_pause(StaleConnection("reset")) <= LAST_PAUSE_S


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (NotConnected("no route"), rmq.Unavailable),
        (redis.TimeoutError("no reply"), rmq.OutcomeUnknown),
        (ConnectionsBusy("all in use"), rmq.Unavailable),
    ],
)
def test_last_error_says_whether_the_command_may_be_done(
    error: Exception, raised: type[rmq.RMQError]
) -> None:
    with pytest.raises(raised) as told:
        deadline(0).next_pause(error)

    assert ("nothing was done" in str(told.value)) == (raised is rmq.Unavailable)
    assert "secret" not in str(told.value)


def test_attempt_without_a_reply_counts_even_if_the_last_one_never_connected() -> None:
    retries = deadline(0)
    retries.next_pause(StaleConnection("no reply"))

    with pytest.raises(rmq.OutcomeUnknown):
        retries.next_pause(NotConnected("away"))
