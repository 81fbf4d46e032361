"""Sessions: browsers that have signed in with a token, and the cookie that says so.

The browser has a random id, Redis its digest and the token that it signed in with. What a session
may do is what its token may do now; a token that is revoked ends its sessions.
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
from rmq.kernel.core.validation import MOMENT_MOST_MS, UNREADABLE, check_int
from rmq.server.rates import Rates
from rmq.server.record import record
from rmq.server.run_flow import run_flow
from rmq.web.principal import ADDRESS, Principal, principal_of
from rmq.web.scope import root_of

if TYPE_CHECKING:
    from rmq.client.client import AsyncClient
    from rmq.server.authentication import Tokens


KEY = "rmq.sessions"  # in the scope of a request
COOKIE = "rmq_session"
COOKIE_HTTPS = "__Host-rmq_session"  # browsers take it by https alone, and from this host alone
# Below a root path: browsers send it there alone, which a name with __Host- does not allow.
COOKIE_BELOW = "rmq_session_below"
COOKIE_BELOW_HTTPS = "__Secure-rmq_session_below"
IDLE_S = 12 * 3600
WHOLE_S = 7 * 86_400
KEPT_S = 3.0  # how long what was read of a session is used
KEPT_MAX = 1000
TOUCHED_S = 600.0  # how often the end of a session that is used is moved
ATTEMPTS, ATTEMPTS_A_SECOND = 5, 0.1  # to sign in with a wrong token, of one address


class _Kept(NamedTuple):
    """A session as it was read: its token, when it began, when it was read and touched."""

    token: str
    began_ms: int
    read_at: float
    touched_at: float


class Sessions:
    """Begins, finds and ends sessions.

    Args:
        tokens: finds the principal of a token.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._client: AsyncClient | None = None
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._attempts = Rates(ATTEMPTS_A_SECOND, ATTEMPTS)

    def open(self, client: AsyncClient) -> None:
        """Begin to keep sessions in Redis."""
        self._client = client

    async def sign_in(self, scope: MutableMapping[str, Any], token: str) -> str:
        """Begin a session with a token; return the text of its cookie, for Set-Cookie.

        Raises:
            ApiError: nobody has such a token; or that, and the address has tried too often.
            RMQError: Redis does not tell.
        """
        from rmq.web import problems

        assert self._client is not None
        principal = await self._tokens.principal(token.strip())
        # A right token passes: others may have tried wrong ones from the same address.
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
        """Begin a session of somebody who has a token; return the text of its cookie."""
        assert principal.token is not None
        assert self._client is not None
        id = secrets.token_urlsafe(32)
        await self._tokens.refresh()  # for the clock
        text = json.dumps([principal.token, self._tokens.now_ms()])
        await run_flow(self._client, flows.session_store, _digest(id), text, IDLE_S * 1000)
        return _cookie(scope, id, WHOLE_S)

    async def sign_out(self, scope: MutableMapping[str, Any]) -> str:
        """End the session of a request; return the text that takes its cookie away."""
        assert self._client is not None
        session = principal_of(scope).session
        if session is not None:
            self._kept.pop(session, None)
            await run_flow(self._client, flows.session_end, session)
        return _cookie(scope, "", 0)

    async def find(self, id: str) -> Principal | None:
        """Return who has a session; None: it has ended, or never was.

        Raises:
            RMQError: Redis does not tell.
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
            began_ms = check_int(began_ms, "began_ms", 0, MOMENT_MOST_MS)
        except UNREADABLE:
            return None
        return _Kept(str(token), began_ms, now, kept.touched_at if kept else float("-inf"))


async def sign_in(scope: MutableMapping[str, Any], token: str) -> str:
    """Begin a session at the server that has a request; see `Sessions.sign_in`."""
    found: Sessions = scope[KEY]
    return await found.sign_in(scope, token)


async def sign_out(scope: MutableMapping[str, Any]) -> str:
    """End the session of a request; see `Sessions.sign_out`."""
    found: Sessions = scope[KEY]
    return await found.sign_out(scope)


def id_of(scope: MutableMapping[str, Any], cookies: Sequence[bytes]) -> str | None:
    """Return the id of a session in headers named Cookie; None: there is none, or several."""
    https, plain = _names(scope)
    given: dict[str, list[str]] = {https: [], plain: []}
    for pair in b";".join(cookies).decode("latin-1").split(";"):
        name, _, value = pair.strip().partition("=")
        if name in given:
            given[name].append(value)
    # A page of another host of the domain can set the plain one, and not the other.
    values = given[https] or given[plain]
    return values[0] if len(values) == 1 and values[0] else None


def is_https(scope: MutableMapping[str, Any]) -> bool:
    """Whether a browser came by https: a proxy that is believed says so, or the browser does."""
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
    """Return the names of the cookie for https and for http."""
    if root_of(scope):
        return COOKIE_BELOW_HTTPS, COOKIE_BELOW
    return COOKIE_HTTPS, COOKIE


def _digest(id: str) -> str:
    return hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()
