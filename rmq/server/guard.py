"""Check each request before it reaches the application.

The guard checks the host name, the user or program, the rate of requests, and the site of origin.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from rmq.errors import RMQError
from rmq.http_framework import principal, problems
from rmq.http_framework.principal import Principal
from rmq.http_framework.problems import ApiError
from rmq.http_framework.scope import CSRF, csrf_matches, path_of
from rmq.server import sessions
from rmq.server.authentication import Authentication, Headers, Refused
from rmq.server.config import RATE
from rmq.server.rates import Rates

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


log = logging.getLogger("rmq")

PROBES = ("/livez", "/readyz")  # process monitors call these paths under any host name
CONSOLE = "/console"  # its pages redirect anonymous browsers to the sign-in page
METHODS = ("GET", "HEAD", "POST", "PATCH", "DELETE", "PUT", "OPTIONS")
READS = ("GET", "HEAD")
LONG = ("/receive", "/stream")  # ends of paths whose answers wait for messages
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    # With no-referrer, browsers would send forms with Origin: null.
    (b"referrer-policy", b"same-origin"),
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
FAILURES, FAILURES_A_SECOND = 100, 10.0  # for requests of one address without valid credentials
STREAM_CHECK_S = 1.5  # time between two checks of the rights during a long answer
_TOKEN_IN_QUERY = re.compile(
    rb"(?:^|[&;])(?:access_token|token|authorization)=|rmq_[0-9a-f]{8}_[0-9a-f]{64}", re.IGNORECASE
)


class Guard:
    """Refuses forbidden requests, and passes all other requests to the application.

    Args:
        app: The application.
        hosts: Host names of this server, in lower case and without a port. "*" allows any name.
        authentication: Authentication of requests.
        rate: Maximum number of requests per second of a user or program from one address.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str],
        authentication: Authentication,
        rate: float = RATE,
    ) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._authentication = authentication
        self._rates = Rates(rate, max(2, math.ceil(2 * rate)))
        self._failures = Rates(FAILURES_A_SECOND, FAILURES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass the request to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        if path_of(scope) in PROBES and scope["method"] in READS:
            await self._app(scope, receive, send_guarded)
            return
        request_id = secrets.token_hex(8)
        try:
            await self._check(scope)
        except Exception as error:
            problem = problems.of_exception(error, request_id)
            headers = {"WWW-Authenticate": "Bearer"} if problem.kind == "unauthorized" else None
            await problems.answer(problem, request_id, headers)(scope, receive, send_guarded)
            return
        if scope["method"] in READS or path_of(scope).endswith(LONG):
            await self._watched(scope, receive, send_guarded)
        else:
            await self._app(scope, receive, send_guarded)

    async def _check(self, scope: Scope) -> None:
        """Store the user and the address of a request in its scope, or refuse the request."""
        headers = _headers(scope)
        hosts = headers.get(b"host", [])
        host = hosts[0].decode("latin-1").lower() if len(hosts) == 1 else ""
        if "*" not in self._hosts and name_of(host) not in self._hosts:
            raise ApiError(
                "other-host", "the header Host is not a name of this server; see the setting hosts"
            )
        if scope["method"] not in METHODS:
            raise ApiError("method-not-allowed", "Method Not Allowed")
        address = self._authentication.locate(scope, headers)
        scope[principal.ADDRESS] = address
        scope[sessions.KEY] = self._authentication.sessions
        found = await self._principal(scope, headers, address)
        scope[CSRF] = self._authentication.csrf_token(found)
        key = f"{found.kind}:{found.name}:{address}" if found else address
        if wait_s := self._rates.take(key):
            raise problems.too_many(wait_s)
        if found is not None:
            scope[principal.KEY] = found
        elif self._authentication.mode == "host":
            if not _is_of_console(path_of(scope)) and path_of(scope) not in ("", "/"):
                raise ApiError("forbidden", "the host application accepts no user for this request")
        elif not _is_of_console(path_of(scope)):
            raise ApiError("unauthorized", "give the header Authorization: Bearer TOKEN")
        if _TOKEN_IN_QUERY.search(scope.get("query_string", b"")):
            raise ApiError(
                "invalid",
                "tokens in URLs end in logs: revoke it, and send a new token as Authorization",
            )
        if scope["method"] not in READS:
            _check_site(scope, headers, host, found)

    async def _principal(self, scope: Scope, headers: Headers, address: str) -> Principal | None:
        cookies = headers.get(b"cookie", [])
        tried = b"authorization" in headers or sessions.id_of(scope, cookies) is not None
        # Valid credentials are checked before the limit: other users of the same address may have
        # used up the limit. Looking up an unknown session in Redis costs less than the request
        # costs here.
        try:
            found = await self._authentication.principal(scope, headers)
        except Refused as refused:
            self._failures.take(address)
            raise ApiError("forbidden", str(refused)) from None
        if found is None and tried and (wait_s := self._failures.take(address)):
            raise problems.too_many(wait_s)
        return found

    async def _watched(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that only reads. Stop if the user loses the right to read."""
        has_started = False

        async def send_noted(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        task = asyncio.ensure_future(self._app(scope, receive, send_noted))
        try:
            while not (await asyncio.wait((task,), timeout=STREAM_CHECK_S))[0]:
                if principal.KEY in scope and not await self._is_still(scope):
                    log.info("%s: the right to read has ended", scope["path"])
                    break
            else:
                await task
                return
        finally:
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        if not has_started:
            error = ApiError("unauthorized", "the token was revoked, or has expired")
            await problems.answer(error, secrets.token_hex(8))(scope, receive, send)
        # Otherwise the connection breaks, so that the client notices that the answer is incomplete.

    async def _is_still(self, scope: Scope) -> bool:
        try:
            found = await self._authentication.principal(scope, _headers(scope))
        except Refused:
            return False
        except Exception as error:  # if the right cannot be checked, it counts as lost
            if not isinstance(error, RMQError):
                log.exception("%s: the right to read cannot be checked", scope["path"])
            return False
        return found is not None and found == scope[principal.KEY]


def _check_site(scope: Scope, headers: Headers, host: str, found: Principal | None) -> None:
    """Refuse a request from another site if it changes something.

    Browsers name the site of origin. If a request has no origin, it comes from a program, and the
    guard accepts it. But if the request has a cookie, the guard refuses it, because only browsers
    send cookies.
    """
    said = _check_said(headers, host)
    if found is not None and not found.is_ambient:
        return
    has_cookie = found is not None and (
        found.kind == "session" or (found.kind == "host" and b"cookie" in headers)
    )
    if (found is None or has_cookie) and not said:
        raise ApiError("cross-site", "a browser without Sec-Fetch-Site must send its Origin")
    if has_cookie and not _is_of_console(path_of(scope)):
        given = headers.get(b"x-rmq-csrf", [])
        if len(given) != 1 or not csrf_matches(scope, given[0].decode("latin-1")):
            raise ApiError("cross-site", "a request with a cookie also needs the header X-RMQ-CSRF")


def _check_said(headers: Headers, host: str) -> bool:
    """Refuse a request if the browser names another site as its origin.

    Return whether the browser has named an origin.
    """
    sites = headers.get(b"sec-fetch-site", [])
    origins = headers.get(b"origin", [])
    own = {f"{scheme}://{host}".encode("latin-1") for scheme in ("http", "https")}
    if not all(site == b"same-origin" for site in sites):
        raise ApiError("cross-site", "Sec-Fetch-Site names another site")
    if not all(origin.lower() in own or (sites and origin == b"null") for origin in origins):
        raise ApiError("cross-site", "Origin is not this server")
    return bool(sites or origins)


def _is_of_console(path: str) -> bool:
    return path == CONSOLE or path.startswith(CONSOLE + "/")


def _headers(scope: Scope) -> dict[bytes, list[bytes]]:
    headers: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.lower(), []).append(value)
    return headers


def name_of(host: str) -> str:
    """Return the name in a Host header, without the port."""
    if host.startswith("["):
        return host.partition("]")[0].strip("[")
    return host.partition(":")[0]
