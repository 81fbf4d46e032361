# Generated from rmq/features/groups/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.groups.admin`."""

from __future__ import annotations

from rmq.features.groups import flows
from rmq.features.groups.flows import GroupPage, Sort
from rmq.features.groups.scripts import GroupState
from rmq.kernel.core.ids import Id
from rmq.kernel.topic.verbs import AdminPart
from rmq.kernel.transport.flow.steps import Progress


class GroupAdmin(AdminPart):
    """Verbs on the groups of a topic."""

    def groups(
        self,
        topic: str,
        *,
        sort: Sort = "held",
        limit: int = 100,
        skip: int = 0,
        scan: int = flows.SCAN,
    ) -> GroupPage:
        """Return groups that have messages out, are paused, or are held by a dead letter.

        Args:
            topic: its name.
            sort: "held": those with most held messages first; "oldest": those whose held messages
                are the oldest; "out"; "stopped": those that are paused or held by a dead letter;
                "name".
            limit: how many, 1 to 10 000.
            skip: how many of that order are left out, as those of the page before.
            scan: how many groups are looked at; of more, the list has the first of these.

        Raises:
            TopicNotFound: there is no such topic.
            InvalidValue: the topic has no groups.
        """
        return self._run(flows.groups(self._context(topic), sort, limit, skip, scan))

    def group(self, topic: str, group: str, *, id: Id | None = None) -> GroupState | None:
        """Return a group; None: none of its messages is out, and nobody has stopped it.

        In a topic that was resized, a group may be in several slots (`groups` lists each of them).
        Then this is the slot that is stopped, or that holds the most messages.

        Args:
            topic: its name.
            group: the name of the group.
            id: a message of the group: `ahead` says how many held ones go before it.
        """
        return self._run(flows.group(self._context(topic), group, id))

    def group_pause(self, topic: str, group: str) -> bool:
        """Let no more messages of a group out until `group_resume`; False: it was paused already.

        What is in flight, and its retries at once, goes on. Where several messages of a group are
        out at a time, those that are out are still delivered. A group can be paused before it has
        messages.
        """
        return self._run(flows.group_pause(self._context(topic), group))

    def group_resume(self, topic: str, group: str) -> bool:
        """End the pause of a group, and wake consumers; False: it was not paused."""
        return self._run(flows.group_resume(self._context(topic), group, "paused"))

    def group_release(self, topic: str, group: str) -> bool:
        """Let a group go on that a dead letter holds (`on_dead="hold"`); False: none does.

        The dead letter stays. Redriven before, it goes first of its group.
        """
        return self._run(flows.group_resume(self._context(topic), group, "dead"))

    def group_purge(
        self, topic: str, group: str, *, dry_run: bool = False, progress: Progress | None = None
    ) -> int:
        """Delete all messages of a group that wait, for good; return how many.

        Messages in flight and dead letters stay.

        Args:
            topic: its name.
            group: the name of the group.
            dry_run: only count them.
            progress: called with how many were deleted, and how many there are at least.
        """
        return self._run(flows.group_purge(self._context(topic), group, dry_run, progress))
