"""A stage: messages stored outside of all queues, to be published together or not at all.

For jobs whose tasks run in many processes, fail and are repeated, as Spark's: each attempt of a
task writes into a stage of its own, and one process publishes those that count. With a query and a
batch number, a batch is published once, however often it is asked for.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rmq.errors import InvalidType, InvalidValue
from rmq.features.queries import stage_flows
from rmq.features.queries.stage_flows import PublishResult, StageContent
from rmq.kernel.core.message import Outgoing
from rmq.kernel.core.validation import Duration, check_int, duration_ms
from rmq.kernel.producer.send import block_s
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow
from rmq.kernel.transport.single.asyncio import AsyncTransport

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


def publish_flow(
    context: TopicContext,
    staged: Iterable[StageContent],
    query: str | None,
    batch: int | None,
    timeout: Duration | None,
) -> Flow[PublishResult]:
    """The flow of `Topic.publish`, its arguments checked."""
    wait_s = block_s(timeout)
    if query is None and batch is None:
        return stage_flows.publish(context, list(staged), wait_s)
    name, number = check_text(query, "query"), check_int(batch, "batch", 0, 2**53)
    return stage_flows.publish_once(context, list(staged), name, number, wait_s)


def discard_flow(
    context: TopicContext, staged: Iterable[StageContent], query: str | None
) -> Flow[None]:
    """The flow of `Topic.discard`, its arguments checked."""
    name = None if query is None else check_text(query, "query")
    return stage_flows.drop(context, list(staged), name)


def columns_of(
    priorities: Sequence[Any] | None,
    slot_bases: Sequence[Any] | None,
    headers: Sequence[Any] | None,
    types: Sequence[Any] | None,
    groups: Sequence[Any] | None,
) -> stage_flows.Columns:
    """The columns of `push_bodies` that were given, by field of a message."""
    columns = {
        "priority": priorities, "slot_basis": slot_bases, "headers": headers, "type": types,
        "group": groups,
    }  # fmt: skip
    return {field: column for field, column in columns.items() if column is not None}


def flows_of(
    context: TopicContext, name: str | None, keep: Duration, late: bool
) -> stage_flows.StageFlows:
    """The flows of a stage, the arguments of `Topic.stage` checked."""
    keep_ms = duration_ms(keep, "keep", 1000, KEEP_MAX_MS)
    chosen = uuid.uuid4().hex if name is None else check_text(name, "name")
    return stage_flows.StageFlows(context, chosen, keep_ms, late)


class StageBase:
    """The content of a stage."""

    def __init__(self, flows: stage_flows.StageFlows) -> None:
        self._flows = flows

    @property
    def staged(self) -> StageContent:
        """The stage's content, for `Topic.publish` or `Topic.discard`.

        Raises:
            StageLost: a push has failed, half-way perhaps.
        """
        return self._flows.staged

    def __repr__(self) -> str:
        content = self._flows.content
        return f"{type(self).__name__}({content.name!r}, {content.messages} messages)"


class AsyncStage(StageBase):
    """A place for messages that are not sent yet.

    Made by `AsyncTopic.stage`; one writer uses it.
    """

    def __init__(self, transport: AsyncTransport, flows: stage_flows.StageFlows) -> None:
        super().__init__(flows)
        self._run = transport.run

    async def push(self, messages: Iterable[Outgoing]) -> int:
        """Check, encode and store messages here; return how many the stage has.

        Give many at a time: those of one slot become one entry, up to 1000. After an error the
        stage is of no use; discard it, and write another one.

        Raises:
            RMQError: as `AsyncTopic.send_many`, for messages that cannot be sent.
            QueueFull: Redis is at maxmemory.
            StageLost: it has expired, or another writer uses its name.
        """
        return await self._run(self._flows.push(messages))

    async def push_bodies(
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
        return await self._run(self._flows.push_bodies(bodies, columns))

    async def discard(self) -> None:
        """Drop all messages of this stage, whether or not the last push succeeded."""
        await self._run(self._flows.discard())
