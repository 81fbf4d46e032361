"""Provide the broker of a test: a private, empty RMQ with a clock that the test moves."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from rmq.client.admin_blocking import Admin
from rmq.client.client import AsyncClient
from rmq.client.client_blocking import Client
from rmq.client.topic import AsyncTopic
from rmq.client.topic_blocking import Topic
from rmq.errors import ConfigurationError, InvalidValue, TopicNotFound
from rmq.features.schedules.dispatch import Dispatch
from rmq.kernel.core.interceptor import Interceptor
from rmq.kernel.core.message import Message, QueueName
from rmq.kernel.core.validation import Duration, Moment, check_int, duration_ms
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport.single.blocking import Transport
from rmq.testing import assertions, clock as clocks, drain as drain_module
from rmq.testing.adoption import Adoption, Adoptions
from rmq.testing.assertions import MessageCriteria
from rmq.testing.clock import Clock
from rmq.testing.dependencies import DrainedScope
from rmq.testing.drain import Drain, DrainedTopic, Result
from rmq.testing.faults import Faults, FaultyAsyncTransport, FaultyTransport
from rmq.testing.servers import Backend, Database
from rmq.worker.settling.unhandled import Unhandled

AnyTopic = str | Topic | AsyncTopic
RUNS_MAX = 1_000_000
ANY = object()


class Broker:
    """A private, empty RMQ, for `with` or `async with`. It runs the real scripts.

    Args:
        backend: "embedded" uses a real redis-server, which is started once per process. If PATH has
            no redis-server, you need the extra rmq[embedded]. "fakeredis" uses a fake server inside
            this process, and needs the extra rmq[testing]. "auto" uses the real server if it is
            available, otherwise the fake server.
        now: Time at which the clock starts, an aware datetime or epoch ms. Default: the real time.
        clock: With "manual", time moves only if the test calls `clock.advance`. With "server", the
            scripts use the real clock of the server.

    Attributes:
        backend: Server in use, "embedded" or "fakeredis".
        client: An rmq.Client of this broker.
        faults: Creates faults: lost replies, failures, delays.

    Raises:
        ConfigurationError: No server is available, or 16 brokers are open in this process.
    """

    def __init__(
        self,
        backend: Backend = "auto",
        *,
        now: Moment | None = None,
        clock: Literal["manual", "server"] = "manual",
    ) -> None:
        if clock not in ("manual", "server"):
            raise InvalidValue(f"clock: {clock!r}; use 'manual' or 'server'")
        self._backend_asked: Backend = backend
        self._now = now
        self._is_manual = clock == "manual"
        self._clock: Clock | None = None
        self._database: Database | None = None
        self._adoptions: Adoptions = {}
        # By topic: the time at which drains first received each message type without a handler.
        self._unhandled: dict[TopicContext, Unhandled] = {}
        self.faults = Faults()

    # --- life ------------------------------------------------------------------------------------

    def __enter__(self) -> Broker:
        if self._database is not None:
            raise InvalidValue("broker: it is open already; make another")
        # Blocking is harmless in a test.
        warnings.filterwarnings("ignore", "rmq.Client blocks", RuntimeWarning)
        self._clock = clocks.start(self._now) if self._is_manual else None
        try:
            self._database = Database(self._backend_asked)
        except BaseException:
            self._release_clock()
            raise
        self.backend = self._database.backend
        address = self._database.address
        self._plain = Transport(address, 5.0, 10.0)
        self._transport = FaultyTransport(address, 5.0, 10.0, self.faults)
        self.client = Client(address.url)
        self.adopting(self.client).enter()
        self._scheduled = _ScheduledSends(self._plain, self._adoptions)
        if self._clock is not None:
            self._clock.services.append(self._scheduled.send_due)
        return self

    def __exit__(self, *_: object) -> None:
        for adoption in list(self._adoptions.values()):
            adoption.__exit__()
        self._close()

    async def __aenter__(self) -> Broker:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        for adoption in list(self._adoptions.values()):
            await adoption.__aexit__()
        self._close()

    def _close(self) -> None:
        database, self._database = self._open(), None
        if self._clock is not None:
            self._clock.services.remove(self._scheduled.send_due)
        try:
            self.client.close()
            self._transport.close()
            self._plain.close()
            database.close()
        finally:
            self._release_clock()

    def _release_clock(self) -> None:
        if self._clock is not None:
            clocks.release()
            self._clock = None

    @property
    def clock(self) -> Clock:
        """The clock that all scripts of this process use.

        Raises:
            InvalidValue: The broker uses the server's clock.
        """
        if self._clock is None:
            raise InvalidValue("clock: this broker has none; it is closed, or clock='server'")
        return self._clock

    def _open(self) -> Database:
        if self._database is None:
            raise InvalidValue("broker: it is not open; use it in `with` or `async with`")
        return self._database

    def async_client(self, *, interceptors: Sequence[Interceptor] = ()) -> AsyncClient:
        """An rmq.AsyncClient of this broker, for `async with`."""
        database = self._open()
        client = AsyncClient(database.address.url, interceptors=interceptors)
        self.adopting(client).enter()
        return client

    def adopting(self, client: Client | AsyncClient) -> Adoption:
        """Connect a client of your program to this broker, for a `with` or `async with` block.

        Inside the block, the client's topics, consumers and handlers use the broker. The broker is
        empty, so each topic is created there with the settings in the program. At the end of the
        block, the client uses its own Redis again.

        No other thread may use the client inside the block. A consumer must be opened inside the
        block.

        Raises:
            InvalidValue: The client is already adopted.
        """
        return Adoption(client, self._open().address, self.faults, self._adoptions)

    # --- drain -----------------------------------------------------------------------------------

    def drain(
        self,
        *topics: AnyTopic,
        advance: bool | Duration = False,
        raises: bool = False,
        limit: int = 1000,
    ) -> list[Result]:
        """Run the registered handlers in this thread until no message is due.

        After a failure, a message is retried or becomes a dead letter by the same rules as in a
        worker.

        Args:
            topics: Topics whose handlers run. Default: all topics.
            advance: With True, the clock moves from one due time to the next until no message
                waits. With seconds or a timedelta, the clock moves forward by this time, and
                messages that become due in this time are handled.
            raises: Whether to raise the first error of a handler, after its delivery was settled.
            limit: Maximum number of runs.

        Returns:
            The results of the runs, in order.

        Raises:
            Endless: More messages are due after the maximum number of runs.
            ConfigurationError: No handler is registered, or an event loop is running. In an event
                loop, use `adrain`.
        """
        drain, drained = self._drain(topics, advance, raises, limit)
        try:
            is_async = any(topic.has_async for topic in drained)
            if not (is_async or drain.scope.needs_loop):
                return self._without_loop(drain)
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                return self._in_a_loop(drain)
            raise ConfigurationError("drain: an event loop runs here; use `await broker.adrain()`")
        finally:
            _close_drained(drained)

    def _without_loop(self, drain: Drain) -> list[Result]:
        try:
            drain.scope.open()
            return drain_module.run(drain, _no_loop)
        finally:
            drain.scope.close()

    def _in_a_loop(self, drain: Drain) -> list[Result]:
        transports = [
            adoption.transport
            for adoption in self._adoptions.values()
            if isinstance(adoption.transport, FaultyAsyncTransport)
        ]
        with asyncio.Runner() as runner:

            def wait(work: Awaitable[Any]) -> Any:
                return runner.run(_awaited(work))

            try:
                runner.run(drain.scope.open_async())
                return drain_module.run(drain, wait)
            finally:
                runner.run(drain.scope.close_async())
                for transport in transports:
                    runner.run(transport.hang_up())

    async def adrain(
        self,
        *topics: AnyTopic,
        advance: bool | Duration = False,
        raises: bool = False,
        limit: int = 1000,
    ) -> list[Result]:
        """Run the registered handlers inside an event loop. See `drain`.

        Async handlers run in the event loop. Plain handlers block the event loop while they run.
        """
        drain, drained = self._drain(topics, advance, raises, limit)
        try:
            await drain.scope.open_async()
            return await drain_module.run_async(drain)
        finally:
            await drain.scope.close_async()
            _close_drained(drained)

    def _drain(
        self, topics: Sequence[AnyTopic], advance: bool | Duration, raises: bool, limit: int
    ) -> tuple[Drain, list[DrainedTopic]]:
        self._open()
        check_int(limit, "limit", 1, RUNS_MAX)
        clock = None if advance is False else self.clock
        most_us = None if isinstance(advance, bool) else 1000 * duration_ms(advance, "advance")
        handlers = [
            (adoption, of_topic)
            for adoption in self._adoptions.values()
            for of_topic in adoption.handlers.by_topic.values()
        ]
        names = {_name(topic) for topic in topics}
        missing = names - {of_topic.context.name for _, of_topic in handlers}
        if missing or not handlers:
            of = assertions.quote_names(missing) if missing else "any"
            raise ConfigurationError(
                f"drain: no handler is registered for {of} topic, on the clients of this broker; "
                "import the module with the handlers, and adopt its client: "
                "broker.adopting(shop.client)"
            )
        handlers = [pair for pair in handlers if not names or pair[1].context.name in names]
        lifespans = dict.fromkeys(
            function for adoption, _ in handlers for function in adoption.handlers.lifespans
        )
        handled = [handler.dependencies for _, of_topic in handlers for handler in of_topic]
        scope = DrainedScope(lifespans, handled)
        drained = [
            DrainedTopic(
                of_topic,
                adoption.transport
                if isinstance(adoption.transport, Transport) else self._transport,
                adoption.hooks,
                self._unhandled.setdefault(of_topic.context, Unhandled(of_topic)), scope.values,
            )
            for adoption, of_topic in handlers
        ]  # fmt: skip
        send_due = self._scheduled.send_due
        drain = Drain(drained, self._plain, scope, clock, most_us, raises, limit, send_due)
        return drain, drained

    # --- inspect ---------------------------------------------------------------------------------

    def sent(self, topic: AnyTopic) -> list[Message]:
        """Return the waiting messages, including delayed messages, in delivery order.

        Raises:
            TopicNotFound: No client of this broker has used this topic.
        """
        return self._peek(topic, "store")

    def dead(self, topic: AnyTopic) -> list[Message]:
        """Return the dead letters, oldest first. `Message.failure` says why a message is dead."""
        return self._peek(topic, "dead")

    def assert_sent(
        self,
        topic: AnyTopic,
        body: Any = ANY,
        *,
        count: int | None = None,
        priority: int | None = None,
        due_in: Duration | None = None,
        within: Duration = assertions.WITHIN_S,
        headers: Mapping[str, str] | None = None,
        merge_key: str | None = None,
        type: str | None = None,
        group: str | None = None,
    ) -> list[Message]:
        """Assert that a matching message waits, and return all matching messages.

        Args:
            topic: Topic, or its name.
            body: Expected body, or a function that returns whether a body matches.
            count: Expected number of matching messages. Default: at least one.
            priority: Expected priority.
            due_in: Expected time until the message is due, by the broker's clock, in seconds or as
                a timedelta. 0 means that the message is due now.
            within: Tolerance of `due_in`, in seconds or as a timedelta.
            headers: Headers that the message must contain.
            merge_key: Expected merge key.
            type: Expected type.
            group: Expected group.

        Raises:
            AssertionError: No message matches, or the number of matching messages is not `count`.
                The text lists the messages of the topic.
        """
        wanted = MessageCriteria(
            body, body is ANY, priority, due_in, within, headers, merge_key, type, group
        )
        now = self._time()
        fitting = [message for message in self.sent(topic) if wanted.fits(message, now)]
        if fitting if count is None else len(fitting) == count:
            return fitting
        asked = "a message" if count is None else f"{count} messages"
        self._fail(topic, f"expected {asked} with {wanted}; found {len(fitting)}")
        return fitting

    def assert_empty(self, topic: AnyTopic | None = None) -> None:
        """Assert that a topic, or every topic, has no message that is waiting, in flight or dead.

        Raises:
            AssertionError: There are messages. The text lists the messages.
        """
        self._open()
        for each_topic in [topic] if topic is not None else self._topics():
            places: tuple[QueueName, ...] = ("store", "prepare", "dead")
            count = sum(len(self._peek(each_topic, queue)) for queue in places)
            if count:
                self._fail(each_topic, f"expected nothing, found {count}")

    def _fail(self, topic: AnyTopic, text: str) -> None:
        drained = [f"{text}; there is:"]
        for admin in self._admins(topic):
            drained += assertions.list_topic(admin, _name(topic), self._time())
        raise AssertionError("\n".join(drained if len(drained) > 1 else [*drained, "  nothing"]))

    def _peek(self, topic: AnyTopic, queue: QueueName) -> list[Message]:
        self._open()
        self._scheduled.send_due()
        return [
            message
            for admin in self._admins(topic)
            for message in admin.peek(_name(topic), assertions.PEEK_MAX, queue)
        ]

    def _time(self) -> datetime:
        if self._clock is not None:
            return self._clock.now
        return clocks.server_time(self._plain)

    def _topics(self) -> list[str]:
        admins = [self._admin(prefix) for prefix in self._prefixes()]
        return sorted({name for admin in admins for name in admin.topics()})

    def _prefixes(self) -> list[str]:
        return list(dict.fromkeys(adoption.prefix for adoption in self._adoptions.values()))

    def _admin(self, prefix: str) -> Admin:
        return Admin(self._plain, prefix, ReplaySessions())

    def _admins(self, topic: AnyTopic) -> list[Admin]:
        """Return an Admin for each key prefix that has this topic."""
        self._open()
        name, prefixes = _name(topic), self._prefixes()
        if not isinstance(topic, str):
            prefixes = [topic._context.prefix]
        admins = [self._admin(prefix) for prefix in prefixes]
        matching = [admin for admin in admins if name in admin.topics()]
        known = {
            context.name for adoption in self._adoptions.values() for context in adoption.contexts
        }
        if not matching and name not in known:
            raise TopicNotFound(
                f"topic {name!r} is not in this broker, and none of its clients knows it; they "
                f"know {assertions.quote_names(known | set(self._topics()))}"
            )
        return matching


class _ScheduledSends:
    """The scheduler of a broker. It sends due messages before and after the clock moves.

    It also stores the schedules that adopted clients declare.
    """

    def __init__(self, transport: Transport, adoptions: Adoptions) -> None:
        self._transport = transport
        self._adoptions = adoptions
        self._dispatches: dict[Client | AsyncClient, Dispatch] = {}

    def send_due(self) -> float | None:
        """Store declared schedules, and send due messages.

        Return the seconds until the next due time.
        """
        waits: list[float] = []
        for client, adoption in list(self._adoptions.items()):
            if not adoption.handlers.schedules:
                continue
            dispatch = self._dispatches.get(client)
            if dispatch is None:
                dispatch = Dispatch(adoption.prefix, self._transport, adoption.handlers)
                self._dispatches[client] = dispatch
            dispatch.declare()
            sent, waits_by_topic = dispatch.send_due()
            while sent:
                sent, waits_by_topic = dispatch.send_due()
            waits += waits_by_topic.values()
        return min(waits, default=None)


def _name(topic: AnyTopic) -> str:
    return topic if isinstance(topic, str) else topic.name


def _close_drained(drained: Sequence[DrainedTopic]) -> None:
    for topic in drained:
        topic.close()


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


def _no_loop(work: Awaitable[Any]) -> Any:
    raise AssertionError(f"nothing here is async: {work!r}")
