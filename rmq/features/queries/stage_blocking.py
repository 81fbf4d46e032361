# Generated from rmq/features/queries/stage.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.queries.stage`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rmq.features.queries import stage_flows
from rmq.features.queries.stage import StageBase
from rmq.kernel.core.message import Outgoing
from rmq.kernel.core.validation import Duration
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.blocking import Transport


class Stage(StageBase):
    """A place for messages that are not sent yet.

    Made by `Topic.stage`; one writer uses it.
    """

    def __init__(
        self,
        transport: Transport,
        context: TopicContext,
        name: str | None,
        keep: Duration,
        late: bool,
    ) -> None:
        super().__init__(context, name, keep, late)
        self._run = transport.run

    def push(self, messages: Iterable[Outgoing]) -> int:
        """Check, encode and store messages here; return how many the stage has.

        Give many at a time: those of one slot become one entry, up to 1000. After an error the
        stage is of no use; discard it, and write another one.

        Raises:
            The errors of `Topic.send_many` for messages that cannot be sent. QueueFull: Redis
            is at maxmemory. StageLost: it has expired, or another writer uses its name.
        """
        push = stage_flows.push(self._context, self.staged, messages, self._keep_ms, self._late)
        return self._run(self._noting(push))

    def push_bodies(self, bodies: Iterable[Any]) -> int:
        """As `push` of messages that have a body and nothing else, in a fraction of the time.

        Give some thousands at a time: they go to the slots in turn, an equal share to each.
        """
        push = stage_flows.push_bodies(self._context, self.staged, bodies, self._keep_ms)
        return self._run(self._noting(push))

    def discard(self) -> None:
        """Drop all messages of this stage, whether or not the last push succeeded."""
        self._run(stage_flows.drop_everywhere(self._context, self._staged.name))
