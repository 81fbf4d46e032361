"""Clients of tests that receive and settle messages over HTTP."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import rmq
from tests.server.running import PATIENCE_S, Answer, ask, until

BASE = "/api/v1/topics"


class Consumer:
    """A program that consumes a topic over HTTP.

    Args:
        url: of the server.
        topic: its name.
        token: of the program; empty: the server asks for none.
    """

    def __init__(self, url: str, topic: str = "orders", token: str = "") -> None:
        self.url, self.topic = url, topic
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, verb: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
        """The answer to a verb of the topic."""
        given = self._headers | (headers or {})
        return ask(f"{self.url}{BASE}/{self.topic}/{verb}", "POST", body, given)

    def receive(self, **options: Any) -> list[Any]:
        """Receive messages; without a wait, if none is given."""
        found = self.ask("receive", {"wait": 0} | options)
        assert found.status == 200, found
        deliveries: list[Any] = found.body["deliveries"]
        return deliveries

    def settle(self, verb: str, deliveries: Sequence[Any], **options: Any) -> Answer:
        """Settle deliveries by their receipts."""
        return self.ask(verb, {"receipts": [each["receipt"] for each in deliveries], **options})

    def begin(self, verb: str, body: Any) -> socket.socket:
        """Send a request, and do not wait for its answer."""
        at = urlsplit(self.url)
        assert at.hostname
        made = socket.create_connection((at.hostname, at.port or 80), PATIENCE_S)
        content = json.dumps(body).encode()
        lines = [
            f"POST {BASE}/{self.topic}/{verb} HTTP/1.1", f"Host: {at.hostname}",
            "Content-Type: application/json", f"Content-Length: {len(content)}",
            *(f"{name}: {value}" for name, value in self._headers.items()), "", "",
        ]  # fmt: skip
        made.sendall("\r\n".join(lines).encode() + content)
        return made

    def stream(self, **options: Any) -> http.client.HTTPResponse:
        """Open a stream of deliveries."""
        at = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(at.hostname), at.port, timeout=PATIENCE_S)
        connection.request(
            "POST", f"{BASE}/{self.topic}/stream", json.dumps(options),
            {"Content-Type": "application/json", **self._headers},
        )  # fmt: skip
        return connection.getresponse()


def line_of(stream: http.client.HTTPResponse) -> Any:
    """The next delivery of a stream."""
    return until(lambda: json.loads(stream.readline().strip() or b"null"), "a line", wait=bool)


def answer_of(made: socket.socket) -> tuple[int, Any]:
    """Status and body of the answer to a request that was begun."""
    reply = http.client.HTTPResponse(made)
    reply.begin()
    return reply.status, json.loads(reply.read())


def places(client: rmq.Client, topic: str = "orders") -> dict[str, int]:
    """How many messages wait, are in flight and are dead."""
    stats: dict[str, Any] = dict(client.admin.stats(topic))
    waiting = sum(stats[name] for name in ("retries", "priority", "due", "later"))
    return {"waiting": waiting, "in_flight": stats["in_flight"], "dead": stats["dead"]}
