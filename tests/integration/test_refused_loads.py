"""A Redis that refuses SCRIPT LOAD and EVAL: each kind of transport tells the caller at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest
import redis

import rmq
from rmq.kernel.transport.embedded.embedded import Embedded
from tests.conftest import any_binary
from tests.integration.driven import both_clients, connect
from tests.sentinels import SERVICE, Sentinels
from tests.servers import Server

RETRY_FOR_S = 30.0
AT_ONCE_S = 10.0  # less than RETRY_FOR_S, on a slow machine


@contextmanager
def single(_: Path) -> Iterator[tuple[str, redis.Redis]]:
    server = Server(any_binary())
    try:
        with server.raw() as raw:
            yield server.url, raw
    finally:
        server.stop()


@contextmanager
def embedded(folder: Path) -> Iterator[tuple[str, redis.Redis]]:
    with closing(Embedded.open(folder)) as server, redis.Redis(unix_socket_path=server.socket) as r:
        yield f"embedded://{folder}", r


@contextmanager
def sentinel(_: Path) -> Iterator[tuple[str, redis.Redis]]:
    service = Sentinels(any_binary())
    try:
        with service.master.raw() as raw:
            yield service.url(f"/{SERVICE}"), raw
    finally:
        service.stop()


@both_clients
@pytest.mark.parametrize("redis_of", [single, embedded, sentinel])
def test_the_caller_gets_the_refusal_at_once(
    redis_of: Callable[[Path], AbstractContextManager[tuple[str, redis.Redis]]],
    kind: str,
    name: str,
    tmp_path: Path,
) -> None:
    with redis_of(tmp_path) as (url, raw):
        raw.execute_command("ACL", "SETUSER", "default", "-script", "-eval")
        began = time.monotonic()

        with connect(kind, url, retry_for=RETRY_FOR_S) as client:
            with pytest.raises(rmq.AccessDenied, match=r"\+script\|load"):
                client.topic(name).send("x")
            with pytest.raises(rmq.AccessDenied, match=r"\+script\|load"):
                client.topic(name).send_many([rmq.Outgoing(n) for n in range(8)])

        assert time.monotonic() - began < AT_ONCE_S
