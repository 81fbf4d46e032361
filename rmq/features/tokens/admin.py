"""The operations of `Admin` on tokens for the HTTP API and the console of `rmq server`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from rmq.features.tokens import flows
from rmq.kernel.core.access import AccessToken
from rmq.kernel.topic.admin_part import AsyncAdminPart


class AsyncTokenAdmin(AsyncAdminPart):
    """Creates, lists and revokes tokens."""

    async def token_create(
        self,
        name: str,
        role: str = "viewer",
        *,
        sees_bodies: bool = False,
        expires: float | timedelta | None = None,
        topics: Iterable[str] = (),
    ) -> AccessToken:
        """Create a token. Return the token with its text, which Redis does not store.

        Args:
            name: Name of the token: 1 to 128 characters of A-Z a-z 0-9 . _ -
            role: "producer" (sends), "consumer" (receives and settles), "viewer" (reads),
                "operator" (also sends, redrives, pauses and cancels) or "admin" (all operations).
            sees_bodies: Whether a viewer may see bodies of messages.
            expires: Lifetime, in seconds or as a timedelta. Default: until you revoke the token.
            topics: Names of the topics of a producer or a consumer, 1 to 100. In a name, * stands
                for any text: "orders.*", or "*" for all topics. Other roles take no topics.

        Raises:
            InvalidType, InvalidValue: The name is taken, the role is unknown, the topics are not
                valid, or there are 1000 tokens.
        """
        return await self._run(
            flows.token_create(self._prefix, name, role, sees_bodies, expires, topics)
        )

    async def tokens(self) -> list[AccessToken]:
        """Return all tokens by name, without their text. Expired tokens are included."""
        return await self._run(flows.tokens(self._prefix))

    async def token_revoke(self, name: str) -> bool:
        """Delete a token. Return whether the token existed.

        Guarantee:
            Within 5 s all servers refuse the token, and its sessions and streams end.
        """
        return await self._run(flows.token_revoke(self._prefix, name))
