"""Operate topics: list, show, peek, redrive, purge, stats. Sync and async side by side."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rmq.codec import JSON
from rmq.flows import Members, opening, operating, receiving
from rmq.flows.operating import Filter, Id, Progress, Redriven
from rmq.handle import Handle, Lanes
from rmq.keys import topics_key
from rmq.message import Message, Place
from rmq.settings import Settings
from rmq.wire import AsyncExecutor, Executor


def _listing(prefix: str) -> Any:
    names = yield Members(topics_key(prefix))
    return names


def _show(handle: Handle) -> Any:
    yield from opening.open(handle, create=False)
    return handle.settings


def _found(flow: Any, handle: Handle) -> Any:
    """A conversation about a topic that must be there: looking never creates one."""
    yield from opening.open(handle, create=False)
    result = yield from flow
    return result


def _totals(handle: Handle) -> Any:
    slots = yield from operating.stats(handle)
    return operating.total(slots)


class _AdminBase:
    def __init__(self, prefix: str, lanes: Lanes) -> None:
        self._prefix = prefix
        self._lanes = lanes

    def _handle(self, topic: str) -> Handle:
        return Handle(self._prefix, topic, JSON, self._lanes, {})


class Admin(_AdminBase):
    """Looks after the topics of a client. Every verb names its topic, which must exist."""

    def __init__(self, executor: Executor, prefix: str, lanes: Lanes) -> None:
        super().__init__(prefix, lanes)
        self._executor = executor

    def _on(self, handle: Handle, flow: Any) -> Any:
        return self._executor.run(_found(flow, handle))

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        names: list[str] = self._executor.run(_listing(self._prefix))
        return names

    def settings(self, topic: str) -> Settings:
        """What a topic is set to. Raises TopicNotFound."""
        found: Settings = self._executor.run(_show(self._handle(topic)))
        return found

    def stats(self, topic: str) -> dict[str, int]:
        """What a topic holds and has done, over all slots; `lua/stats.lua` tells the names."""
        handle = self._handle(topic)
        found: dict[str, int] = self._on(handle, _totals(handle))
        return found

    def stats_by_slot(self, topic: str) -> list[dict[str, int]]:
        """The same for each slot."""
        handle = self._handle(topic)
        found: list[dict[str, int]] = self._on(handle, operating.stats(handle))
        return found

    def get(self, topic: str, id: Id) -> Message | None:
        """Look at one message, wherever it is."""
        handle = self._handle(topic)
        found: Message | None = self._on(handle, operating.get(handle, id))
        return found

    def peek(
        self, topic: str, limit: int = 10, place: Place = "store", slot: int | None = None
    ) -> list[Message]:
        """Look at messages without taking them.

        Args:
            topic: its name.
            limit: how many at most.
            place: "store" (in the order in which they would go), "prepare" or "dead" (oldest
                first).
            slot: only this one.
        """
        handle = self._handle(topic)
        found: list[Message] = self._on(handle, operating.peek(handle, limit, place, slot))
        return found

    def redrive(
        self,
        topic: str,
        *,
        ids: Sequence[Id] | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
        dry_run: bool = False,
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> Redriven:
        """Send dead letters back to be consumed again, with all their retries.

        Args:
            topic: its name.
            ids: only these.
            reason: only those that died so: failed, lease ran out, rejected, undecodable, expired.
            error: only those whose error this regular expression is found in.
            older_than: only those dead for so long, seconds or timedelta.
            dry_run: only count them.
            rate: at most so many a second.
            progress: called with (done, all) as it goes.

        Guarantee:
            A dead letter is in the DeadQueue or in the StoreQueue, never in both or neither.
            Stopped half-way, run it again: it goes on with what is still dead.
        """
        wanted = Filter(ids, reason, error, older_than)
        handle = self._handle(topic)
        done: Redriven = self._on(
            handle, operating.redrive(handle, wanted, dry_run, rate, progress)
        )
        return done

    def purge(
        self,
        topic: str,
        place: Place,
        *,
        ids: Sequence[Id] | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Delete waiting messages ("store") or dead letters ("dead") for good; how many.

        The filters are those of `redrive`, for dead letters only. Messages in flight are not
        touched.
        """
        wanted = Filter(ids, reason, error, older_than)
        handle = self._handle(topic)
        done: int = self._on(handle, operating.purge(handle, place, wanted, dry_run, progress))
        return done

    def rollback(self, topic: str) -> int:
        """Take back every lease that has run out; how many. Consumers do it as they take."""
        handle = self._handle(topic)
        done: int = self._on(handle, receiving.roll_back(handle))
        return done


class AsyncAdmin(_AdminBase):
    """Looks after the topics of an async client. The methods are those of `Admin`."""

    def __init__(self, executor: AsyncExecutor, prefix: str, lanes: Lanes) -> None:
        super().__init__(prefix, lanes)
        self._executor = executor

    async def _on(self, handle: Handle, flow: Any) -> Any:
        return await self._executor.run(_found(flow, handle))

    async def topics(self) -> list[str]:
        """As `Admin.topics`."""
        names: list[str] = await self._executor.run(_listing(self._prefix))
        return names

    async def settings(self, topic: str) -> Settings:
        """As `Admin.settings`."""
        found: Settings = await self._executor.run(_show(self._handle(topic)))
        return found

    async def stats(self, topic: str) -> dict[str, int]:
        """As `Admin.stats`."""
        handle = self._handle(topic)
        found: dict[str, int] = await self._on(handle, _totals(handle))
        return found

    async def stats_by_slot(self, topic: str) -> list[dict[str, int]]:
        """As `Admin.stats_by_slot`."""
        handle = self._handle(topic)
        found: list[dict[str, int]] = await self._on(handle, operating.stats(handle))
        return found

    async def get(self, topic: str, id: Id) -> Message | None:
        """As `Admin.get`."""
        handle = self._handle(topic)
        found: Message | None = await self._on(handle, operating.get(handle, id))
        return found

    async def peek(
        self, topic: str, limit: int = 10, place: Place = "store", slot: int | None = None
    ) -> list[Message]:
        """As `Admin.peek`."""
        handle = self._handle(topic)
        found: list[Message] = await self._on(handle, operating.peek(handle, limit, place, slot))
        return found

    async def redrive(
        self,
        topic: str,
        *,
        ids: Sequence[Id] | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
        dry_run: bool = False,
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> Redriven:
        """As `Admin.redrive`."""
        wanted = Filter(ids, reason, error, older_than)
        handle = self._handle(topic)
        done: Redriven = await self._on(
            handle, operating.redrive(handle, wanted, dry_run, rate, progress)
        )
        return done

    async def purge(
        self,
        topic: str,
        place: Place,
        *,
        ids: Sequence[Id] | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """As `Admin.purge`."""
        wanted = Filter(ids, reason, error, older_than)
        handle = self._handle(topic)
        done: int = await self._on(
            handle, operating.purge(handle, place, wanted, dry_run, progress)
        )
        return done

    async def rollback(self, topic: str) -> int:
        """As `Admin.rollback`."""
        handle = self._handle(topic)
        done: int = await self._on(handle, receiving.roll_back(handle))
        return done
