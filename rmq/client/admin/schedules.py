"""Schedules: list, pause, resume, run and delete them."""

from __future__ import annotations

from rmq.client.admin.part import AdminPart, AsyncAdminPart
from rmq.core.message import SendResult
from rmq.protocol.flows import recurring
from rmq.protocol.flows.recurring import ScheduleState


class ScheduleAdmin(AdminPart):
    """Verbs on schedules."""

    def schedules(self, topic: str) -> list[ScheduleState]:
        """Return the schedules of a topic (`Topic.every`); those that are due first come first."""
        context = self._context(topic)
        return self._run(recurring.schedules(context))

    def schedule(self, topic: str, name: str) -> ScheduleState:
        """Return one schedule.

        Raises:
            ScheduleNotFound: there is none of this name.
        """
        context = self._context(topic)
        return self._run(recurring.schedule(context, name))

    def schedule_pause(self, topic: str, name: str) -> bool:
        """Let a schedule send nothing until it is resumed; return whether it was not paused."""
        context = self._context(topic)
        return self._run(recurring.pause(context, name))

    def schedule_resume(self, topic: str, name: str) -> bool:
        """Let a paused schedule go on with its next time; return whether it was paused.

        Times that passed meanwhile are not made up for.
        """
        context = self._context(topic)
        return self._run(recurring.resume(context, name))

    def schedule_run(self, topic: str, name: str) -> SendResult:
        """Send the message of a schedule now, paused or not; its times stay as they are."""
        context = self._context(topic)
        return self._run(recurring.run(context, name))

    def schedule_delete(self, topic: str, name: str) -> bool:
        """Delete a schedule; return whether there was one. Messages that it has sent stay.

        It stays deleted until a program declares it again.
        """
        context = self._context(topic)
        return self._run(recurring.delete(context, name))


class AsyncScheduleAdmin(AsyncAdminPart):
    """As `ScheduleAdmin`, for asyncio."""

    async def schedules(self, topic: str) -> list[ScheduleState]:
        """As `Admin.schedules`."""
        context = self._context(topic)
        return await self._run(recurring.schedules(context))

    async def schedule(self, topic: str, name: str) -> ScheduleState:
        """As `Admin.schedule`."""
        context = self._context(topic)
        return await self._run(recurring.schedule(context, name))

    async def schedule_pause(self, topic: str, name: str) -> bool:
        """As `Admin.schedule_pause`."""
        context = self._context(topic)
        return await self._run(recurring.pause(context, name))

    async def schedule_resume(self, topic: str, name: str) -> bool:
        """As `Admin.schedule_resume`."""
        context = self._context(topic)
        return await self._run(recurring.resume(context, name))

    async def schedule_run(self, topic: str, name: str) -> SendResult:
        """As `Admin.schedule_run`."""
        context = self._context(topic)
        return await self._run(recurring.run(context, name))

    async def schedule_delete(self, topic: str, name: str) -> bool:
        """As `Admin.schedule_delete`."""
        context = self._context(topic)
        return await self._run(recurring.delete(context, name))
