# Generated from rmq/features/schedules/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.schedules.admin`."""

from __future__ import annotations

from rmq.features.schedules import flows
from rmq.features.schedules.admin import Declaring
from rmq.features.schedules.declaration_blocking import Schedule
from rmq.features.schedules.flows import ScheduleState
from rmq.features.schedules.schedule import Definition
from rmq.kernel.core.message import SendResult
from rmq.kernel.topic.verbs import AdminPart
from rmq.kernel.transport.blocking import Transport


class ScheduleAdmin(AdminPart):
    """Verbs on schedules."""

    def schedules(self, topic: str) -> list[ScheduleState]:
        """Return the schedules of a topic (`Topic.every`); those that are due first come first."""
        context = self._context(topic)
        return self._run(flows.schedules(context))

    def schedule(self, topic: str, name: str) -> ScheduleState:
        """Return one schedule.

        Raises:
            ScheduleNotFound: there is none of this name.
        """
        context = self._context(topic)
        return self._run(flows.schedule(context, name))

    def schedule_pause(self, topic: str, name: str) -> bool:
        """Pause a schedule until it is resumed; return whether it was not paused."""
        context = self._context(topic)
        return self._run(flows.pause(context, name))

    def schedule_resume(self, topic: str, name: str) -> bool:
        """Resume a paused schedule with its next time; return whether it was paused.

        Times that passed meanwhile are not made up for.
        """
        context = self._context(topic)
        return self._run(flows.resume(context, name))

    def schedule_run(self, topic: str, name: str) -> SendResult:
        """Send the message of a schedule now, paused or not; its times stay as they are."""
        context = self._context(topic)
        return self._run(flows.run(context, name))

    def schedule_delete(self, topic: str, name: str) -> bool:
        """Delete a schedule; return whether there was one. Messages that it has sent stay.

        It stays deleted until a program declares it again.
        """
        context = self._context(topic)
        return self._run(flows.delete(context, name))


class Schedules(Declaring[Schedule]):
    """Declares schedules of a topic."""

    _transport: Transport

    def _declaration(self, definition: Definition) -> Schedule:
        return Schedule(self._transport, self._context, definition)
