"""List, send and drop pending follow-ups, which acks have stored for other topics."""

from __future__ import annotations

from rmq.features.follow_ups import flows
from rmq.features.follow_ups.flows import PendingFollowUp
from rmq.kernel.topic.admin_part import AsyncAdminPart


class AsyncFollowUpAdmin(AsyncAdminPart):
    """Operations on the pending follow-ups of a topic."""

    async def pending(self, topic: str) -> list[PendingFollowUp]:
        """Return the follow-ups that acks of a topic have stored, and that are still pending.

        A follow-up is pending until RMQ has stored it in its own topic. The result is sorted by
        age, oldest first.

        Args:
            topic: Name of the topic whose messages were acked.

        Raises:
            TopicNotFound: The topic does not exist.
        """
        return await self._run(flows.pending(self._context(topic)))

    async def pending_send(self, topic: str) -> int:
        """Send the pending follow-ups of a topic now. Return how many are no longer pending.

        Consumers and servers do this every few seconds. Follow-ups for targets that are paused or
        full stay pending. If a target refuses a follow-up permanently, the follow-up becomes a dead
        letter of `topic`.
        """
        return await self._run(flows.send(self._context(topic)))

    async def pending_drop(self, topic: str, target: str, *, dry_run: bool = False) -> int:
        """Delete the pending follow-ups that a topic has for one target. Return their number.

        Args:
            topic: Name of the topic whose messages were acked.
            target: Name of the topic that would get the follow-ups.
            dry_run: Whether to only count the follow-ups.
        """
        return await self._run(flows.drop(self._context(topic), target, dry_run))
