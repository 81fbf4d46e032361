"""The HTTP API where clients, Redis or RMQ fail: a status, a type of problem, and no secrets."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

import rmq
from rmq.client.admin import AsyncAdmin
from rmq.features.dead_letters.reading import DeadLetterGroups
from rmq.server.api import SIMULTANEOUS
from tests.server.conftest import Ask
from tests.server.running import ask, serving, until
from tests.servers import Server as Redis


def test_a_body_that_does_not_come_ends_the_request(
    server: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq.server import api

    monkeypatch.setattr(api, "BODY_S", 0.3)
    with serving(server.url, prefix) as running:
        at = urlsplit(running.url)
        with socket.create_connection((at.hostname, at.port), 10) as slow:
            head = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 50"
            slow.sendall(f"POST /api/v1/topics HTTP/1.1\r\n{head}\r\n\r\n{{".encode())
            assert b" 408 " in slow.recv(100)
        assert ask(running.url + "/api/v1/topics").body["topics"] == []


def test_an_error_that_nobody_expected_tells_nothing_but_its_id(
    api: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(self: Any) -> Any:
        raise RuntimeError("secret at redis://user:word@host/0")

    monkeypatch.setattr(rmq.AsyncClient, "server_info", fail)

    failed = api("/info")

    assert failed.status == 500
    assert "secret" not in json.dumps(failed.body)
    assert failed.body["request_id"] in caplog.text
    assert "Traceback" in caplog.text


def test_one_who_asks_for_much_has_a_few_places_and_others_have_theirs(
    server: Redis, prefix: str, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.topic("orders").open()
    tokens = {name: client.admin.token_create(name).text for name in ("greedy", "other")}
    running_now, most, go = [0], [0], threading.Event()

    async def slow(admin: object, topic: str, **options: object) -> DeadLetterGroups:
        running_now[0] += 1
        most[0] = max(most[0], running_now[0])
        await asyncio.to_thread(go.wait, 60)
        running_now[0] -= 1
        return DeadLetterGroups([], 0, 0)

    monkeypatch.setattr(AsyncAdmin, "dead_letter_groups", slow)
    with serving(server.url, prefix, auth="token") as running, ThreadPoolExecutor(12) as pool:

        def status(name: str, path: str) -> int:
            headers = {"Authorization": f"Bearer {tokens[name]}"}
            return ask(f"{running.url}/api/v1{path}", headers=headers).status

        groups = "/topics/orders/dead-letters/groups"
        asked = [pool.submit(status, "greedy", groups) for _ in range(12)]
        until(lambda: running_now[0] == SIMULTANEOUS, "as many as may be answered at once")
        assert status("other", "/topics/orders/stats") == 200
        go.set()
        assert {each.result(60) for each in asked} == {200}

    assert most[0] == SIMULTANEOUS


def test_redis_being_away_is_told_in_time(
    own_server: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq.server import server as module

    monkeypatch.setattr(module, "RETRY_FOR_S", 0.1)
    with serving(own_server.url, prefix) as running:
        until(lambda: ask(running.url + "/api/v1/info").status == 200, "an answer")
        own_server.kill()
        away = ask(running.url + "/api/v1/topics")

        assert away.status == 503
        assert away.headers["Retry-After"] == "2"
        assert str(own_server.port) not in away.body["detail"]

        own_server.start()
        until(lambda: ask(running.url + "/api/v1/topics").status == 200, "an answer")


def test_a_request_that_takes_too_long_ends(
    server: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq.server import api

    monkeypatch.setattr(api, "ANSWER_S", 0.5)
    with serving(server.url, prefix) as running:
        until(lambda: ask(running.url + "/api/v1/topics").status == 200, "an answer")
        server.signal(signal.SIGSTOP)  # a CLIENT PAUSE would hold up its own UNPAUSE
        try:
            late = ask(running.url + "/api/v1/topics")
            redrive = running.url + "/api/v1/topics/orders/dead-letters/redrive"
            dry = ask(redrive, "POST", {"dry_run": True})
            written = ask(redrive, "POST", {})
        finally:
            server.signal(signal.SIGCONT)
    assert (late.status, late.body["type"]) == (504, "urn:rmq:error:timeout")
    assert "continue with the cursor" in late.body["detail"]
    assert (dry.status, dry.body["type"]) == (504, "urn:rmq:error:timeout")
    assert (written.status, written.body["type"]) == (503, "urn:rmq:error:outcome-unknown")
    assert "it may have been done" in written.body["detail"]
