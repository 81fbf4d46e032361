"""Schedules: list, pause, resume, run and delete them; the method of a topic that declares one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import tzinfo
from typing import Any, Generic, TypeVar

from rmq.features.schedules import flows
from rmq.features.schedules.declaration import AsyncSchedule, Declaration, define
from rmq.features.schedules.flows import ScheduleState
from rmq.features.schedules.schedule import CatchUp, Definition
from rmq.kernel.core.message import SendResult
from rmq.kernel.core.validation import Duration
from rmq.kernel.handlers.handler import Handlers
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.verbs import AsyncAdminPart
from rmq.kernel.transport.asyncio import AsyncTransport


class AsyncScheduleAdmin(AsyncAdminPart):
    """Verbs on schedules."""

    async def schedules(self, topic: str) -> list[ScheduleState]:
        """Return the schedules of a topic (`Topic.every`); those that are due first come first."""
        context = self._context(topic)
        return await self._run(flows.schedules(context))

    async def schedule(self, topic: str, name: str) -> ScheduleState:
        """Return one schedule.

        Raises:
            ScheduleNotFound: there is none of this name.
        """
        context = self._context(topic)
        return await self._run(flows.schedule(context, name))

    async def schedule_pause(self, topic: str, name: str) -> bool:
        """Pause a schedule until it is resumed; return whether it was not paused."""
        context = self._context(topic)
        return await self._run(flows.pause(context, name))

    async def schedule_resume(self, topic: str, name: str) -> bool:
        """Resume a paused schedule with its next time; return whether it was paused.

        Times that passed meanwhile are not made up for.
        """
        context = self._context(topic)
        return await self._run(flows.resume(context, name))

    async def schedule_run(self, topic: str, name: str) -> SendResult:
        """Send the message of a schedule now, paused or not; its times stay as they are."""
        context = self._context(topic)
        return await self._run(flows.run(context, name))

    async def schedule_delete(self, topic: str, name: str) -> bool:
        """Delete a schedule; return whether there was one. Messages that it has sent stay.

        It stays deleted until a program declares it again.
        """
        context = self._context(topic)
        return await self._run(flows.delete(context, name))


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

        Returns:
            The declaration. In a handler, `d.schedule_time` is the time a message was sent for.

        Guarantee:
            A time is sent once, however many schedulers run and whoever dies: sending and moving
            to the next time are one step in Redis.

        Raises:
            InvalidValue, InvalidType: an argument cannot work.
            ConfigurationError: cron needs rmq[schedule], or there is no time zone database.
        """
        definition = define(
            self._context, name, cron=cron, every=every, tz=tz, jitter=jitter, catch_up=catch_up,
            catch_up_limit=catch_up_limit, body=body, priority=priority, headers=headers,
            expires=expires, type=type,
        )  # fmt: skip
        schedule = self._declaration(definition)
        self._handlers.schedules[self._context.name, name] = schedule
        return schedule


class AsyncSchedules(Declaring[AsyncSchedule]):
    """Declares schedules of a topic."""

    _transport: AsyncTransport

    def _declaration(self, definition: Definition) -> AsyncSchedule:
        return AsyncSchedule(self._transport, self._context, definition)
