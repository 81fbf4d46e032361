"""Clients that are slow, many, or send requests that two programs could read in two ways."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from rmq.server import protocol
from rmq.server.console import STREAMS_EACH
from tests.server.running import PATIENCE_S, ask, serving, until
from tests.servers import Server as Redis

GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
NEXT = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
SLOW = 60  # an address may have 64 connections


@pytest.fixture(scope="module")
def url(server: Redis) -> Iterator[str]:
    with serving(server.url, "hostile") as running:
        yield running.url


def connect(url: str) -> socket.socket:
    at = urlsplit(url)
    return socket.create_connection((at.hostname, at.port), PATIENCE_S)


def answer(url: str, sent: bytes) -> bytes:
    """All that a server answers until it closes the connection."""
    with connect(url) as connection:
        connection.sendall(sent)
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65536):
                found += part
        return found


SMUGGLED = {
    "CL and TE": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "TE": POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "TE with a space": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "TE after a vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "TE of two": POST + b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
    "a chunk extension": POST + b"Transfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\n\r\n",
    "two CL": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "the same CL twice": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "CL +5": POST + b"Content-Length: +2\r\n\r\n{}",
    "CL -1": POST + b"Content-Length: -1\r\n\r\n{}",
    "CL 5, 5": POST + b"Content-Length: 2, 2\r\n\r\n{}",
    "CL of hex": POST + b"Content-Length: 0x2\r\n\r\n{}",
    "CL of nothing": POST + b"Content-Length:\r\n\r\n{}",
    "CL of other digits": POST + "Content-Length: \u0662\r\n\r\n{}".encode(),
    "CL in two lines": POST + b"Content-Length:\r\n 2\r\n\r\n{}",
    "a folded line": GET + b"X: a\r\n b\r\n\r\n",
    "a folded first header": b"GET /livez HTTP/1.1\r\n Host: localhost\r\n\r\n",
    "line feeds alone": b"GET /livez HTTP/1.1\nHost: localhost\n\n",
    "a line feed alone": GET + b"X: a\nTransfer-Encoding: chunked\r\n\r\n",
    "a carriage return alone": GET + b"X: a\rY: b\r\n\r\n",
    "a NUL": GET + b"X: a\x00b\r\n\r\n",
    "no colon": GET + b"X\r\n\r\n",
    "no name": GET + b": x\r\n\r\n",
    "a space in a name": GET + b"X Y: z\r\n\r\n",
    "two spaces": b"GET  /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no version": b"GET /livez\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "CONNECT": b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an absolute address": b"GET http://evil.test/livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no request": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
}


@pytest.mark.parametrize("case", SMUGGLED)
def test_what_can_be_read_in_two_ways_is_refused_and_nothing_after_it_is_read(
    url: str, case: str
) -> None:
    found = answer(url, SMUGGLED[case] + NEXT)

    assert found.startswith(b"HTTP/1.1 400 "), found[:200]
    assert found.count(b"HTTP/1.1 ") == 1
    assert b"\r\nConnection: close\r\n" in found


def test_requests_that_follow_each_other_are_answered_in_order(url: str) -> None:
    body = b'{"name": "a b"}'
    post = POST + b"Content-Length: %d\r\n\r\n" % len(body) + body

    found = answer(url, GET + b"\r\n" + post + GET + b"Connection: close\r\n\r\n")

    assert found.count(b"HTTP/1.1 200") == 2
    assert found.index(b" 200 ") < found.index(b" 400 ") < found.rindex(b" 200 ")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (GET + b"X: " + b"a" * 17_000 + b"\r\n\r\n", b"431"),
        (GET + b"X: y\r\n" * 10_000 + b"\r\n", b"431"),
        (GET + b"X: y\r\n" * 101 + b"\r\n", b"431"),
        (GET + b"X: y\r\n" * 90 + b"Connection: close\r\n\r\n", b"200"),
        (GET + b"X: " + b"a" * 15_000 + b"\r\nConnection: close\r\n\r\n", b"200"),
        (b"GET /" + b"a" * 17_000 + b" HTTP/1.1\r\n\r\n", b"400"),
        (POST + b"Content-Length: 1000000000\r\nConnection: close\r\n\r\n", b"413"),
    ],
)
def test_heads_and_bodies_have_a_size(url: str, head: bytes, status: bytes) -> None:
    assert answer(url, head)[9:12] == status


HALVES = {
    "nothing": b"", "half a line": b"GET /li", "half a head": GET,
    "half a body": POST + b"Content-Length: 50\r\n\r\n{",
}  # fmt: skip


@contextlib.contextmanager
def slow_clients(url: str) -> Iterator[list[socket.socket]]:
    """Many clients that have sent a half, or nothing."""
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(url)) for _ in range(SLOW)]
        for number, connection in enumerate(slow):
            connection.sendall(list(HALVES.values())[number % len(HALVES)])
        yield slow


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that wait an hour for the rest of a request."""
    monkeypatch.setattr(protocol, "HEAD_S", 3600.0)
    monkeypatch.setattr(protocol, "BODY_S", 3600.0)


@pytest.mark.usefixtures("patient")
def test_others_are_answered_while_slow_clients_hold_their_connections(
    server: Redis, prefix: str
) -> None:
    """And without the deadline of the next test, they would hold them for ever."""
    with serving(server.url, prefix) as running, slow_clients(running.url) as slow:
        for _ in range(5):
            assert ask(running.url + "/livez").status == 200

        assert select.select(slow, [], [], 1.0)[0] == [], "none was answered, or closed"


def test_slow_clients_lose_their_connections(
    server: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.5)
    monkeypatch.setattr(protocol, "BODY_S", 0.5)
    with serving(server.url, prefix) as running, slow_clients(running.url) as slow:
        for connection in slow:
            connection.settimeout(PATIENCE_S)
            found = b""
            while part := connection.recv(65536):
                found += part
            assert found.startswith(b"HTTP/1.1 408 ")


@pytest.mark.usefixtures("patient")
@pytest.mark.usefixtures("patient")
def test_where_one_address_has_all_its_connections_the_oldest_that_waits_gives_way(
    server: Redis, prefix: str
) -> None:
    with (
        serving(server.url, prefix, connections_per_address=5) as running,
        contextlib.ExitStack() as stack,
    ):
        slow = [stack.enter_context(connect(running.url)) for _ in range(5)]
        for connection in slow:
            connection.sendall(GET)

        assert ask(running.url + "/livez").status == 200

        assert slow[0].recv(100).startswith(b"HTTP/1.1 408 ")
        slow[4].sendall(b"Connection: close\r\n\r\n")
        until(lambda: slow[4].recv(100).startswith(b"HTTP/1.1 200 "), "the newest is answered")


TOKEN = "0123456789abcdef" * 4
AS_STREAM = b"Host: localhost\r\nAccept: text/event-stream\r\n\r\n"


@pytest.mark.parametrize("request_line", ["GET /console/signin", "GET /console", "GET /console/x"])
def test_who_has_not_signed_in_holds_no_connection_with_a_stream(
    server: Redis, prefix: str, request_line: str
) -> None:
    limits = {"connections_max": 5, "connections_per_address": 5}
    with (
        serving(server.url, prefix, token=TOKEN, **limits) as running,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(5):
            connection = stack.enter_context(connect(running.url))
            connection.sendall(f"{request_line} HTTP/1.1\r\n".encode() + AS_STREAM)
            head = connection.recv(65536).partition(b"\r\n\r\n")[0]
            assert b"text/event-stream" not in head

        found = ask(running.url + "/console/signin")
        probe = ask(running.url + "/livez")

    assert (found.status, probe.status) == (200, 200)


def test_a_head_of_a_live_page_is_no_stream(url: str) -> None:
    head = b"HEAD /console HTTP/1.1\r\nConnection: close\r\n" + AS_STREAM

    assert b"text/event-stream" not in answer(url, head)


def test_a_client_that_reads_no_answer_gives_way(server: Redis, prefix: str) -> None:
    with (
        serving(server.url, prefix, rate=100_000, connections_per_address=3) as running,
        contextlib.ExitStack() as stack,
    ):
        config: Any = running._listener._server.config
        connections = config.http.args[0]._all
        style = b"GET /console/static/x/console.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(3):
            deaf = stack.enter_context(socket.socket())
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.settimeout(PATIENCE_S)
            deaf.connect((urlsplit(running.url).hostname, urlsplit(running.url).port))
            deaf.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                for _ in range(3000):
                    deaf.send(style)
        until(lambda: [each.flow.write_paused for each in connections] == [True] * 3, "no room")

        assert ask(running.url + "/livez").status == 200


def test_what_is_one_too_many_is_not_blamed_on_redis(server: Redis, prefix: str) -> None:
    with (
        serving(server.url, prefix, connections_per_address=2) as running,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(2):  # of somebody who may
            connection = stack.enter_context(connect(running.url))
            connection.sendall(b"GET /console HTTP/1.1\r\n" + AS_STREAM)
            assert b"text/event-stream" in connection.recv(65536)

        refused = ask(running.url + "/api/v1/topics")
        probes = [ask(running.url + path).status for path in ("/livez", "/readyz?verbose")]

    assert probes == [200, 200]
    assert refused.status == 503
    assert refused.body["type"] == "urn:rmq:error:too-many-connections"
    assert "Redis" not in refused.body["title"] + refused.body["detail"]


def test_a_principal_has_so_many_live_pages_and_fetches_the_others(
    server: Redis, prefix: str
) -> None:
    with serving(server.url, prefix) as running, contextlib.ExitStack() as stack:
        answers = []
        for _ in range(STREAMS_EACH + 2):
            connection = stack.enter_context(connect(running.url))
            connection.sendall(b"GET /console HTTP/1.1\r\n" + AS_STREAM)
            answers.append(connection.recv(65536))

        assert [b"text/event-stream" in answer for answer in answers] == [
            *[True] * STREAMS_EACH, False, False,
        ]  # fmt: skip
        assert b" 406 " in answers[-1].partition(b"\r\n")[0]


def test_a_stop_ends_streams_and_logs_no_error(
    server: Redis, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.ExitStack() as stack:
        with serving(server.url, prefix) as running:
            streams = [stack.enter_context(connect(running.url)) for _ in range(3)]
            for connection in streams:
                connection.sendall(b"GET /console HTTP/1.1\r\n" + AS_STREAM)
                assert b"text/event-stream" in connection.recv(65536)

        for connection in streams:
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(65536):
                    pass

    errors = [each for each in caplog.records if each.levelname in ("ERROR", "CRITICAL")]
    assert [each.getMessage() for each in errors] == []
