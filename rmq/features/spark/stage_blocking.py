# Generated from rmq/features/spark/stage.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.spark.stage`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rmq.features.spark import stage_flows
from rmq.features.spark.stage import StageBase, columns_of
from rmq.kernel.core.message import Outgoing
from rmq.kernel.transport.single.blocking import Transport


class Stage(StageBase):
    """Messages that are stored but not yet sent.

    `Topic.stage` creates a stage. Only a single writer may use a stage.
    """

    def __init__(self, transport: Transport, flows: stage_flows.StageFlows) -> None:
        super().__init__(flows)
        self._run = transport.run

    def push(self, messages: Iterable[Outgoing]) -> int:
        """Check, encode and store messages. Return the number of messages in the stage.

        Pass many messages in one call, because RMQ stores up to 1000 messages of a slot (part of
        the topic) together. After an error, you can no longer use the stage. Discard it, and write
        another stage.

        Raises:
            RMQError: A message cannot be sent, as in `Topic.send_many`.
            QueueFull: Redis is at maxmemory.
            StageLost: The stage has expired, or another writer uses its name.
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
        """Store messages that are given as columns. Return the number of messages in the stage.

        This method is much faster than `push`. Pass some thousands of messages at a time. RMQ
        spreads messages without a slot basis evenly over the slots. A column has one value for each
        body. None leaves the field unset.
        """
        columns = columns_of(priorities, slot_bases, headers, types, groups)
        return self._run(self._flows.push_bodies(bodies, columns))

    def discard(self) -> None:
        """Delete all messages of this stage. You may call this after a failed push."""
        self._run(self._flows.discard())
