"""The tokens that a server takes: that of its settings, and those in Redis, read now and then."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from rmq.core import access
from rmq.core.access import AccessToken
from rmq.errors import RMQError, Unavailable
from rmq.protocol.flows import tokens
from rmq.server.http.principal import STATIC, Principal

if TYPE_CHECKING:
    from rmq.client.client import AsyncClient

log = logging.getLogger("rmq")

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

    async def refresh(self) -> None:
        """Read all tokens, unless that was done a moment ago.

        Raises:
            RMQError: Redis does not tell.
        """
        await self._refresh(KEPT_S)

    async def _find(self, id: str) -> AccessToken | None:
        await self._refresh(KEPT_S)
        if id not in self._by_id:
            await self._refresh(UNKNOWN_S)
        token = self._by_id.get(id)
        return None if token is None or token.has_expired(self.now_ms()) else token

    async def _refresh(self, kept_s: float) -> None:
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
                    self._by_id, now_ms = await self._client._transport.run(
                        tokens.tokens_by_id(self._client._prefix)
                    )
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
            await self._client._transport.run(
                tokens.note_use(self._client._prefix, id, self.now_ms())
            )


def _principal_of(token: AccessToken) -> Principal:
    return Principal(token.name, token.role, token.sees_bodies, "token", None, token.id)


def _digest(text: str) -> bytes:
    """Return the SHA-256 of a text: of one length, so the time to compare tells nothing."""
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
