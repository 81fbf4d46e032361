"""Servers of tests, in this process or as `rmq server`, and their HTTP."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import rmq
from rmq.server import Server, ServerConfig

PATIENCE_S = 60.0  # on a machine that is busy with other things
CONSTANTS = "RMQ_TEST_CONSTANTS"  # the variable that `command.py` reads


@contextmanager
def serving(url: str, prefix: str, **flags: Any) -> Iterator[Server]:
    """A server in this process, on a free port."""
    from rmq.server.config import Address

    given = {"url": url, "prefix": prefix, "listen": Address("127.0.0.1", 0), **flags}
    with Server(ServerConfig.load(given, {}, "/dev/null")) as server:
        yield server


def get(url: str) -> tuple[int, Any]:
    """Status and body of a GET; JSON is decoded."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
            return reply.status, _body(reply)
    except urllib.error.HTTPError as error:
        return error.code, _body(error)


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    body: Any
    headers: Any


def ask(
    url: str, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None
) -> Answer:
    """Send a request; a body that is given is sent as JSON, bytes as they are."""
    sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    given = {} if body is None else {"Content-Type": "application/json"}
    request = urllib.request.Request(url, sent, given | (headers or {}), method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return Answer(reply.status, _body(reply), reply.headers)
    except urllib.error.HTTPError as error:
        return Answer(error.code, _body(error), error.headers)


def walked(api: Callable[..., Answer], path: str, items: str = "messages") -> list[Any]:
    """Ask for all pages of a list; return its items."""
    found: list[Any] = []
    cursor = ""
    while True:
        page = api(path + (f"&cursor={cursor}" if cursor else "")).body
        found += page[items]
        cursor = page["cursor"]
        if cursor is None:
            return found


def dead(client: rmq.Client, count: int = 1, **settings: Any) -> list[str]:
    """Send messages of a topic to its DeadQueue; return their ids."""
    topic = client.topic("orders", **settings)
    ids = [str(topic.send({"n": n}, type=f"t{n % 2}").id) for n in range(count)]
    with topic.consumer() as consumer:
        taken = 0
        while taken < count:
            for delivery in consumer.receive(100):
                delivery.reject("why")
                taken += 1
    return ids


def _body(reply: Any) -> Any:
    text = reply.read().decode()
    kind = reply.headers.get("Content-Type", "")
    return json.loads(text) if text and "json" in kind and "ndjson" not in kind else text


def until(
    condition: Callable[[], Any],
    what: str,
    patience_s: float = PATIENCE_S,
    wait: Callable[[], object] = lambda: time.sleep(0.02),
) -> Any:
    """Wait until a condition holds; return its value."""
    end = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < end, f"still waiting: {what}"
        wait()
    return value
