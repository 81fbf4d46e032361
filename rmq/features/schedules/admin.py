"""List, pause, resume, run and delete schedules."""

from __future__ import annotations

from rmq.features.schedules import flows
from rmq.features.schedules.flows import ScheduleState
from rmq.kernel.core.message import SendResult
from rmq.kernel.topic.admin_part import AsyncAdminPart


class AsyncScheduleAdmin(AsyncAdminPart):
    """Operations on schedules."""

    async def schedules(self, topic: str) -> list[ScheduleState]:
        """Return the schedules of a topic (`Topic.every`), sorted by their next due time."""
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

        Times during the pause are skipped.
        """
        return await self._run(flows.resume(self._context(topic), name))

    async def schedule_run(self, topic: str, name: str) -> SendResult:
        """Send the message of a schedule now, even if it is paused.

        The schedule's times do not change.
        """
        return await self._run(flows.run(self._context(topic), name))

    async def schedule_delete(self, topic: str, name: str) -> bool:
        """Delete a schedule, but not the messages that it has sent. Return whether it existed.

        The schedule stays deleted until a program declares it again.
        """
        return await self._run(flows.delete(self._context(topic), name))
