"""Checks of requests: the name of the server, the token, and the site that a request comes from."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PROBES = ("/livez", "/readyz")  # asked by whatever watches the process, under any name
READS = ("GET", "HEAD")
HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))


class Guard:
    """Refuses requests before they reach the application.

    Args:
        app: the application.
        hosts: the names that this server has, in lower case and without a port; "*": any.
        token: that requests must have; None: none is needed.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], token: str | None) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._token = None if token is None else _digest(token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        refused = None if scope["path"] in PROBES else self._refusal(scope)
        if refused is None:
            await self._app(scope, receive, send_guarded)
            return
        from rmq.server.http.api.problems import ApiError, answer

        kind, detail = refused
        headers = {"WWW-Authenticate": "Bearer"} if kind == "unauthorized" else None
        response = answer(ApiError(kind, detail), secrets.token_hex(8), headers)
        await response(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> tuple[str, str] | None:
        """Return why a request is refused, as a kind of problem and in words."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        hosts = headers.get(b"host", [])
        host = hosts[0].decode("latin-1").lower() if len(hosts) == 1 else ""
        if "*" not in self._hosts and name_of(host) not in self._hosts:
            return "other-host", "the header Host names no host of this server; see server.hosts"
        if self._token is not None:
            given = headers.get(b"authorization", [])
            scheme, _, word = (given[0] if len(given) == 1 else b"").partition(b" ")
            is_known = hmac.compare_digest(_digest(word.strip()), self._token)
            if scheme.lower() != b"bearer" or not is_known:
                return "unauthorized", "give the header Authorization: Bearer TOKEN"
        if scope["method"] not in READS:
            sites = headers.get(b"sec-fetch-site", [])
            origins = headers.get(b"origin", [])
            own = {f"{scheme}://{host}".encode("latin-1") for scheme in ("http", "https")}
            if not all(site in (b"same-origin", b"none") for site in sites):
                return "cross-site", "Sec-Fetch-Site tells that another site asks"
            if not all(origin.lower() in own for origin in origins):
                return "cross-site", "Origin is not this server"
        return None


def name_of(host: str) -> str:
    """Return the name of a Host header, without the port."""
    if host.startswith("["):
        return host.partition("]")[0].strip("[")
    return host.partition(":")[0]


def _digest(word: bytes) -> bytes:
    return hashlib.sha256(word).digest()  # of one length: the time to compare tells nothing
