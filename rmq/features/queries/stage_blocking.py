# Generated from rmq/features/queries/stage.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.queries.stage`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rmq.features.queries import stage_flows
from rmq.features.queries.stage import StageBase, columns_of
from rmq.kernel.core.message import Outgoing
from rmq.kernel.transport.single.blocking import Transport


class Stage(StageBase):
    """A place for messages that are not sent yet.

    Made by `Topic.stage`; one writer uses it.
    """

    def __init__(self, transport: Transport, flows: stage_flows.StageFlows) -> None:
        super().__init__(flows)
        self._run = transport.run

    def push(self, messages: Iterable[Outgoing]) -> int:
        """Check, encode and store messages here; return how many the stage has.

        Give many at a time: those of one slot become one entry, up to 1000. After an error the
        stage is of no use; discard it, and write another one.

        Raises:
            RMQError: as `Topic.send_many`, for messages that cannot be sent.
            QueueFull: Redis is at maxmemory.
            StageLost: it has expired, or another writer uses its name.
        """
        return self._run(self._flows.push(messages))

    def push_bodies(
        self,
        bodies: Iterable[Any],
        *,
        priorities: Sequence[int | None] | None = None,
        slot_bases: Sequence[str | bytes | None] | None = None,
        headers: Sequence[Mapping[str, str] | None] | None = None,
        types: Sequence[str | None] | None = None,
        groups: Sequence[str | None] | None = None,
    ) -> int:
        """As `push` of messages with these columns and no others, in a fraction of the time.

        Give some thousands at a time: those without a basis go to the slots in turn, an equal share
        to each. A column has a value for each body; None is a field that is not given.
        """
        columns = columns_of(priorities, slot_bases, headers, types, groups)
        return self._run(self._flows.push_bodies(bodies, columns))

    def discard(self) -> None:
        """Drop all messages of this stage, whether or not the last push succeeded."""
        self._run(self._flows.discard())
