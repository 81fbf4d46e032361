# Generated from rmq/features/schedules/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.schedules.admin`."""

from __future__ import annotations

from rmq.features.schedules import flows
from rmq.features.schedules.flows import ScheduleState
from rmq.kernel.core.message import SendResult
from rmq.kernel.topic.admin_part import AdminPart


class ScheduleAdmin(AdminPart):
    """Lists, pauses, resumes, runs and deletes schedules."""

    def schedules(self, topic: str) -> list[ScheduleState]:
        """Return the schedules of a topic, which `Topic.every` declared.

        The schedule that is due next is first.
        """
        return self._run(flows.schedules(self._context(topic)))

    def schedule(self, topic: str, name: str) -> ScheduleState:
        """Return a schedule.

        Raises:
            ScheduleNotFound: The topic has no schedule with this name.
        """
        return self._run(flows.schedule(self._context(topic), name))

    def schedule_pause(self, topic: str, name: str) -> bool:
        """Pause a schedule until it is resumed. Return whether the schedule was active."""
        return self._run(flows.pause(self._context(topic), name))

    def schedule_resume(self, topic: str, name: str) -> bool:
        """Resume a paused schedule at its next time. Return whether the schedule was paused.

        The schedule skips the times of the pause.
        """
        return self._run(flows.resume(self._context(topic), name))

    def schedule_run(self, topic: str, name: str) -> SendResult:
        """Send the message of a schedule now, even if the schedule is paused.

        The times of the schedule do not change.
        """
        return self._run(flows.run(self._context(topic), name))

    def schedule_delete(self, topic: str, name: str) -> bool:
        """Delete a schedule. Return whether it existed. Messages that it has sent stay.

        The schedule stays deleted until a program declares it again.
        """
        return self._run(flows.delete(self._context(topic), name))
