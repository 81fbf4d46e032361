"""Schedules: list, pause, resume, run and delete them."""

from __future__ import annotations

from rmq.features.schedules import flows
from rmq.features.schedules.flows import ScheduleState
from rmq.kernel.core.message import SendResult
from rmq.kernel.topic.verbs import AsyncAdminPart


class AsyncScheduleAdmin(AsyncAdminPart):
    """Verbs on schedules."""

    async def schedules(self, topic: str) -> list[ScheduleState]:
        """Return the schedules of a topic (`Topic.every`); those that are due first come first."""
        return await self._run(flows.schedules(self._context(topic)))

    async def schedule(self, topic: str, name: str) -> ScheduleState:
        """Return one schedule.

        Raises:
            ScheduleNotFound: there is none of this name.
        """
        return await self._run(flows.schedule(self._context(topic), name))

    async def schedule_pause(self, topic: str, name: str) -> bool:
        """Pause a schedule until it is resumed; return whether it was not paused."""
        return await self._run(flows.pause(self._context(topic), name))

    async def schedule_resume(self, topic: str, name: str) -> bool:
        """Resume a paused schedule with its next time; return whether it was paused.

        Times that passed meanwhile are not made up for.
        """
        return await self._run(flows.resume(self._context(topic), name))

    async def schedule_run(self, topic: str, name: str) -> SendResult:
        """Send the message of a schedule now, paused or not; its times stay as they are."""
        return await self._run(flows.run(self._context(topic), name))

    async def schedule_delete(self, topic: str, name: str) -> bool:
        """Delete a schedule; return whether there was one. Messages that it has sent stay.

        It stays deleted until a program declares it again.
        """
        return await self._run(flows.delete(self._context(topic), name))
