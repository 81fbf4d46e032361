"""Declarations of schedules, as a program makes them: `AsyncTopic.every`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import tzinfo
from typing import Any

from rmq.errors import InvalidType, InvalidValue
from rmq.features.schedules import flows as recurring_flow, schedule
from rmq.features.schedules.flows import DeclareStatus
from rmq.features.schedules.schedule import CatchUp, Definition
from rmq.kernel.core.keys import check_name
from rmq.kernel.core.validation import (
    Duration,
    check_int,
    check_message_type,
    check_priority,
    duration_ms,
)
from rmq.kernel.topic import context as topic_context
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.asyncio import AsyncTransport


class Declaration:
    """A schedule that a program declares: its topic and its definition."""

    def __init__(self, context: TopicContext, definition: Definition) -> None:
        self.context = context
        self.definition = definition

    @property
    def name(self) -> str:
        """The name, unique in its topic, by which Admin and the command line find it."""
        return self.definition.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.context.name!r}, {self.name!r})"


class AsyncSchedule(Declaration):
    """A schedule that `AsyncTopic.every` has declared."""

    def __init__(
        self, transport: AsyncTransport, context: TopicContext, definition: Definition
    ) -> None:
        super().__init__(context, definition)
        self._run = transport.run

    async def declare(self) -> DeclareStatus:
        """Write it to Redis now; a worker or a scheduler of this client does it when it starts.

        Returns:
            "created"; "updated", where there was one of this name with another definition;
            "unchanged", where it is there already.
        """
        return await self._run(recurring_flow.declare(self.context, self.definition))


def define(
    context: TopicContext,
    name: str,
    *,
    cron: str | None,
    every: Duration | None,
    tz: str | tzinfo | None,
    jitter: Duration,
    catch_up: CatchUp,
    catch_up_limit: int,
    body: Any,
    priority: int | None,
    headers: Mapping[str, str] | None,
    expires: Duration | None,
    type: str | None,
) -> Definition:
    """Check the arguments of `Topic.every`, and encode the body."""
    check_name(name, "name")
    if (cron is None) == (every is None):
        raise InvalidValue("cron, every: give one of the two")
    if tz is not None and cron is None:
        raise InvalidValue("tz: given with every; intervals are counted in UTC, from 1970-01-01")
    every_ms = None
    jitter_most = schedule.JITTER_MAX_MS
    if every is not None:
        every_ms = duration_ms(every, "every", low_ms=schedule.EVERY_MIN_MS)
        jitter_most = min(jitter_most, every_ms - 1)
    if headers is not None and not isinstance(headers, Mapping):
        raise InvalidType("headers: give a mapping of str to str")
    definition = Definition(
        name=name,
        every_ms=every_ms,
        cron=None if cron is None else schedule.check_cron(cron),
        tz=_zone_name(tz),
        jitter_ms=duration_ms(jitter, "jitter", high_ms=jitter_most, zero=True),
        catch_up=schedule.check_catch_up(catch_up),
        catch_up_limit=check_int(catch_up_limit, "catch_up_limit", 1, schedule.CATCH_UP_MOST),
        codec=context.codec.number,
        body=context.codec.encode(body),
        priority=None if priority is None else check_priority(priority),
        headers=dict(headers or {}),
        expires_ms=None if expires is None else duration_ms(expires, "expires"),
        type=None if type is None else check_message_type(type),
    )
    if definition.after(topic_context.now_ms()) is None:
        raise InvalidValue(f"cron: {cron!r} has no time in the next 50 years")
    return definition


def _zone_name(tz: str | tzinfo | None) -> str:
    if tz is None:
        return "UTC"
    name = tz if isinstance(tz, str) else getattr(tz, "key", None)
    if not isinstance(name, str):
        raise InvalidType(f"tz: {tz!r}; give the name of a time zone, or a zoneinfo.ZoneInfo")
    schedule.time_zone(name)
    return name
