"""A stage stores messages outside of all queues, to publish them together or not at all.

Stages are for engines such as Spark, whose tasks run in many processes, fail and are repeated. Each
attempt of a task writes into its own stage. Then one process publishes the stages of the successful
attempts. If you pass a query and a batch number, RMQ publishes the batch once, even if you repeat
the call.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rmq.errors import InvalidType, InvalidValue
from rmq.features.spark import stage_flows
from rmq.features.spark.stage_flows import PublishResult, StageContent
from rmq.kernel.core.message import Outgoing
from rmq.kernel.core.validation import Duration, check_int, duration_ms
from rmq.kernel.producer.send import block_s
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow
from rmq.kernel.transport.single.asyncio import AsyncTransport

KEEP_MAX_MS = 30 * 86_400_000
_TEXT = re.compile(r"[A-Za-z0-9._:-]{1,200}")


def check_text(value: object, field: str) -> str:
    """Check the name of a stage or a query: 1 to 200 characters of `A-Z a-z 0-9 . _ : -`.

    Raises:
        InvalidType: The value is not a str.
        InvalidValue: The length or a character is not valid.
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
    """Check the arguments of `Topic.publish`, and return the commands to run."""
    wait_s = block_s(timeout)
    if query is None and batch is None:
        return stage_flows.publish(context, list(staged), wait_s)
    name, number = check_text(query, "query"), check_int(batch, "batch", 0, 2**53)
    return stage_flows.publish_once(context, list(staged), name, number, wait_s)


def discard_flow(
    context: TopicContext, staged: Iterable[StageContent], query: str | None
) -> Flow[None]:
    """Check the arguments of `Topic.discard`, and return the commands to run."""
    name = None if query is None else check_text(query, "query")
    return stage_flows.drop(context, list(staged), name)


def columns_of(
    priorities: Sequence[Any] | None,
    slot_bases: Sequence[Any] | None,
    headers: Sequence[Any] | None,
    types: Sequence[Any] | None,
    groups: Sequence[Any] | None,
) -> stage_flows.Columns:
    """Return the columns that were passed to `push_bodies`, by the name of the message's field."""
    columns = {
        "priority": priorities, "slot_basis": slot_bases, "headers": headers, "type": types,
        "group": groups,
    }  # fmt: skip
    return {field: column for field, column in columns.items() if column is not None}


def flows_of(
    context: TopicContext, name: str | None, keep: Duration, late: bool
) -> stage_flows.StageFlows:
    """Check the arguments of `Topic.stage`, and create the stage (messages to publish later)."""
    keep_ms = duration_ms(keep, "keep", 1000, KEEP_MAX_MS)
    chosen = uuid.uuid4().hex if name is None else check_text(name, "name")
    return stage_flows.StageFlows(context, chosen, keep_ms, late)


class StageBase:
    """Shared code of `Stage` and `AsyncStage`."""

    def __init__(self, flows: stage_flows.StageFlows) -> None:
        self._flows = flows

    @property
    def staged(self) -> StageContent:
        """A description of the stored messages. Pass it to `Topic.publish` or `Topic.discard`.

        Raises:
            StageLost: A push has failed, and may have stored some of its messages.
        """
        return self._flows.staged

    def __repr__(self) -> str:
        content = self._flows.content
        return f"{type(self).__name__}({content.name!r}, {content.messages} messages)"


class AsyncStage(StageBase):
    """Messages that are stored but not yet sent.

    `AsyncTopic.stage` creates a stage. Only a single writer may use a stage.
    """

    def __init__(self, transport: AsyncTransport, flows: stage_flows.StageFlows) -> None:
        super().__init__(flows)
        self._run = transport.run

    async def push(self, messages: Iterable[Outgoing]) -> int:
        """Check, encode and store messages. Return the number of messages in the stage.

        Pass many messages in one call, because RMQ stores up to 1000 messages of a slot (part of
        the topic) together. After an error, you can no longer use the stage. Discard it, and write
        another stage.

        Raises:
            RMQError: A message cannot be sent, as in `AsyncTopic.send_many`.
            QueueFull: Redis is at maxmemory.
            StageLost: The stage has expired, or another writer uses its name.
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
        """Store messages that are given as columns. Return the number of messages in the stage.

        This method is much faster than `push`. Pass some thousands of messages at a time. RMQ
        spreads messages without a slot basis evenly over the slots. A column has one value for each
        body. None leaves the field unset.
        """
        columns = columns_of(priorities, slot_bases, headers, types, groups)
        return await self._run(self._flows.push_bodies(bodies, columns))

    async def discard(self) -> None:
        """Delete all messages of this stage. You may call this after a failed push."""
        await self._run(self._flows.discard())
