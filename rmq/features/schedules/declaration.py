"""Declarations of schedules, as a program makes them: `AsyncTopic.every`."""

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
from rmq.kernel.core.validation import Duration
from rmq.kernel.handlers.handler import Handlers
from rmq.kernel.topic import context as topic_context
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.single.asyncio import AsyncTransport


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


ScheduleT = TypeVar("ScheduleT", bound=Declaration)


class Declaring(Generic[ScheduleT]):
    """The method of a topic that declares a schedule, whichever class the declaration has."""

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
        group: None = None,
    ) -> ScheduleT:
        """Declare a schedule: a message to this topic at recurring times; `rmq schedule` shows it.

        This call sends nothing. The schedule is written to Redis when a worker or an
        `rmq.Scheduler` of this client starts, or by `.declare()`; its messages are sent while a
        worker of the topic, an `rmq.Scheduler` or `rmq server` runs. Declared again with the same
        definition, it stays as it is; with another, it is changed. It continues after this program
        has ended, until it is deleted.

        Args:
            name: 1 to 128 of A-Z a-z 0-9 . _ -; what names it in the topic.
            cron: minute, hour, day of month, month, day of week, as "0 6 * * mon-fri"; needs
                rmq[schedule]. Or `every`.
            every: an interval of at least 0.1 s; its times are multiples of it since 1970 in UTC.
            tz: the time zone of `cron`, as "Europe/Berlin"; default UTC.
            jitter: send up to so much later than the time; how much follows from name and time.
                Shorter than `every`, at most a day.
            catch_up: of times that were missed by more than 10 s, because no scheduler ran, send
                none ("skip"), the last one ("last", unless a later time is on time), or all.
            catch_up_limit: with "all", at most so many, the latest ones.
            body, priority, headers, expires, type: of its messages, as in `send`.
            group: refused; messages of a schedule have none.

        Returns:
            The declaration. In a handler, `d.schedule_time` is the time a message was sent for.

        Guarantee:
            A time is sent once, however many schedulers run and whoever dies: sending and moving
            to the next time are one step in Redis.

        Raises:
            InvalidValue, InvalidType: an argument cannot work.
            ConfigurationError: cron needs rmq[schedule], or there is no time zone database.
        """
        check_name(name, "name")
        if group is not None:
            raise InvalidValue(
                "group: a schedule is in slot 0, and a group in a slot of its own; send messages "
                "with a group from the handler of the schedule"
            )
        if (cron is None) == (every is None):
            raise InvalidValue("cron, every: give one of the two")
        if tz is not None and cron is None:
            raise InvalidValue(
                "tz: given with every; intervals are counted in UTC, from 1970-01-01"
            )
        every_ms = None
        jitter_most = schedule.JITTER_MAX_MS
        if every is not None:
            every_ms = validation.duration_ms(every, "every", low_ms=schedule.EVERY_MIN_MS)
            jitter_most = min(jitter_most, every_ms - 1)
        if headers is not None and not isinstance(headers, Mapping):
            raise InvalidType("headers: give a mapping of str to str")
        definition = Definition(
            name=name,
            every_ms=every_ms,
            cron=None if cron is None else schedule.check_cron(cron),
            tz=_zone_name(tz),
            jitter_ms=validation.duration_ms(jitter, "jitter", high_ms=jitter_most, zero=True),
            catch_up=schedule.check_catch_up(catch_up),
            catch_up_limit=validation.check_int(
                catch_up_limit, "catch_up_limit", 1, schedule.CATCH_UP_MOST
            ),
            codec=self._context.codec.number,
            body=self._context.codec.encode(body),
            priority=None if priority is None else validation.check_priority(priority),
            headers=dict(headers or {}),
            expires_ms=None if expires is None else validation.duration_ms(expires, "expires"),
            type=None if type is None else validation.check_message_type(type),
        )
        if definition.after(topic_context.now_ms()) is None:
            raise InvalidValue(f"cron: {cron!r} has no time in the next 50 years")
        declared = self._declaration(definition)
        self._handlers.schedules[self._context.name, name] = declared
        return declared


class AsyncSchedules(Declaring[AsyncSchedule]):
    """Declares schedules of a topic."""

    _transport: AsyncTransport

    def _declaration(self, definition: Definition) -> AsyncSchedule:
        return AsyncSchedule(self._transport, self._context, definition)


def _zone_name(tz: str | tzinfo | None) -> str:
    if tz is None:
        return "UTC"
    name = tz if isinstance(tz, str) else getattr(tz, "key", None)
    if not isinstance(name, str):
        raise InvalidType(f"tz: {tz!r}; give the name of a time zone, or a zoneinfo.ZoneInfo")
    schedule.time_zone(name)
    return name
