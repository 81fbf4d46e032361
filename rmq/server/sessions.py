"""Sessions of browsers that have signed in with a token, and their cookies.

The browser stores a random id. Redis stores the digest of the id, and the token of the sign-in. A
session has the current rights of its token, and ends when the token is revoked.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rmq.features.tokens import flows
from rmq.http_framework.principal import ADDRESS, Principal, principal_of
from rmq.http_framework.scope import root_of
from rmq.kernel.core.validation import MOMENT_MAX_MS, UNREADABLE, check_int
from rmq.server.rates import Rates
from rmq.server.record import record
from rmq.server.run_flow import run_flow

if TYPE_CHECKING:
    from rmq.client.client import AsyncClient
    from rmq.server.authentication import Tokens


KEY = "rmq.sessions"  # key in the scope of a request
COOKIE = "rmq_session"
COOKIE_HTTPS = "__Host-rmq_session"  # browsers accept it over https only, and from this host only
# Name of the cookie below a root path. Browsers send this cookie to paths below the root path only.
# A cookie with the prefix __Host- cannot be restricted to a path.
COOKIE_BELOW = "rmq_session_below"
COOKIE_BELOW_HTTPS = "__Secure-rmq_session_below"
IDLE_S = 12 * 3600
WHOLE_S = 7 * 86_400
KEPT_S = 3.0  # how long a session is cached
KEPT_MAX = 1000
TOUCHED_S = 600.0  # shortest time between two extensions of a session that is used
ATTEMPTS, ATTEMPTS_A_SECOND = 5, 0.1  # sign-ins of an address with a wrong token


class _Kept(NamedTuple):
    token: str
    began_ms: int
    read_at: float
    touched_at: float


class Sessions:
    """Starts, finds and ends sessions.

    Args:
        tokens: Cache that finds the user of a token.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._client: AsyncClient | None = None
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._attempts = Rates(ATTEMPTS_A_SECOND, ATTEMPTS)

    def open(self, client: AsyncClient) -> None:
        """Start to store sessions in Redis."""
        self._client = client

    async def sign_in(self, scope: MutableMapping[str, Any], token: str) -> str:
        """Start a session with a token. Return the value of the header Set-Cookie.

        Raises:
            ApiError: The token is unknown, or this client has tried too many unknown tokens.
            RMQError: Redis could not be read.
        """
        from rmq.http_framework import problems

        assert self._client is not None
        principal = await self._tokens.principal(token.strip())
        # A valid token is accepted even if other users of the same address have used up the
        # attempts.
        if principal is None and (wait_s := self._attempts.take(scope[ADDRESS])):
            raise problems.too_many(wait_s)
        result = "unauthorized" if principal is None else "done"
        await record(self._client, principal, scope[ADDRESS], "sign_in", "", result)
        if principal is None:
            raise problems.ApiError(
                "unauthorized", "there is no such token, or it has expired", "token"
            )
        return await self.create(scope, principal)

    async def create(self, scope: MutableMapping[str, Any], principal: Principal) -> str:
        """Start a session for the user of a token. Return the cookie of the session."""
        assert principal.token is not None
        assert self._client is not None
        id = secrets.token_urlsafe(32)
        await self._tokens.refresh()  # updates the estimate of Redis' clock
        text = json.dumps([principal.token, self._tokens.now_ms()])
        await run_flow(self._client, flows.session_store, _digest(id), text, IDLE_S * 1000)
        return _cookie(scope, id, WHOLE_S)

    async def sign_out(self, scope: MutableMapping[str, Any]) -> str:
        """End the session of a request. Return a cookie that deletes the cookie in the browser."""
        assert self._client is not None
        session = principal_of(scope).session
        if session is not None:
            self._kept.pop(session, None)
            await run_flow(self._client, flows.session_end, session)
        return _cookie(scope, "", 0)

    async def find(self, id: str) -> Principal | None:
        """Return the user of a session, or None if there is no such session.

        Raises:
            RMQError: Redis could not be read.
        """
        digest = _digest(id)
        kept = self._kept.get(digest)
        if kept is None or time.monotonic() - kept.read_at >= KEPT_S:
            kept = await self._read(digest, kept)
        if kept is None:
            self._kept.pop(digest, None)
            return None
        principal = await self._tokens.principal_of_id(kept.token)
        left_ms = kept.began_ms + WHOLE_S * 1000 - self._tokens.now_ms()
        if principal is None or left_ms <= 0:
            return None
        if time.monotonic() - kept.touched_at >= TOUCHED_S:
            kept = kept._replace(touched_at=time.monotonic())
            assert self._client is not None
            idle_ms = min(IDLE_S * 1000, left_ms)
            await run_flow(self._client, flows.session_touch, digest, idle_ms)
        self._kept[digest] = kept
        self._kept.move_to_end(digest)
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return replace(principal, kind="session", session=digest)

    async def _read(self, digest: str, kept: _Kept | None) -> _Kept | None:
        assert self._client is not None
        now = time.monotonic()
        text = await run_flow(self._client, flows.session_read, digest)
        if text is None:
            return None
        try:
            token, began_ms = json.loads(text)
            began_ms = check_int(began_ms, "began_ms", 0, MOMENT_MAX_MS)
        except UNREADABLE:
            return None
        return _Kept(str(token), began_ms, now, kept.touched_at if kept else float("-inf"))


async def sign_in(scope: MutableMapping[str, Any], token: str) -> str:
    """Start a session for a request. `Sessions.sign_in` has the details."""
    found: Sessions = scope[KEY]
    return await found.sign_in(scope, token)


async def sign_out(scope: MutableMapping[str, Any]) -> str:
    """End the session of a request. `Sessions.sign_out` has the details."""
    found: Sessions = scope[KEY]
    return await found.sign_out(scope)


def id_of(scope: MutableMapping[str, Any], cookies: Sequence[bytes]) -> str | None:
    """Return the session id from the Cookie headers, or None if there is not exactly one."""
    https, plain = _names(scope)
    given: dict[str, list[str]] = {https: [], plain: []}
    for pair in b";".join(cookies).decode("latin-1").split(";"):
        name, _, value = pair.strip().partition("=")
        if name in given:
            given[name].append(value)
    # Another host of the same domain can set the http cookie, but not the https cookie.
    values = given[https] or given[plain]
    return values[0] if len(values) == 1 and values[0] else None


def is_https(scope: MutableMapping[str, Any]) -> bool:
    """Return whether the browser used https, as a trusted proxy or the header Origin says."""
    origins = [value for name, value in scope["headers"] if name.lower() == b"origin"]
    return scope.get("scheme") == "https" or any(
        origin.lower().startswith(b"https://") for origin in origins
    )


def _cookie(scope: MutableMapping[str, Any], id: str, seconds: int) -> str:
    secure = is_https(scope)
    https, plain = _names(scope)
    path = root_of(scope) or "/"
    text = f"{https if secure else plain}={id}; Path={path}; Max-Age={seconds}; "
    text += "HttpOnly; SameSite=Strict"
    return text + "; Secure" if secure else text


def _names(scope: MutableMapping[str, Any]) -> tuple[str, str]:
    if root_of(scope):
        return COOKIE_BELOW_HTTPS, COOKIE_BELOW
    return COOKIE_HTTPS, COOKIE


def _digest(id: str) -> str:
    return hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()
