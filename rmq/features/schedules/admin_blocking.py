# Generated from rmq/features/schedules/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.schedules.admin`."""

from __future__ import annotations

from rmq.features.schedules import flows
from rmq.features.schedules.flows import ScheduleState
from rmq.kernel.core.message import SendResult
from rmq.kernel.topic.verbs import AdminPart


class ScheduleAdmin(AdminPart):
    """Verbs on schedules."""

    def schedules(self, topic: str) -> list[ScheduleState]:
        """Return the schedules of a topic (`Topic.every`); those that are due first come first."""
        return self._run(flows.schedules(self._context(topic)))

    def schedule(self, topic: str, name: str) -> ScheduleState:
        """Return one schedule.

        Raises:
            ScheduleNotFound: there is none of this name.
        """
        return self._run(flows.schedule(self._context(topic), name))

    def schedule_pause(self, topic: str, name: str) -> bool:
        """Pause a schedule until it is resumed; return whether it was not paused."""
        return self._run(flows.pause(self._context(topic), name))

    def schedule_resume(self, topic: str, name: str) -> bool:
        """Resume a paused schedule with its next time; return whether it was paused.

        Times that passed meanwhile are not made up for.
        """
        return self._run(flows.resume(self._context(topic), name))

    def schedule_run(self, topic: str, name: str) -> SendResult:
        """Send the message of a schedule now, paused or not; its times stay as they are."""
        return self._run(flows.run(self._context(topic), name))

    def schedule_delete(self, topic: str, name: str) -> bool:
        """Delete a schedule; return whether there was one. Messages that it has sent stay.

        It stays deleted until a program declares it again.
        """
        return self._run(flows.delete(self._context(topic), name))
