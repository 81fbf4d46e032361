"""Declare schedules in a program: `AsyncTopic.every`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import tzinfo
from typing import Any, Generic, TypeVar

from rmq.errors import InvalidType, InvalidValue
from rmq.features.schedules import flows as recurring_flow, schedule
from rmq.features.schedules.flows import DeclareStatus
from rmq.features.schedules.schedule import CatchUp, Definition
from rmq.kernel.core import validation
from rmq.kernel.core.keys import check_name
from rmq.kernel.core.results import keep_seconds
from rmq.kernel.core.validation import Duration
from rmq.kernel.handlers.handler import Handlers
from rmq.kernel.topic import clock
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.single.asyncio import AsyncTransport


class Declaration:
    """A schedule that a program declares: its topic and its definition."""

    def __init__(self, context: TopicContext, definition: Definition) -> None:
        self.context = context
        self.definition = definition

    @property
    def name(self) -> str:
        """Name of the schedule in its topic. `Admin` and the command line use this name."""
        return self.definition.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.context.name!r}, {self.name!r})"


class AsyncSchedule(Declaration):
    """A schedule that `AsyncTopic.every` declared."""

    def __init__(
        self, transport: AsyncTransport, context: TopicContext, definition: Definition
    ) -> None:
        super().__init__(context, definition)
        self._run = transport.run

    async def declare(self) -> DeclareStatus:
        """Store the schedule in Redis now.

        Without this call, a worker or a scheduler stores the schedule when it starts.

        Returns:
            "created", "updated" if the stored definition was different, or "unchanged".
        """
        return await self._run(recurring_flow.declare(self.context, self.definition))


ScheduleT = TypeVar("ScheduleT", bound=Declaration)


class Declaring(Generic[ScheduleT]):
    """Shared code of the methods `every` of blocking and async topics."""

    _context: TopicContext
    _handlers: Handlers

    def _declaration(self, definition: Definition) -> ScheduleT:
        raise NotImplementedError

    def every(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | tzinfo | None = None,
        jitter: Duration = 0,
        catch_up: CatchUp = "last",
        catch_up_limit: int = 100,
        body: Any = None,
        priority: int | None = None,
        headers: Mapping[str, str] | None = None,
        expires: Duration | None = None,
        type: str | None = None,
        keep_result: Duration | None = None,
        group: None = None,
    ) -> ScheduleT:
        """Declare a schedule, which sends a message to this topic at recurring times.

        This call sends nothing to Redis. A worker or an `rmq.Scheduler` of this client stores the
        schedule when it starts. To store the schedule now, call `.declare()`. RMQ sends the
        messages while a worker of the topic, an `rmq.Scheduler` or `rmq server` runs. To change a
        schedule, declare the same name with another definition. A schedule continues after this
        program has ended, until you delete the schedule (`rmq schedule delete`).

        Args:
            name: Unique name in the topic: 1 to 128 characters of A-Z a-z 0-9 . _ -
            cron: Cron expression with minute, hour, day of month, month and day of week, for
                example "0 6 * * mon-fri". It needs rmq[schedule]. Pass either `cron` or `every`.
            every: Interval between the times, in seconds or as a timedelta, at least 0.1 s. The
                times are multiples of the interval since 1970-01-01 in UTC.
            tz: Time zone of `cron`, for example "Europe/Berlin". Default: UTC.
            jitter: Maximum delay of a message after its time, in seconds or as a timedelta. It must
                be shorter than `every` and at most a day. RMQ computes the delay from the
                schedule's name and the time, so all schedulers use the same delay.
            catch_up: Whether to send the messages of missed times later. A time is missed if no
                scheduler ran in the 10 s after this time. "skip" sends no message for missed times.
                "last" sends the message of the last missed time, unless the message of a later time
                was sent on time. "all" sends the messages of all missed times.
            catch_up_limit: With "all", maximum number of missed times whose messages are sent. If
                more times were missed, RMQ sends the messages of the latest times.
            body, priority, headers, expires, type, keep_result: Fields of the messages, as in
                `send`.
            group: Not allowed, because messages of a schedule have no group.

        Returns:
            The declaration. In a handler, `d.schedule_time` is the time of the message.

        Guarantee:
            RMQ sends one message for each time, even if several schedulers run or some of them die.
            Redis stores the message and the next time in one step.

        Raises:
            InvalidValue, InvalidType: An argument is not valid.
            ConfigurationError: cron needs rmq[schedule], or there is no time zone database.
        """
        check_name(name, "name")
        if group is not None:
            raise InvalidValue(
                "group: a schedule is in slot 0, and a group in a slot of its own; send messages "
                "with a group from the handler of the schedule"
            )
        if (cron is None) == (every is None):
            raise InvalidValue("cron, every: pass exactly one of them")
        if tz is not None and cron is None:
            raise InvalidValue("tz: only for cron; intervals are counted in UTC, from 1970-01-01")
        every_ms = None
        jitter_most = schedule.JITTER_MAX_MS
        if every is not None:
            every_ms = validation.duration_ms(every, "every", low_ms=schedule.EVERY_MIN_MS)
            jitter_most = min(jitter_most, every_ms - 1)
        if headers is not None and not isinstance(headers, Mapping):
            raise InvalidType("headers: pass a mapping of str to str")
        definition = Definition(
            name=name,
            every_ms=every_ms,
            cron=None if cron is None else schedule.check_cron(cron),
            tz=_zone_name(tz),
            jitter_ms=validation.duration_ms(jitter, "jitter", high_ms=jitter_most, zero=True),
            catch_up=schedule.check_catch_up(catch_up),
            catch_up_limit=validation.check_int(
                catch_up_limit, "catch_up_limit", 1, schedule.CATCH_UP_MAX
            ),
            codec=self._context.codec.number,
            body=self._context.codec.encode(body),
            priority=None if priority is None else validation.check_priority(priority),
            headers=dict(headers or {}),
            expires_ms=None if expires is None else validation.duration_ms(expires, "expires"),
            type=None if type is None else validation.check_message_type(type),
            keep_s=self._context.keep_s or None
            if keep_result is None
            else keep_seconds(keep_result),
        )
        if definition.after(clock.now_ms()) is None:
            raise InvalidValue(f"cron: {cron!r} has no time in the next 50 years")
        declared = self._declaration(definition)
        self._handlers.schedules[self._context.name, name] = declared
        return declared


class AsyncSchedules(Declaring[AsyncSchedule]):
    """The methods of a topic that declare schedules."""

    _transport: AsyncTransport

    def _declaration(self, definition: Definition) -> AsyncSchedule:
        return AsyncSchedule(self._transport, self._context, definition)


def _zone_name(tz: str | tzinfo | None) -> str:
    if tz is None:
        return "UTC"
    name = tz if isinstance(tz, str) else getattr(tz, "key", None)
    if not isinstance(name, str):
        raise InvalidType(f"tz: {tz!r}; pass the name of a time zone, or a zoneinfo.ZoneInfo")
    schedule.time_zone(name)
    return name
