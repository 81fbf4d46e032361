# Generated from rmq/features/schedules/declaration.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.schedules.declaration`."""

from __future__ import annotations

from rmq.features.schedules import flows as recurring_flow
from rmq.features.schedules.declaration import Declaration, Declaring
from rmq.features.schedules.flows import DeclareStatus
from rmq.features.schedules.schedule import Definition
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.single.blocking import Transport


class Schedule(Declaration):
    """A schedule that `Topic.every` declared."""

    def __init__(self, transport: Transport, context: TopicContext, definition: Definition) -> None:
        super().__init__(context, definition)
        self._run = transport.run

    def declare(self) -> DeclareStatus:
        """Store the schedule in Redis now.

        Without this call, a worker or a scheduler stores the schedule when it starts.

        Returns:
            "created", "updated" if the stored definition was different, or "unchanged".
        """
        return self._run(recurring_flow.declare(self.context, self.definition))


class Schedules(Declaring[Schedule]):
    """The methods of a topic that declare schedules."""

    _transport: Transport

    def _declaration(self, definition: Definition) -> Schedule:
        return Schedule(self._transport, self._context, definition)
