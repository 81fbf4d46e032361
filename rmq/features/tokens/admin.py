"""Tokens for the HTTP API and the console of `rmq server`."""

from __future__ import annotations

from datetime import timedelta

from rmq.features.tokens import flows
from rmq.kernel.core.access import AccessToken
from rmq.kernel.topic.verbs import AsyncAdminPart


class AsyncTokenAdmin(AsyncAdminPart):
    """Verbs on tokens."""

    async def token_create(
        self,
        name: str,
        role: str = "viewer",
        *,
        sees_bodies: bool = False,
        expires: float | timedelta | None = None,
    ) -> AccessToken:
        """Create a token, and return it with its text, which Redis does not have.

        Args:
            name: for people: 1 to 128 of A-Z a-z 0-9 . _ -
            role: "viewer" (reads), "operator" (keeps messages moving) or "admin" (everything).
            sees_bodies: show bodies of messages to a viewer, too.
            expires: how long it holds, seconds or timedelta; None: until it is revoked.

        Raises:
            InvalidValue: the name is taken, the role is none, or there are 1000 tokens.
        """
        return await self._run(flows.token_create(self._prefix, name, role, sees_bodies, expires))

    async def tokens(self) -> list[AccessToken]:
        """Return all tokens by name, also those that have expired, without their text."""
        return await self._run(flows.tokens(self._prefix))

    async def token_revoke(self, name: str) -> bool:
        """Delete a token; return whether there was one.

        Guarantee:
            Within 5 s no server takes it any more, and sessions and streams that it began end.
        """
        return await self._run(flows.token_revoke(self._prefix, name))
