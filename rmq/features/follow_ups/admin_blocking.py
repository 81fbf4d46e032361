# Generated from rmq/features/follow_ups/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.follow_ups.admin`."""

from __future__ import annotations

from rmq.features.follow_ups import flows
from rmq.features.follow_ups.flows import PendingFollowUp
from rmq.kernel.topic.admin_part import AdminPart


class FollowUpAdmin(AdminPart):
    """Lists, sends and deletes the pending follow-ups of a topic."""

    def pending(self, topic: str) -> list[PendingFollowUp]:
        """Return the pending follow-ups of a topic, oldest first.

        RMQ stores a follow-up when it acks or rejects a message of the topic. The follow-up is
        pending until RMQ has stored it in its own topic.

        Args:
            topic: Name of the topic whose messages were acked or rejected.

        Raises:
            TopicNotFound: The topic does not exist.
        """
        return self._run(flows.pending(self._context(topic)))

    def pending_send(self, topic: str) -> int:
        """Send the pending follow-ups of a topic now. Return how many are no longer pending.

        Consumers and servers also do this every few seconds. If the target topic is paused or full,
        the follow-up stays pending. If the target topic refuses a follow-up permanently, the
        follow-up becomes a dead letter of `topic`.
        """
        return self._run(flows.send(self._context(topic)))

    def pending_drop(self, topic: str, target: str, *, dry_run: bool = False) -> int:
        """Delete the pending follow-ups that a topic has for one target topic. Return their number.

        Args:
            topic: Name of the topic whose messages were acked or rejected.
            target: Name of the topic that would get the follow-ups.
            dry_run: Whether to only count the follow-ups.
        """
        return self._run(flows.drop(self._context(topic), target, dry_run))
