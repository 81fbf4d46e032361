"""The operations of `Admin` on groups."""

from __future__ import annotations

from rmq.features.groups import flows
from rmq.features.groups.flows import GroupPage, Sort
from rmq.features.groups.scripts import GroupState
from rmq.kernel.core.ids import Id
from rmq.kernel.topic.admin_part import AsyncAdminPart
from rmq.kernel.transport.flow.steps import Progress


class AsyncGroupAdmin(AsyncAdminPart):
    """Lists, pauses, resumes, releases and purges the groups of a topic."""

    async def groups(
        self,
        topic: str,
        *,
        sort: Sort = "held",
        limit: int = 100,
        skip: int = 0,
        scan: int = flows.SCAN,
    ) -> GroupPage:
        """Return the groups that have admitted messages, are paused, or are held by a dead letter.

        Consumers may receive the admitted messages of a group (`out`), or have them in flight. RMQ
        holds the other messages of the group.

        Args:
            topic: Name of the topic.
            sort: Order of the groups. "held": most held messages first. "oldest": oldest held
                message first. "out": most admitted messages first. "stopped": paused groups and
                groups held by a dead letter first. "name": by name.
            limit: Maximum number of groups, 1 to 10 000.
            skip: Number of groups to skip at the beginning, for example the groups of earlier
                pages.
            scan: Maximum number of groups to examine. If the topic has more groups, the result
                covers only the examined groups.

        Raises:
            TopicNotFound: The topic does not exist.
            InvalidValue: The topic has no groups.
        """
        return await self._run(flows.groups(self._context(topic), sort, limit, skip, scan))

    async def group(self, topic: str, group: str, *, id: Id | None = None) -> GroupState | None:
        """Return the state of a group, or None if it has no admitted message and is not stopped.

        After a resize, a group may have messages in several slots (parts of the topic). `groups`
        then lists the group once for each slot. This method returns the state in the slot in which
        the group is stopped. If no slot has stopped the group, it returns the state in the slot
        with the most held messages.

        Args:
            topic: Name of the topic.
            group: Name of the group.
            id: Id of a message of the group. `GroupState.ahead` is then the number of held messages
                before this message.
        """
        return await self._run(flows.group(self._context(topic), group, id))

    async def group_pause(self, topic: str, group: str) -> bool:
        """Pause a group until `group_resume`. Return False if the group was already paused.

        RMQ admits no further messages of the group. Consumers still receive admitted messages and
        their immediate retries. You can pause a group that has no messages yet.
        """
        return await self._run(flows.group_pause(self._context(topic), group))

    async def group_resume(self, topic: str, group: str) -> bool:
        """End the pause of a group, and wake consumers. Return whether the group was paused."""
        return await self._run(flows.group_resume(self._context(topic), group, "paused"))

    async def group_release(self, topic: str, group: str) -> bool:
        """Release a group that a dead letter holds. Return whether the group was held.

        A dead letter holds its group in a topic with `on_dead="hold"`. After the release, the dead
        letter stays dead. If you redrive the dead letter before the release, consumers receive its
        message first.
        """
        return await self._run(flows.group_resume(self._context(topic), group, "dead"))

    async def group_purge(
        self, topic: str, group: str, *, dry_run: bool = False, progress: Progress | None = None
    ) -> int:
        """Delete all waiting messages of a group permanently. Return the number of messages.

        RMQ does not delete messages in flight and dead letters.

        Args:
            topic: Name of the topic.
            group: Name of the group.
            dry_run: Whether to only count the messages.
            progress: Function that RMQ calls as `progress(deleted, all)` during the work.
        """
        return await self._run(flows.group_purge(self._context(topic), group, dry_run, progress))
