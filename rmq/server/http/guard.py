"""Checks of requests: the name of the server, who asks, and the site that a request comes from."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import TYPE_CHECKING

from rmq.server.http import csrf, principal
from rmq.server.http.authentication import Authentication, Headers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PROBES = ("/livez", "/readyz")  # asked by whatever watches the process, under any name
READS = ("GET", "HEAD")
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # with no-referrer, browsers send forms as Origin: null
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


class Guard:
    """Refuses requests before they reach the application, and tells it who asks.

    Args:
        app: the application.
        hosts: the names that this server has, in lower case and without a port; "*": any.
        authentication: finds out who asks.
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str], authentication: Authentication
    ) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._authentication = authentication
        self._secret = secrets.token_bytes(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        refused = None if scope["path"] in PROBES else await self._refusal(scope)
        if refused is None:
            await self._app(scope, receive, send_guarded)
            return
        from rmq.server.http.api.problems import ApiError, answer

        kind, detail = refused
        headers = {"WWW-Authenticate": "Bearer"} if kind == "unauthorized" else None
        response = answer(ApiError(kind, detail), secrets.token_hex(8), headers)
        await response(scope, receive, send_guarded)

    async def _refusal(self, scope: Scope) -> tuple[str, str] | None:
        """Return why a request is refused, as a kind of problem and in words."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        hosts = headers.get(b"host", [])
        host = hosts[0].decode("latin-1").lower() if len(hosts) == 1 else ""
        if "*" not in self._hosts and name_of(host) not in self._hosts:
            return "other-host", "the header Host names no host of this server; see server.hosts"
        found = await self._authentication.principal(headers)
        if found is None:
            return "unauthorized", "give the header Authorization: Bearer TOKEN"
        client = scope.get("client")
        scope[principal.ADDRESS] = client[0] if client else ""
        scope[principal.KEY] = found
        scope[csrf.KEY] = csrf.token_of(self._secret, found)
        if scope["method"] not in READS:
            return _other_site(headers, host)
        return None


def _other_site(headers: Headers, host: str) -> tuple[str, str] | None:
    """Return why a write is refused that a browser sends; programs send neither header."""
    sites = headers.get(b"sec-fetch-site", [])
    origins = headers.get(b"origin", [])
    own = {f"{scheme}://{host}".encode("latin-1") for scheme in ("http", "https")}
    if not all(site == b"same-origin" for site in sites):
        return "cross-site", "Sec-Fetch-Site tells that another site asks"
    if not all(origin.lower() in own for origin in origins):
        return "cross-site", "Origin is not this server"
    return None


def name_of(host: str) -> str:
    """Return the name of a Host header, without the port."""
    if host.startswith("["):
        return host.partition("]")[0].strip("[")
    return host.partition(":")[0]
