"""Authentication: who asks, by a token, a session, a proxy or a host, or not at all.

none    whoever reaches the server is "local", an admin; on an address of this machine alone
token   the header Authorization has a token, or a cookie has a session begun with one
proxy   a proxy names the user in a header; a token is taken, too, for programs
host    the application in which this one is mounted says who asks

A server takes the token of its settings, and those in Redis, which it reads now and then.
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
from rmq.kernel.core import access
from rmq.kernel.core.access import AccessToken, Role
from rmq.server import sessions
from rmq.server.run_flow import run_flow
from rmq.server.sessions import Sessions
from rmq.web.principal import LOCAL, STATIC, Principal, can_be_name
from rmq.web.scope import csrf_token_of

if TYPE_CHECKING:
    from rmq.client.client import AsyncClient


log = logging.getLogger("rmq")

Headers = Mapping[bytes, Sequence[bytes]]  # values by name in lower case
Mode = Literal["none", "token", "proxy", "host"]
Find = Callable[[Any], Awaitable[Principal | None]]  # by the scope of a request
SECRET_AGAIN_S = 2.0


class Refused(Exception):
    """A request that names somebody and may not: not merely one that names nobody."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that is believed.

    Attributes:
        addresses: networks that it asks from.
        user_header: the header in which it names the user.
        role_header: the header in which it names the user's roles, with commas; empty: all its
            users are viewers.
    """

    addresses: tuple[IPv4Network | IPv6Network, ...] = ()
    user_header: str = "X-Forwarded-User"
    role_header: str = ""

    def vouches(self, address: str) -> bool:
        """Whether an address is the proxy's."""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self.addresses)


class Authentication:
    """Finds the principal of a request.

    Args:
        mode: how.
        token: that of the settings; None: those in Redis alone.
        proxy: the proxy that is believed: for names of users in the mode "proxy", in any mode for
            where a request comes from, and whether by https.
        find: finds the principal, in the mode "host".
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
        self._secret = secrets.token_bytes(32)  # until the shared one was read from Redis
        self._task: asyncio.Task[None] | None = None

    def open(self, client: AsyncClient) -> None:
        """Begin to ask Redis; in the event loop."""
        self.tokens.open(client)
        self.sessions.open(client)
        self._task = asyncio.create_task(self._read_secret(client))

    async def opened(self, wait_s: float) -> None:
        """Wait until the secret of forms was read from Redis, for so long at most.

        Forms that are shown with another one are refused later.
        """
        assert self._task is not None
        await asyncio.wait((self._task,), timeout=wait_s)

    def close(self) -> None:
        """End what goes on beside requests."""
        if self._task is not None:
            self._task.cancel()

    def locate(self, scope: Any, headers: Headers) -> str:
        """Return the address that a request comes from; its scheme is put into the scope.

        The proxy names the address as the last one in X-Forwarded-For; what stands before it
        anybody could have written.
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
        """Return the principal; None: the request has none.

        Raises:
            Refused: another than the proxy uses its headers, or it or the host names no role.
            RMQError: Redis does not tell.
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
        """Return the text that forms of somebody have; None: of who signs in."""
        return csrf_token_of(self._secret, principal)

    def _user(self, scope: Any, headers: Headers) -> Principal | None:
        """Return the user that the proxy names; None: it names none."""
        named = headers.get(self.proxy.user_header.lower().encode(), [])
        roles = headers.get(self.proxy.role_header.lower().encode(), [])
        client = scope.get("client")
        if not self.proxy.vouches(str(client[0]) if client else ""):
            if named or roles:
                raise Refused("headers of the proxy are taken from server.proxy_addresses alone")
            return None
        if not named:
            return None
        name = named[0].decode("latin-1").strip()
        if len(named) > 1 or not can_be_name(name):
            raise Refused(f"{self.proxy.user_header}: it must name one user")
        if len(roles) > 1:  # one of them may be of the client, behind a proxy that adds its own
            raise Refused(
                f"{self.proxy.role_header}: it came more than once; see that the proxy "
                "replaces what clients send"
            )
        if not self.proxy.role_header:
            return Principal(name, Role.VIEWER, False, "proxy")
        words = {word.strip() for each in roles for word in each.decode("latin-1").split(",")}
        known = [role for role in Role if role in words]
        if not known:
            raise Refused(f"{self.proxy.role_header}: it names none of {', '.join(Role)}")
        return Principal(name, known[-1], False, "proxy")

    async def _read_secret(self, client: AsyncClient) -> None:
        while True:
            try:
                self._secret = await run_flow(client, flows.server_secret)
                return
            except RMQError as error:
                log.info("the secret of forms is not read yet: %s", error)
            await asyncio.sleep(SECRET_AGAIN_S)


def _words(headers: Headers, name: bytes) -> list[str]:
    return [
        word.strip().lower()
        for value in headers.get(name, ())
        for word in value.decode("latin-1").split(",")
        if word.strip()
    ]


KEPT_S = 3.0  # how long the tokens that were read are used, so how long a revoked one is
UNKNOWN_S = 0.5  # an unknown token may be new; so often at most it is looked for in Redis
USED_S = 600.0  # how often the last use of a token is stored
READ_S = 5.0  # a read takes no longer


class Tokens:
    """Finds the principal of a token.

    Args:
        static: the token of the settings; None: there is none.
    """

    def __init__(self, static: str | None = None) -> None:
        self._static: Principal | None = None
        self._static_digest = b""
        if static is not None:
            self._static_digest = _digest(static)
            # As a session remembers it: with another token of the settings, its sessions end.
            self._static = replace(STATIC, token="static:" + self._static_digest.hex()[:16])
        self._client: AsyncClient | None = None
        self._by_id: dict[str, AccessToken] = {}
        self._read_at = float("-inf")
        self._ahead_ms = 0.0  # of Redis' clock before that of this process
        self._used_at: dict[str, float] = {}
        self._reading = asyncio.Lock()

    def open(self, client: AsyncClient) -> None:
        """Begin to read tokens from Redis."""
        self._client = client

    async def principal(self, text: str) -> Principal | None:
        """Return the principal of a token as it is sent; None: nobody's.

        Raises:
            RMQError: Redis does not tell.
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
        """Return the principal that a session began as; None: its token holds no more.

        Raises:
            RMQError: Redis does not tell.
        """
        if id.startswith("static:"):
            static = self._static
            return static if static is not None and static.token == id else None
        token = await self._find(id)
        return None if token is None else _principal_of(token)

    def now_ms(self) -> int:
        """Return the time by Redis' clock, as far as it was asked."""
        return int(time.monotonic() * 1000 + self._ahead_ms)

    async def _find(self, id: str) -> AccessToken | None:
        await self.refresh()
        if id not in self._by_id:
            await self.refresh(UNKNOWN_S)
        token = self._by_id.get(id)
        return None if token is None or token.has_expired(self.now_ms()) else token

    async def refresh(self, kept_s: float = KEPT_S) -> None:
        """Read all tokens, unless that was done a moment ago.

        Raises:
            RMQError: Redis does not tell.
        """
        if time.monotonic() - self._read_at < kept_s:
            return
        async with self._reading:
            began = time.monotonic()
            if began - self._read_at < kept_s:
                return
            if self._client is None:
                raise Unavailable("tokens: the server has not begun")
            try:
                async with asyncio.timeout(READ_S):
                    self._by_id, now_ms = await run_flow(self._client, flows.tokens_by_id)
            except TimeoutError:
                raise Unavailable("tokens: Redis does not answer") from None
            self._ahead_ms = now_ms - time.monotonic() * 1000
            self._read_at = began  # a token that was revoked since then may be among them

    async def _note_use(self, id: str) -> None:
        now = time.monotonic()
        if now - self._used_at.get(id, float("-inf")) < USED_S:
            return
        self._used_at[id] = now
        assert self._client is not None
        with suppress(RMQError):
            await run_flow(self._client, flows.note_use, id, self.now_ms())


def _principal_of(token: AccessToken) -> Principal:
    return Principal(token.name, token.role, token.sees_bodies, "token", None, token.id)


def _digest(text: str) -> bytes:
    """Return the SHA-256 of a text: of one length, so the time to compare reveals nothing."""
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
