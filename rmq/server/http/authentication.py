"""Authentication: who asks, by a token, a session, a proxy or a host, or not at all.

none    whoever reaches the server is "local", an admin; on an address of this machine alone
token   the header Authorization has a token, or a cookie has a session begun with one
proxy   a proxy names the user in a header; a token is taken, too, for programs
host    the application in which this one is mounted says who asks
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING, Any, Literal

from rmq.core.access import Role
from rmq.errors import RMQError
from rmq.protocol.flows.sessions import server_secret
from rmq.server.http import csrf, sessions
from rmq.server.http.principal import LOCAL, Principal, can_be_name
from rmq.server.http.sessions import Sessions
from rmq.server.http.tokens import Tokens

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
        self._secret = secrets.token_bytes(32)  # until Redis has told the shared one
        self._task: asyncio.Task[None] | None = None

    def open(self, client: AsyncClient) -> None:
        """Begin to ask Redis; in the event loop."""
        self.tokens.open(client)
        self.sessions.open(client)
        self._task = asyncio.create_task(self._read_secret(client))

    async def opened(self, wait_s: float) -> None:
        """Wait until Redis has told the secret of forms, for so long at most.

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
        return csrf.token_of(self._secret, principal)

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
                self._secret = await client._transport.run(server_secret(client._prefix))
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
