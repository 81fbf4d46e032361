"""Receive and settle messages for programs that use HTTP.

All long polls of a topic with the same lease share one consumer of this server. So a thousand idle
polls cost Redis as much as one consumer. The oldest poll gets messages first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from rmq.errors import InvalidValue, RMQError
from rmq.features.http_consumers.receipts import ReceiptFields, ReceiptSigner
from rmq.http_framework.connection import Connection
from rmq.http_framework.problems import ApiError
from rmq.kernel.consumer import settle
from rmq.kernel.consumer.flows import ConsumerFlows
from rmq.kernel.consumer.settle import Lease, Leases
from rmq.kernel.core.codec import JSON
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.delivery.inner_delivery import OPEN, BatchOrigin, InnerDelivery
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions
from rmq.kernel.transport.flow.steps import Flow
from rmq.kernel.transport.single.asyncio import AsyncTransport

KEEP_S = 60.0  # how long a shared consumer stays subscribed without a poll
ROUND_S = 20.0  # longest call of a shared consumer; then it looks whether the topic still exists
SHARED_MAX = 256  # shared consumers of a server; each has a connection of its own to Redis
TOPICS_KEPT = 1000  # topics whose settings a server keeps

Verb = Callable[[ConsumerFlows, list[InnerDelivery]], Flow[list[InnerDelivery]]]


class Poll:
    """A long poll that waits for messages.

    Args:
        most: Maximum number of messages.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        loop = asyncio.get_running_loop()
        self.deliveries: asyncio.Future[list[InnerDelivery]] = loop.create_future()

    def end(self) -> None:
        """End the wait without messages, unless messages have already arrived."""
        if not self.deliveries.done():
            self.deliveries.set_result([])


class SharedConsumer:
    """Receives messages of one topic for the long polls of HTTP clients.

    Args:
        transport: Transport to Redis.
        context: The topic.
        lease_s: Lease of each message in seconds, or None for the lease of the topic.
        release: Function that gives back messages that no poll received.
        ended: Function that the consumer calls when it has had no poll for KEEP_S seconds.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        context: TopicContext,
        lease_s: float | None,
        release: Callable[[list[InnerDelivery]], object],
        ended: Callable[[], object],
    ) -> None:
        self._transport = transport
        self._flows = ConsumerFlows(context, lease_s, "at_least_once")
        self._release = release
        self._ended = ended
        self._waiting: dict[Poll, None] = {}  # oldest first
        self._came = asyncio.Event()  # a poll has come
        self._receiving = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name="rmq-http-consumer")

    def add(self, poll: Poll) -> None:
        """Start to receive messages for a poll."""
        self._waiting[poll] = None
        self._came.set()

    def remove(self, poll: Poll) -> None:
        """Stop receiving messages for a poll.

        After the last poll, give back the messages that no poll received.
        """
        self._waiting.pop(poll, None)
        if not self._waiting and self._receiving:
            self._task.cancel()

    async def close(self) -> None:
        """End all polls, and close the subscription."""
        for poll in list(self._waiting):
            poll.end()
        self._waiting.clear()
        self._ended()
        self._receiving = False
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _run(self) -> None:
        try:
            while await self._has_polls():
                self._receiving = True
                try:
                    self._hand_out(await self._receive())
                except RMQError as error:
                    for poll in self._waiting:
                        if not poll.deliveries.done():
                            poll.deliveries.set_exception(error)
                    self._waiting.clear()
                except asyncio.CancelledError:
                    if not self._receiving:  # by `close`
                        raise
                    while self._task.cancelling():  # by `remove`
                        self._task.uncancel()
                finally:
                    self._receiving = False
        finally:
            self._ended()
            with suppress(RMQError):
                await self._transport.run(self._flows.close())
            await self._transport.unsubscribe(self._flows.state.subscription)

    async def _has_polls(self) -> bool:
        if not self._waiting:
            self._came.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(KEEP_S):
                    await self._came.wait()
        return bool(self._waiting)

    async def _receive(self) -> list[InnerDelivery]:
        run, most = self._transport.run, sum(poll.most for poll in self._waiting)
        await run(opening.ensure_open(self._flows.context, create=False))
        return await run(self._flows.receive(min(most, BATCH_MAX), ROUND_S))

    def _hand_out(self, deliveries: list[InnerDelivery]) -> None:
        for delivery in deliveries:
            # Any server may settle it. So it stays leased when this consumer is closed.
            self._flows.open.pop(delivery.raw_id, None)
        for poll in list(self._waiting):
            if deliveries and not poll.deliveries.done():
                poll.deliveries.set_result(deliveries[: poll.most])
                deliveries = deliveries[poll.most :]
                del self._waiting[poll]
        if deliveries:  # a poll ended while its messages came
            self._release(deliveries)


class _Topic(NamedTuple):
    """A topic on this server: its context, and its consumers by lease."""

    context: TopicContext
    settling: ConsumerFlows
    shared: dict[float | None, SharedConsumer]


class Settled(NamedTuple):
    """The deliveries that a request settled, and the receipts of the other deliveries."""

    deliveries: dict[str, InnerDelivery]
    lost: list[str]


class HttpConsumers:
    """Receives and settles messages for the clients of a server.

    Args:
        transport: Transport to Redis.
        prefix: First part of every key.
        sessions: Replay sessions of the server's client.
        signer: Signs receipts and checks them.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        prefix: str,
        sessions: ReplaySessions,
        signer: ReceiptSigner,
    ) -> None:
        self._transport, self._prefix, self._sessions = transport, prefix, sessions
        self.signer = signer
        self._topics: OrderedDict[str, _Topic] = OrderedDict()  # used longest ago first
        self._shared: set[SharedConsumer] = set()
        self._background: set[asyncio.Task[Any]] = set()
        self._streams: dict[str, set[Stream]] = {}  # by topic

    async def close(self) -> None:
        """End all polls. Clients keep the leases of messages that were delivered."""
        await asyncio.gather(*(each.close() for each in list(self._shared)))
        if self._background:
            await asyncio.wait(self._background, timeout=1.0)

    async def open(self, topic: str) -> None:
        """Read the settings of a topic, and the secret for receipts.

        Raises:
            TopicNotFound: The topic does not exist.
        """
        await self.signer.refresh()
        await self._transport.run(opening.ensure_open(self._of(topic).context, create=False))

    @asynccontextmanager
    async def receiving(
        self, topic: str, most: int, lease_s: float | None, wait_s: float, connection: Connection
    ) -> AsyncIterator[list[InnerDelivery]]:
        """Receive messages for a `with` block. If the block raises an error, release the messages.

        Args:
            topic: Name of the topic.
            most: Maximum number of messages.
            lease_s: Lease of each message in seconds, or None for the lease of the topic.
            wait_s: Longest wait for the first message, in seconds.
            connection: Connection of the client. When the connection ends, the wait ends.

        Raises:
            TopicNotFound: The topic does not exist.
            ApiError: The server has too many shared consumers.
        """
        await self.open(topic)
        of_topic, deliveries = self._of(topic), list[InnerDelivery]()
        try:
            if wait_s:
                poll = Poll(most)
                connection.on_end(poll.end)
                shared = self._shared_of(of_topic, lease_s)
                shared.add(poll)
                try:
                    await asyncio.wait((poll.deliveries,), timeout=wait_s)
                finally:
                    shared.remove(poll)
                    poll.end()
                    deliveries = poll.deliveries.result()
            else:
                flows = ConsumerFlows(of_topic.context, lease_s, "at_least_once")
                deliveries = await self._transport.run(flows.receive(most, 0))
            yield deliveries
        except BaseException:
            self._release(of_topic, deliveries)
            raise

    def _shared_of(self, of_topic: _Topic, lease_s: float | None) -> SharedConsumer:
        shared = of_topic.shared.get(lease_s)
        if shared is not None:
            return shared
        if len(self._shared) >= SHARED_MAX:
            raise ApiError(
                "busy", f"this server receives for {SHARED_MAX} topics and leases; use another"
            )
        return self._start(of_topic, lease_s)

    def _start(self, of_topic: _Topic, lease_s: float | None) -> SharedConsumer:
        def ended() -> None:
            self._shared.discard(shared)
            if of_topic.shared.get(lease_s) is shared:
                del of_topic.shared[lease_s]

        def release(deliveries: list[InnerDelivery]) -> None:
            self._release(of_topic, deliveries)

        shared = SharedConsumer(self._transport, of_topic.context, lease_s, release, ended)
        of_topic.shared[lease_s] = shared
        self._shared.add(shared)
        return shared

    def _release(self, of_topic: _Topic, deliveries: list[InnerDelivery]) -> None:
        """Give messages back in the background.

        No client received the messages, so they lose no retry.
        """
        if deliveries:
            self._in_background(self._transport.run(of_topic.settling.release(deliveries, 0)))

    async def settle(self, topic: str, texts: Sequence[str], verb: Verb) -> Settled:
        """Settle or extend deliveries by their signed receipts.

        Raises:
            ApiError: A receipt was not signed by a server of this Redis, or belongs to another
                topic. Also raised if all leases have ended.
        """
        receipts = await self.signer.read_all(texts)
        of_topic = self._of(topic)
        settled = await self._transport.run(_settle(of_topic, receipts, verb))
        for stream in self._streams.get(topic, ()):
            for receipt in receipts:
                stream.note(receipt, settled.deliveries.get(receipt.text))
        if not settled.deliveries:
            raise ApiError(
                "lease-lost",
                "receipts: all leases are gone. They have ended, or the messages were settled, "
                "given back or deleted. Nothing was changed",
                "receipts",
            )
        return settled

    def stream(self, topic: str, most: int) -> Stream:
        """Return a stream of messages, to use in a `with` statement."""
        return Stream(self._transport, self._of(topic).context, most, self._streams)

    def _of(self, topic: str) -> _Topic:
        found = self._topics.get(topic)
        if found is None:
            context = TopicContext(self._prefix, topic, JSON, self._sessions, {})
            found = _Topic(context, ConsumerFlows(context, None, "at_least_once"), {})
            self._topics[topic] = found
            if len(self._topics) > TOPICS_KEPT:
                oldest = next(name for name, each in self._topics.items() if not each.shared)
                del self._topics[oldest]
        self._topics.move_to_end(topic)
        return found

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        async def run() -> None:
            with suppress(RMQError):  # the leases expire
                await work

        task = asyncio.get_running_loop().create_task(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _settle(topic: _Topic, receipts: list[ReceiptFields], verb: Verb) -> Flow[Settled]:
    context = topic.context
    yield from opening.ensure_open(context, create=False)
    yield from opening.follow_ids(context, [each.id for each in receipts])
    deliveries = {each.text: _delivery(context, each) for each in receipts}
    lost = set((yield from verb(topic.settling, list(deliveries.values()))))
    return Settled(
        {text: each for text, each in deliveries.items() if each not in lost},
        [text for text, each in deliveries.items() if each in lost],
    )


def _delivery(context: TopicContext, receipt: ReceiptFields) -> InnerDelivery:
    try:
        id = context.check_id(receipt.id, "receipts")
    except InvalidValue:
        raise ApiError(
            "bad-receipt", "receipts: one of them is of another topic. Nothing was done", "receipts"
        ) from None
    origin = BatchOrigin(context.slots[id.slot], 0, context.settings.max_retries, float("inf"))
    return InnerDelivery(origin, receipt.id, receipt.score, receipt.record, receipt.fence, None)


FIRST_CHECK_S, CHECKS_MAX_S = 1.0, 16.0  # time between two checks of the leases of a full stream


class Stream:
    """The messages that a stream has sent and that are not settled yet.

    The server counts the messages that its own clients settle. Other servers may also settle
    messages of the stream. So this server regularly checks in Redis whether the leases still exist.

    Args:
        transport: Transport to Redis.
        context: The topic.
        most: Maximum number of messages in flight.
        streams: All streams of this server by topic.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        context: TopicContext,
        most: int,
        streams: dict[str, set[Stream]],
    ) -> None:
        self._transport, self._context, self._most = transport, context, most
        self._streams = streams
        self._leases: dict[bytes, Lease] = {}  # by message id
        self._changed = asyncio.Event()
        self._check_s = FIRST_CHECK_S

    def __enter__(self) -> Stream:
        self._streams.setdefault(self._context.name, set()).add(self)
        return self

    def __exit__(self, *_: object) -> None:
        streams = self._streams[self._context.name]
        streams.discard(self)
        if not streams:
            del self._streams[self._context.name]

    def add(self, deliveries: Iterable[InnerDelivery]) -> None:
        """Count messages that the stream sends now."""
        for each in deliveries:
            self._leases[each.raw_id] = Lease(each.origin.keys.index, each.raw_id, each.score)
            self._check_s = FIRST_CHECK_S

    def note(self, receipt: ReceiptFields, delivery: InnerDelivery | None) -> None:
        """Record that this server settled or extended a delivery, or that its lease has ended."""
        lease = self._leases.get(receipt.id)
        if lease is None or lease.score != receipt.score:
            return
        if delivery is not None and delivery.state == OPEN:
            self._leases[receipt.id] = lease._replace(score=delivery.score)
        else:
            del self._leases[receipt.id]
            self._changed.set()

    def wake(self) -> None:
        """Wake the call of `room` that waits."""
        self._changed.set()

    async def room(self) -> int:
        """Return how many messages the stream may send now.

        If the stream may send no message, wait for some seconds.
        """
        if len(self._leases) >= self._most:
            self._changed.clear()
            try:
                async with asyncio.timeout(self._check_s):
                    await self._changed.wait()
            except TimeoutError:
                self._check_s = min(2 * self._check_s, CHECKS_MAX_S)
                await self._check()
        return self._most - len(self._leases)

    async def _check(self) -> None:
        """Remove messages that another server has settled. Their leases have ended."""
        leases = list(self._leases.values())
        letters = await self._transport.run(settle.check_leases(self._context, Leases.of(leases)))
        for lease, letter in zip(leases, letters, strict=True):
            if letter == "0" and self._leases.get(lease.id) == lease:
                del self._leases[lease.id]
