"""The operations of `Admin` on claims."""

from __future__ import annotations

from rmq.features.claims import flows
from rmq.kernel.delivery.claim import ClaimStatus
from rmq.kernel.topic.admin_part import AsyncAdminPart


class AsyncClaimAdmin(AsyncAdminPart):
    """Shows and deletes claims on business keys."""

    async def claim(self, topic: str, key: str, *, consumer: str = "default") -> ClaimStatus | None:
        """Return the claim on a business key (`rmq.Claims`), or None.

        Args:
            topic: Name of the topic.
            key: Business key as text, as the handler's `key` returns it.
            consumer: Name of the consumer in the handler's `rmq.Claims`.
        """
        return await self._run(flows.claim(self._context(topic), key, consumer))

    async def unclaim(self, topic: str, key: str, *, consumer: str = "default") -> bool:
        """Delete the claim on a business key, in any state. Return whether there was a claim.

        RMQ handles the next message with this key, even if the work of the key was done before.
        """
        return await self._run(flows.unclaim(self._context(topic), key, consumer))
