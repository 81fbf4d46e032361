"""The operations of `Admin` on schedules."""

from __future__ import annotations

from rmq.features.schedules import flows
from rmq.features.schedules.flows import ScheduleState
from rmq.kernel.core.message import SendResult
from rmq.kernel.topic.admin_part import AsyncAdminPart


class AsyncScheduleAdmin(AsyncAdminPart):
    """Lists, pauses, resumes, runs and deletes schedules."""

    async def schedules(self, topic: str) -> list[ScheduleState]:
        """Return the schedules of a topic, which `Topic.every` declared.

        The schedule that is due next is first.
        """
        return await self._run(flows.schedules(self._context(topic)))

    async def schedule(self, topic: str, name: str) -> ScheduleState:
        """Return a schedule.

        Raises:
            ScheduleNotFound: The topic has no schedule with this name.
        """
        return await self._run(flows.schedule(self._context(topic), name))

    async def schedule_pause(self, topic: str, name: str) -> bool:
        """Pause a schedule until it is resumed. Return whether the schedule was active."""
        return await self._run(flows.pause(self._context(topic), name))

    async def schedule_resume(self, topic: str, name: str) -> bool:
        """Resume a paused schedule at its next time. Return whether the schedule was paused.

        The schedule skips the times of the pause.
        """
        return await self._run(flows.resume(self._context(topic), name))

    async def schedule_run(self, topic: str, name: str) -> SendResult:
        """Send the message of a schedule now, even if the schedule is paused.

        The times of the schedule do not change.
        """
        return await self._run(flows.run(self._context(topic), name))

    async def schedule_delete(self, topic: str, name: str) -> bool:
        """Delete a schedule. Return whether it existed. Messages that it has sent stay.

        The schedule stays deleted until a program declares it again.
        """
        return await self._run(flows.delete(self._context(topic), name))
