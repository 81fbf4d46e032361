"""A stage: messages written where nobody sees them, to be published together, or not at all.

For jobs whose tasks run in many processes, fail and are repeated, as Spark's: each attempt of a
task writes into a stage of its own, and one process publishes those that count. With a query and a
batch number, a batch is published once, however often it is asked for.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Any

from rmq.core.message import Outgoing
from rmq.core.topic_context import TopicContext
from rmq.core.validation import Duration, milliseconds
from rmq.errors import InvalidType, InvalidValue, StageLost
from rmq.protocol.flows import Flow, stage
from rmq.protocol.flows.stage import Published, Staged
from rmq.transport import Transport

__all__ = ["Published", "Stage", "Staged", "check_text"]

KEEP_MAX_MS = 30 * 86_400_000
_TEXT = re.compile(r"[A-Za-z0-9._:-]{1,200}")


def check_text(value: object, field: str) -> str:
    """The name of a stage or a query: 1 to 200 of `A-Z a-z 0-9 . _ : -`.

    Raises:
        InvalidType: not a str. InvalidValue: another character, or another length.
    """
    if not isinstance(value, str):
        raise InvalidType(f"{field}: {type(value).__name__}; give a str")
    if not _TEXT.fullmatch(value):
        raise InvalidValue(f"{field}: {value!r:.60}; use 1 to 200 of A-Z a-z 0-9 . _ : -")
    return value


class Stage:
    """A place for messages that are not sent yet. Made by `Topic.stage`; one writer uses it."""

    def __init__(
        self,
        transport: Transport,
        context: TopicContext,
        name: str | None,
        keep: Duration,
        late: bool,
    ) -> None:
        self._run = transport.run
        self._context = context
        self._keep_ms = milliseconds(keep, "keep", 1000, KEEP_MAX_MS)
        self._late = late
        made = uuid.uuid4().hex if name is None else check_text(name, "name")
        self._staged = Staged(made, {}, 0)
        self._failed = False

    @property
    def staged(self) -> Staged:
        """What stands in it; give this to `Topic.publish` or `Topic.discard`.

        Raises:
            StageLost: a push has failed, half-way perhaps.
        """
        if self._failed:
            raise StageLost(f"stage {self._staged.name}: a push has failed; write another stage")
        return self._staged

    def push(self, messages: Iterable[Outgoing]) -> int:
        """Check, encode and name messages as a send does, and put them here; how many are here.

        Give many at a time: those of one slot become one entry, up to 1000. After an error the
        stage is of no use; discard it, and write another one.

        Raises:
            What `Topic.send_many` raises for messages that cannot be sent; QueueFull: Redis is at
            maxmemory; StageLost: it has expired, or another writer has its name.
        """
        return self._put(
            stage.push(self._context, self.staged, messages, self._keep_ms, self._late)
        )

    def push_bodies(self, bodies: Iterable[Any]) -> int:
        """As `push` of messages that are bodies and nothing else, in a fraction of the time.

        Give some thousands at a time: they go to the slots in turn, an equal share to each.
        """
        return self._put(stage.push_bodies(self._context, self.staged, bodies, self._keep_ms))

    def _put(self, flow: Flow[Staged]) -> int:
        self._failed = True  # until it has not: repeated, a push would name its messages anew
        self._staged = self._run(flow)
        self._failed = False
        return self._staged.messages

    def discard(self) -> None:
        """Drop all that was put here, whatever became of the last push."""
        self._run(stage.drop_everywhere(self._context, self._staged.name))

    def __repr__(self) -> str:
        return f"Stage({self._staged.name!r}, {self._staged.messages} messages)"
