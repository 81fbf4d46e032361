"""The client: its connection to Redis, its topics and their administration.

`make fmt` writes the blocking class from this module.
"""

from __future__ import annotations

import atexit
import contextlib
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn, TypeVar, Unpack

from rmq.client.admin import AsyncAdmin
from rmq.client.topic import AsyncTopic
from rmq.errors import ConfigurationError, InvalidType, InvalidValue, RMQError, StorageError
from rmq.features.batches.batch import AsyncBatch
from rmq.features.batches.flows import BATCH_KEEP, Dead, Definition, definition_of
from rmq.kernel.batches.ref import parse_ref
from rmq.kernel.core import codec as codecs
from rmq.kernel.core.codec import Codec
from rmq.kernel.core.environment import variable
from rmq.kernel.core.interceptor import Hooks, Interceptor
from rmq.kernel.core.keys import check_name, wake_channel
from rmq.kernel.core.message import Outgoing
from rmq.kernel.core.results import BATCH_MARK, Results
from rmq.kernel.core.sequence import ProducerSequence
from rmq.kernel.core.settings import TopicSettings
from rmq.kernel.core.steps import ENTRY_BYTES, ENTRY_MAX, check_event_key, encode_event
from rmq.kernel.core.validation import TEN_YEARS_MS, Duration, check_int, duration_ms
from rmq.kernel.delivery.delivery import DeliveryData
from rmq.kernel.events.flows import EVENT_KEEP, SignalResult, signal
from rmq.kernel.handlers.dependencies import check_lifespan
from rmq.kernel.handlers.handler import Handlers
from rmq.kernel.producer import report
from rmq.kernel.results.signals import ResultSignals
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport import url as urls
from rmq.kernel.transport.flow.steps import Flow
from rmq.kernel.transport.open import open_async_transport, open_transport
from rmq.kernel.transport.single.asyncio import AsyncTransport
from rmq.kernel.transport.single.blocking import Transport
from rmq.kernel.transport.url import Address

_audited: weakref.WeakKeyDictionary[ProducerSequence, Address] = weakref.WeakKeyDictionary()


def _report_at_exit() -> None:
    """Report the last sends of clients that were never closed, so that audits can count them."""
    for numbers, address in list(_audited.items()):
        if any(slot.next_report() for slot in numbers.slot_sequences()):
            with contextlib.suppress(RMQError):
                transport = open_transport(address, 0, EXIT_S)
                try:
                    transport.run(report.report(numbers, again=False))
                finally:
                    transport.close()


atexit.register(_report_at_exit)

F = TypeVar("F", bound=Callable[..., Any])
EXIT_S = 1.0  # longest wait for a reply of Redis at the end of a process
DEFAULT_URL = "redis://localhost:6379/0"
DEFAULT_PREFIX = "rmq"


def _callback_of(then: object) -> tuple[Any, Outgoing]:
    if not isinstance(then, tuple) or len(then) != 2 or not isinstance(then[1], Outgoing):
        raise InvalidType(
            f"then: {type(then).__name__}; give a pair of a topic and an rmq.Outgoing"
        )
    return then


def facts(info: bytes) -> dict[str, str]:
    """Parse a section of INFO into a dict."""
    lines = (line.partition(":") for line in info.decode().splitlines())
    return {name: value for name, colon, value in lines if colon}


class ClientBase:
    """The base class of both clients.

    It has the address, the prefix, the handlers and the interceptors of a client.
    """

    def __init__(
        self,
        url: str | None,
        prefix: str | None,
        retry_for: Duration,
        timeout: Duration,
        max_connections: int | None,
        interceptors: Sequence[Interceptor],
    ) -> None:
        given_url = url or variable("RMQ_URL")
        self._address = replace(urls.parse(given_url or DEFAULT_URL), is_default=not given_url)
        if max_connections is not None:
            most = urls.connections(max_connections)
            self._address = replace(self._address, max_connections=most)
        asked = prefix if prefix is not None else variable("RMQ_PREFIX") or DEFAULT_PREFIX
        self._prefix = check_name(asked, "prefix" if prefix is not None else "RMQ_PREFIX")
        self._retry_s = duration_ms(retry_for, "retry_for", high_ms=30_000, zero=True) / 1000
        self._timeout_s = duration_ms(timeout, "timeout", high_ms=60_000) / 1000
        self._sessions = ReplaySessions()
        # Settings by topic; the relay of an outbox reads them.
        self._declared: dict[str, dict[str, Any]] = {}
        self._hooks = Hooks(interceptors)
        if self._hooks.producer_sequence is not None:
            _audited[self._hooks.producer_sequence] = self._address
        self._handlers = Handlers()
        self._result_signals = ResultSignals()
        self._contexts: weakref.WeakSet[TopicContext] = weakref.WeakSet()

    def _open_transport(self) -> Transport:
        self._hooks.refuse_async("rmq.Client", ("before_send", "after_send"))
        return open_transport(self._address, self._retry_s, self._timeout_s)

    def _open_async_transport(self) -> AsyncTransport:
        return open_async_transport(self._address, self._retry_s, self._timeout_s)

    @property
    def url(self) -> str:
        """The URL of Redis, without the password."""
        return self._address.shown

    def _context(
        self,
        name: str,
        codec: str | Codec,
        results: Results | None,
        step_bytes: int,
        settings: Mapping[str, object],
    ) -> TopicContext:
        chosen = codecs.by_name(codec) if isinstance(codec, str) else codecs.register(codec)
        context = TopicContext(self._prefix, name, chosen, self._sessions, settings, self._hooks)
        if context.requested:
            self._declared[context.name] = self._declared.get(context.name, {}) | context.requested
        if results is not None:
            if not isinstance(results, Results):
                raise InvalidType(f"results: {type(results).__name__}; give rmq.Results(keep=...)")
            context.keep_s = results.seconds
        context.step_bytes = check_int(step_bytes, "step_bytes", 0, ENTRY_MAX)
        context.siblings, context.result_signals = self._contexts, self._result_signals
        self._contexts.add(context)
        return context

    def _batch(
        self,
        name: str | DeliveryData,
        then: tuple[Any, Outgoing] | None,
        dead: Dead,
        timeout: Duration | None,
        keep: Duration,
    ) -> Definition:
        if isinstance(name, DeliveryData):
            ref = parse_ref(name.marks.get(BATCH_MARK, ""))
            if ref is None:
                raise InvalidValue(f"name: {name.id} is no member of a batch; give a name")
            return definition_of(self._known(name.topic), ref)
        topic, callback = (name, None) if then is None else _callback_of(then)
        home = self._known(getattr(topic, "name", topic))
        return Definition(home, name, callback, dead, timeout, keep)

    def _signal(
        self, key: str, body: object, keep: Duration, codec: str | Codec
    ) -> Flow[SignalResult]:
        chosen = codecs.by_name(codec) if isinstance(codec, str) else codecs.register(codec)
        event = check_event_key(key)
        keep_ms = duration_ms(keep, "keep", high_ms=TEN_YEARS_MS)
        data = encode_event(chosen, body)
        return signal(self._prefix, event, data, keep_ms)

    def _known(self, topic: Any) -> TopicContext:
        found = next((each for each in list(self._contexts) if each.name == topic), None)
        return found or self._context(topic, "json", None, ENTRY_BYTES, {})

    def lifespan(self, function: F) -> F:
        """Register a function that runs code at the start and at the end of each worker process.

        Use `@client.lifespan` on a plain or async function that yields once. The worker receives
        its first message after the yield. After the last handler has ended, the worker runs the
        rest of the function.

        An async function runs in the event loop of the async handlers. A plain function runs in its
        own thread. A handler gets the yielded value through `rmq.Depends(function,
        scope="process")`.

        The decorator returns the function.

        Raises:
            InvalidType: The function does not yield, or has a parameter that cannot be filled.
        """
        self._handlers.lifespans.append(check_lifespan(function))
        return function

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __reduce__(self) -> NoReturn:
        raise InvalidType(
            "a client cannot be pickled, because it has connections; create it where it is used"
        )


class ClientParts(NamedTuple):
    """Parts of a client that other packages of RMQ use.

    Attributes:
        transport: Transport to Redis.
        prefix: First part of every key.
        sessions: Replay sessions, by which Redis recognises repeated calls.
        hooks: Methods of the client's interceptors, which run around sends and handlers.
        handlers: Handlers that are registered on the client.
        declared: Settings that the program has declared, by topic.
        retry_s: Time for which a command is retried while Redis cannot be reached, in seconds.
    """

    transport: Transport | AsyncTransport
    prefix: str
    sessions: ReplaySessions
    hooks: Hooks
    handlers: Handlers
    declared: dict[str, dict[str, Any]]
    retry_s: float


def parts_of(client: ClientBase) -> ClientParts:
    """Return the parts of a client that other packages of RMQ use."""
    return ClientParts(
        client._transport,  # type: ignore[attr-defined]
        client._prefix, client._sessions, client._hooks, client._handlers, client._declared,
        client._retry_s,
    )  # fmt: skip


class AsyncClient(ClientBase):
    """A client of RMQ for one Redis, for `async with`. Tasks of one event loop may share it.

    Args:
        url: Address of Redis: redis://, rediss:// or unix://. Use embedded:///directory for an
            embedded server, redis+sentinel://h1,h2,h3/service for Redis Sentinel, and
            redis+cluster://h1:7000,h2:7000 for a cluster. Default: RMQ_URL, else
            redis://localhost:6379/0. Options of redis-py may follow, for example `?protocol=3`.
        prefix: First part of every key. Default: RMQ_PREFIX, else "rmq".
        retry_for: How long a call retries while Redis cannot be reached, in seconds or as a
            timedelta, at most 30 s.
        timeout: Longest wait for a reply, in seconds or as a timedelta.
        max_connections: Maximum number of connections, 1 to 10000. Default: the option
            `max_connections` of the URL, else 64. If all connections are in use, a call waits for
            up to `timeout` plus `retry_for`. Each waiting consumer has an additional connection for
            its subscription.
        interceptors: Objects whose methods run around sends, and around the handlers of workers.

    Raises:
        ConfigurationError: The URL is not valid.
        EmbeddedError: The embedded server does not start.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        prefix: str | None = None,
        retry_for: Duration = 10.0,
        timeout: Duration = 10.0,
        max_connections: int | None = None,
        interceptors: Sequence[Interceptor] = (),
    ) -> None:
        super().__init__(url, prefix, retry_for, timeout, max_connections, interceptors)
        self._transport = self._open_async_transport()
        self.admin = AsyncAdmin(self._transport, self._prefix, self._sessions)

    def topic(
        self,
        name: str,
        *,
        codec: str | Codec = "json",
        results: Results | None = None,
        step_bytes: int = ENTRY_BYTES,
        **settings: Unpack[TopicSettings],
    ) -> AsyncTopic:
        """Return a topic by name.

        This call sends nothing to Redis. The first call on the topic opens the topic in Redis.

        Args:
            name: Name of the topic: 1 to 128 characters of A-Z a-z 0-9 . _ -
            codec: Codec for writing bodies: "json", "msgpack", "bytes", the name of an installed
                codec, rmq.Compressed(), rmq.Encrypted(keys), or your own object with a number from
                4 to 7 (`rmq.kernel.core.codec.Codec`). A stored message names its codec. So a
                program that reads bodies needs no `codec`, unless the codec is your own object.
            results: How long to keep the results of the messages that this object sends. Default:
                results are not kept.
            step_bytes: Limit for the steps and the cursor of a message that this object receives,
                at most 1 MiB.
            settings: Settings by name, see `rmq.Settings`. Durations are in seconds or a timedelta.
                If you omit a setting, it keeps its value in Redis. In a new topic, it has its
                default.

        Raises:
            InvalidValue, InvalidType: The name or a setting is not valid.
        """
        return AsyncTopic(
            self._transport,
            self._context(name, codec, results, step_bytes, settings),
            self._handlers,
        )

    def batch(
        self,
        name: str | DeliveryData,
        *,
        then: tuple[Any, Outgoing] | None = None,
        dead: Dead = "count",
        timeout: Duration | None = None,
        keep: Duration = BATCH_KEEP,
    ) -> AsyncBatch:
        """Return a batch. RMQ sends a callback message when all messages of the batch have ended.

        This call sends nothing to Redis. Use the batch in a `with` block, which opens and closes
        it.

        Args:
            name: Name of the batch, 1 to 64 characters (A-Z a-z 0-9 . _ -). If a batch of this name
                exists, the program continues it. The handler of a member may pass its delivery
                instead of a name. It can then add members, even after the batch was closed.
            then: The callback: a pair of a topic and an rmq.Outgoing. You may omit the callback if
                the batch exists.
            dead: With "count", a dead letter counts as a member that has ended. With "wait", the
                batch waits until the dead letter is removed, or until it is redriven and ends.
            timeout: Time after which `rmq server` closes the batch if the program has not closed
                it, in seconds or as a timedelta. Default: never.
            keep: How long RMQ keeps the batch after its end, in seconds or as a timedelta.

        Raises:
            InvalidValue, InvalidType: An argument is not valid.
        """
        return AsyncBatch(self._transport.run, self._batch(name, then, dead, timeout, keep))

    async def signal(
        self,
        key: str,
        body: Any = None,
        *,
        keep: Duration = EVENT_KEEP,
        codec: str | Codec = "json",
    ) -> SignalResult:
        """Signal an event. The messages that wait for its key then continue.

        Their handlers run again, and find the event in `d.events`. Only the first signal of a key
        counts, so you may repeat the call.

        Args:
            key: Key of the event, a text of 1 to 255 bytes. A key is the same for all topics.
            body: Body of the event, at most 256 KiB when it is encoded.
            keep: How long the event is kept for messages that begin to wait later, in seconds or as
                a timedelta. In this time, further signals of the key do nothing.
            codec: Codec for writing the body, as for a topic.

        Returns:
            Whether this was the first signal, and how many messages now continue.

        Raises:
            InvalidType, InvalidValue: An argument is not valid.
            EncodeError: The codec cannot encode the body.
            PayloadTooLarge: The encoded body has more than 256 KiB.
        """
        return await self._transport.run(self._signal(key, body, keep, codec))

    async def ping(self) -> float:
        """Return how many seconds one round trip to the server takes."""
        started = time.perf_counter()
        await self._transport.raw_command("ping", "PING")
        return time.perf_counter() - started

    async def can_wake(self) -> bool:
        """Return whether this Redis user may publish wake-ups for consumers.

        In Redis 7 or later, a user may use only the channels that its ACL names. Without this right
        no message is lost, but waiting consumers notice new messages up to a second late.
        """
        try:
            await self._transport.raw_command(
                "wake", "PUBLISH", wake_channel(self._prefix, "ping"), ""
            )
        except ConfigurationError:
            return False
        return True

    async def server_info(self, section: str = "server") -> dict[str, str]:
        """Return a section of the server's INFO."""
        return facts(await self._transport.raw_command("info", "INFO", section))

    async def close(self) -> None:
        """Close all connections. An embedded server stops with its last client."""
        if self._hooks.producer_sequence is not None:
            with contextlib.suppress(StorageError):
                await self._transport.run(report.report(self._hooks.producer_sequence, again=False))
        await self._transport.run(self._result_signals.close())
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
