"""Find the user or program that sent a request.

none    every client is "local", an admin (only allowed on a local address)
token   the header Authorization contains a token, or a cookie contains a session of a token
proxy   a proxy names the user in a header (programs may send a token instead)
host    the application that mounts this application names the user

A server accepts the token in its settings, and the tokens in Redis, which it reads periodically.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING, Any, Literal

from rmq.errors import RMQError, Unavailable
from rmq.features.tokens import flows
from rmq.http_framework.principal import LOCAL, STATIC, Principal, can_be_name
from rmq.http_framework.scope import csrf_token_of
from rmq.kernel.core import access
from rmq.kernel.core.access import AccessToken, Role
from rmq.server import sessions
from rmq.server.run_flow import run_flow
from rmq.server.sessions import Sessions

if TYPE_CHECKING:
    from rmq.client.client import AsyncClient


log = logging.getLogger("rmq")

Headers = Mapping[bytes, Sequence[bytes]]  # values by name in lower case
Mode = Literal["none", "token", "proxy", "host"]
Find = Callable[[Any], Awaitable[Principal | None]]  # the argument is the ASGI scope of the request
SECRET_AGAIN_S = 2.0
OF_USERS = tuple(role for role in Role if not role.is_of_topics)  # roles that a proxy can give


class Refused(Exception):
    """The credentials of a request are not valid, or do not permit the request."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A trusted reverse proxy.

    Attributes:
        addresses: Networks of the proxy.
        user_header: Header with the name of the user.
        role_header: Header with the user's roles, separated by commas. If no header is set, all
            users are viewers.
    """

    addresses: tuple[IPv4Network | IPv6Network, ...] = ()
    user_header: str = "X-Forwarded-User"
    role_header: str = ""

    def vouches(self, address: str) -> bool:
        """Return whether an address belongs to the proxy."""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self.addresses)


class Authentication:
    """Finds the user or program that sent a request.

    Args:
        mode: Mode of authentication.
        token: Token in the server's settings, or None. The server also accepts the tokens in Redis.
        proxy: Trusted proxy. In every mode, the proxy reports the address and the scheme of a
            request. In the mode "proxy", it also names the user.
        find: Function that finds the user in the mode "host".
    """

    def __init__(
        self,
        mode: Mode = "none",
        token: str | None = None,
        proxy: Proxy | None = None,
        find: Find | None = None,
    ) -> None:
        self.mode = mode
        self._find = find
        self.proxy = proxy or Proxy()
        self.tokens = Tokens(token)
        self.sessions = Sessions(self.tokens)
        # A temporary secret. The secret that all servers share replaces it when Redis has returned
        # it.
        self._secret = secrets.token_bytes(32)
        self._task: asyncio.Task[None] | None = None

    def open(self, client: AsyncClient) -> None:
        """Start reading from Redis. Call this method in the event loop."""
        self.tokens.open(client)
        self.sessions.open(client)
        self._task = asyncio.create_task(self._read_secret(client))

    async def opened(self, wait_s: float) -> None:
        """Wait until the CSRF secret was read from Redis. Wait at most `wait_s` seconds.

        Until then, forms use a temporary secret. The server later refuses such a form.
        """
        assert self._task is not None
        await asyncio.wait((self._task,), timeout=wait_s)

    def close(self) -> None:
        """Cancel the background task."""
        if self._task is not None:
            self._task.cancel()

    def locate(self, scope: Any, headers: Headers) -> str:
        """Return the address of the client, and set the scheme in the scope.

        Only the last address in X-Forwarded-For counts, because the proxy wrote it. Clients can
        write any other address into this header.
        """
        client = scope.get("client")
        peer = str(client[0]) if client else ""
        if not self.proxy.vouches(peer):
            return peer
        schemes = _words(headers, b"x-forwarded-proto")
        if schemes and schemes[-1] in ("http", "https"):
            scope["scheme"] = schemes[-1]
        hops = _words(headers, b"x-forwarded-for")
        try:
            return str(ipaddress.ip_address(hops[-1])) if hops else peer
        except ValueError:
            return peer

    async def principal(self, scope: Any, headers: Headers) -> Principal | None:
        """Return the user or program that sent a request, or None if it has no credentials.

        Raises:
            Refused: A client that is not the proxy sent a header of the proxy, or the proxy sent an
                unknown role.
            RMQError: Redis could not be read.
        """
        if self.mode == "none":
            return LOCAL
        if self.mode == "host":
            assert self._find is not None
            return await self._find(scope)
        if self.mode == "proxy" and (found := self._user(scope, headers)) is not None:
            return found
        given = headers.get(b"authorization", [])
        if given:
            scheme, _, word = (given[0] if len(given) == 1 else b"").partition(b" ")
            if scheme.lower() != b"bearer":
                return None
            return await self.tokens.principal(word.strip().decode("latin-1"))
        if self.mode == "token":
            id = sessions.id_of(scope, headers.get(b"cookie", ()))
            return None if id is None else await self.sessions.find(id)
        return None

    def csrf_token(self, principal: Principal | None) -> str:
        """Return the CSRF token for the forms of a user.

        With None, return it for the sign-in form.
        """
        return csrf_token_of(self._secret, principal)

    def _user(self, scope: Any, headers: Headers) -> Principal | None:
        named = headers.get(self.proxy.user_header.lower().encode(), [])
        roles = headers.get(self.proxy.role_header.lower().encode(), [])
        client = scope.get("client")
        if not self.proxy.vouches(str(client[0]) if client else ""):
            if named or roles:
                raise Refused("only server.proxy_addresses may send the headers of the proxy")
            return None
        if not named:
            return None
        name = named[0].decode("latin-1").strip()
        if len(named) > 1 or not can_be_name(name):
            raise Refused(f"{self.proxy.user_header}: it must name one user")
        # If the proxy only adds its header, the client may have sent another header of the same
        # name.
        if len(roles) > 1:
            raise Refused(
                f"{self.proxy.role_header}: the header occurs more than once; let the proxy "
                "replace the headers of clients"
            )
        if not self.proxy.role_header:
            return Principal(name, Role.VIEWER, False, "proxy")
        words = {word.strip() for each in roles for word in each.decode("latin-1").split(",")}
        known = [role for role in Role if role in words and not role.is_of_topics]
        if not known:
            raise Refused(f"{self.proxy.role_header}: it must name one of {', '.join(OF_USERS)}")
        return Principal(name, known[-1], False, "proxy")

    async def _read_secret(self, client: AsyncClient) -> None:
        while True:
            try:
                self._secret = await run_flow(client, flows.server_secret)
                return
            except RMQError as error:
                log.info("the CSRF secret was not read yet: %s", error)
            await asyncio.sleep(SECRET_AGAIN_S)


def _words(headers: Headers, name: bytes) -> list[str]:
    return [
        word.strip().lower()
        for value in headers.get(name, ())
        for word in value.decode("latin-1").split(",")
        if word.strip()
    ]


KEPT_S = 3.0  # how long tokens are cached; a revoked token works until then
UNKNOWN_S = 0.5  # shortest time between two reads of Redis because of an unknown token
USED_S = 600.0  # shortest time between two updates of a token's last use
READ_S = 5.0  # limit for a read


class Tokens:
    """Finds the user or program of a token.

    Args:
        static: Token in the server's settings, or None.
    """

    def __init__(self, static: str | None = None) -> None:
        self._static: Principal | None = None
        self._static_digest = b""
        if static is not None:
            self._static_digest = _digest(static)
            # The id that sessions store: if the token of the settings changes, sessions of the old
            # token end.
            self._static = replace(STATIC, token="static:" + self._static_digest.hex()[:16])
        self._client: AsyncClient | None = None
        self._by_id: dict[str, AccessToken] = {}
        self._read_at = float("-inf")
        self._ahead_ms = 0.0  # difference between the clocks of Redis and this process
        self._used_at: dict[str, float] = {}
        self._reading = asyncio.Lock()

    def open(self, client: AsyncClient) -> None:
        """Start reading tokens from Redis."""
        self._client = client

    async def principal(self, text: str) -> Principal | None:
        """Return the user or program of a token, or None if the token is unknown.

        Raises:
            RMQError: Redis could not be read.
        """
        static = self._static
        if static is not None and hmac.compare_digest(_digest(text), self._static_digest):
            return static
        parts = access.parts_of(text)
        if parts is None:
            return None
        id, digest = parts
        token = await self._find(id)
        if token is None or not hmac.compare_digest(token.digest, digest):
            return None
        await self._note_use(id)
        return _principal_of(token)

    async def principal_of_id(self, id: str) -> Principal | None:
        """Return the user of a session's token, or None if the token is no longer valid.

        Raises:
            RMQError: Redis could not be read.
        """
        if id.startswith("static:"):
            static = self._static
            return static if static is not None and static.token == id else None
        token = await self._find(id)
        return None if token is None else _principal_of(token)

    def now_ms(self) -> int:
        """Return the time of Redis' clock, as far as this server knows it."""
        return int(time.monotonic() * 1000 + self._ahead_ms)

    async def _find(self, id: str) -> AccessToken | None:
        await self.refresh()
        if id not in self._by_id:
            await self.refresh(UNKNOWN_S)
        token = self._by_id.get(id)
        return None if token is None or token.has_expired(self.now_ms()) else token

    async def refresh(self, kept_s: float = KEPT_S) -> None:
        """Read all tokens, unless the last read is less than `kept_s` seconds old.

        Raises:
            RMQError: Redis could not be read.
        """
        if time.monotonic() - self._read_at < kept_s:
            return
        async with self._reading:
            began = time.monotonic()
            if began - self._read_at < kept_s:
                return
            if self._client is None:
                raise Unavailable("tokens: the server has not started")
            try:
                async with asyncio.timeout(READ_S):
                    self._by_id, now_ms = await run_flow(self._client, flows.tokens_by_id)
            except TimeoutError:
                raise Unavailable("tokens: Redis does not answer") from None
            self._ahead_ms = now_ms - time.monotonic() * 1000
            # The time at which the read started: a token may be revoked during the read.
            self._read_at = began

    async def _note_use(self, id: str) -> None:
        now = time.monotonic()
        if now - self._used_at.get(id, float("-inf")) < USED_S:
            return
        self._used_at[id] = now
        assert self._client is not None
        with suppress(RMQError):
            await run_flow(self._client, flows.note_use, id, self.now_ms())


def _principal_of(token: AccessToken) -> Principal:
    return Principal(
        token.name, token.role, token.sees_bodies, "token", None, token.id, token.topics
    )


def _digest(text: str) -> bytes:
    """Return the SHA-256 of a text.

    RMQ compares digests instead of texts, so that the time of a comparison does not depend on the
    secret.
    """
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
