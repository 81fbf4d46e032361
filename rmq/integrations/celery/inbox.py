"""Receive messages in threads, and wake the event loop of the program.

Each consumed queue has a thread that waits for messages of its topic. Other threads wait for
published data and renew the leases. In a worker, a thread also sends acks. So the event loop does
not poll. If a task pool blocks the loop, no lease is lost.

The threads put messages into an inbox. One byte on a socket wakes the loop, and the loop reads the
inbox. There are at least GATHER_S seconds between two commands with acks, so that one command has
many acks. For the same reason, a thread waits for GATHER_S seconds before it receives messages. If
half of the prefetch limit is free, the thread does not wait.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import rmq
from rmq.connectors import SharedData, SharedSubscription
from rmq.errors import RMQError, StorageError, TopicVanished
from rmq.integrations.celery.acks import GATHER_S, AckSender

log = logging.getLogger("rmq.celery")

RENEW_PARTS = 3  # a lease is renewed when a third of it has passed
RETRY_S = 1.0  # pause while Redis cannot be reached
LISTEN_S = 60.0  # longest wait for published data; nothing depends on it
POLL_S = 1.0  # time between two looks at lists if the ACL forbids Pub/Sub
UNLIMITED = 100  # messages that wait in the inbox if a consumer has no prefetch limit
JOIN_S = 5.0  # longest wait for a thread at the end
LIST_SIGNAL = "list:"  # first part of the channel of a list
IDLE_CHANNEL = "idle"  # an unused channel: a subscription needs one channel
Kind = Literal["topic", "list", "fanout"]
Verb = Literal["ack", "reject", "release", "requeue"]
REJECTED = "the consumer rejected the message"
REQUEUED = "the consumer requeued the message"
REQUEUE_S = 0.001  # a retry that waits keeps its priority
GET_S = 0.005  # wait of a single get, so that it finds a message that was just requeued


@dataclass(eq=False)
class Source:
    """A consumed queue.

    Attributes:
        queue: Name of the queue.
        kind: Kind of the queue: a topic, a list, or a subscription to a fanout exchange.
        channel: Channel of kombu that consumes the queue.
        no_ack: Whether RMQ settles messages before it delivers them.
        name: Pub/Sub channel, if the queue is not a topic.
        is_active: Whether the channel still consumes the queue.
        consumer: Consumer of the topic.
    """

    queue: str
    kind: Kind
    channel: Any
    no_ack: bool
    name: str = ""
    is_active: bool = True
    consumer: rmq.Consumer | None = None


@dataclass(eq=False, slots=True)
class Unsettled:
    """A delivery that is not settled yet.

    Attributes:
        counts: Whether the delivery counts for the prefetch limit. After an ack, the delivery does
            not count, even if the ack was not sent yet.
    """

    consumer: rmq.Consumer
    delivery: rmq.Delivery
    channel: Any
    counts: bool = True


class Arrival(NamedTuple):
    """A message in the inbox.

    It is a delivery with its tag, or bytes from a list or a fanout exchange.
    """

    source: Source
    tag: str
    content: Any


class Inbox:
    """The inbox of one connection of kombu, with its threads and its unsettled deliveries.

    Args:
        shared: Shared data in Redis. It has lists and fanout exchanges.
        topic_of: Function that opens the topic of a queue.
        lease: Lease of deliveries in seconds, or None for the setting of the topic.
        refresh: Function that keeps reply queues. A thread calls it three times per lease.
    """

    def __init__(
        self,
        shared: SharedData,
        topic_of: Callable[[str], rmq.Topic],
        lease: float | None,
        refresh: Callable[[], object],
    ) -> None:
        self._shared, self._topic_of, self._lease, self._refresh = shared, topic_of, lease, refresh
        self._changed = threading.Condition()
        self._sources: dict[str, Source] = {}
        self._inbox: deque[Arrival | RMQError] = deque()
        self._held: dict[str, Unsettled] = {}
        self._counts: Counter[Any] = Counter()  # held deliveries, by channel
        # Settlements that are repeated, because Redis could not be reached.
        self._unsettled: list[tuple[Verb, Iterable[str]]] = []
        self._acks = AckSender(partial(self.settle, "ack"))
        self._gathers_acks = False
        # A renewal changes the receipts, so no delivery is settled while its lease is renewed.
        self._renewing: dict[rmq.Consumer, threading.Lock] = defaultdict(threading.Lock)
        self._getters: dict[str, rmq.Consumer] = {}
        self._threads: list[threading.Thread] = []
        self._is_renewing = False
        self._subscription: SharedSubscription | None = None
        self._renew_s = (lease or 30.0) / RENEW_PARTS
        self._closing = threading.Event()
        self._pid = os.getpid()
        self._doorbell, self._ringer = socket.socketpair()
        self._doorbell.setblocking(False)
        self._ringer.setblocking(False)

    # --- the loop's side ------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return a file descriptor. It is readable when a message has arrived."""
        return self._doorbell.fileno()

    def wait(self, seconds: float | None) -> None:
        """Wait until a message has arrived. Wait at most the given number of seconds."""
        if not self._inbox:
            select.select([self._doorbell], [], [], seconds)
        self.silence()

    def silence(self) -> None:
        """Read the bytes from the socket. Call this before you read the inbox."""
        with contextlib.suppress(BlockingIOError):
            while self._doorbell.recv(4096):
                pass

    def next(self) -> Arrival | None:
        """Return the next message, or None if the inbox has none.

        Raises:
            RMQError: A thread has ended because it cannot receive from its topic.
        """
        while self._inbox:
            arrival = self._inbox.popleft()
            if isinstance(arrival, RMQError):
                raise arrival
            if arrival.source.is_active:
                return arrival
            self.settle("release", [arrival.tag])
        return None

    def note_room(self) -> None:
        """Wake the waiting threads. They then check how many messages their channel accepts."""
        with self._changed:
            self._changed.notify_all()

    def tick(self) -> None:
        """Wake the threads in each iteration of the event loop if Celery decides the prefetch."""
        if any(_counts_alone(source.channel.qos) for source in list(self._sources.values())):
            self.note_room()

    def gather_acks(self) -> None:
        """Start to collect acks for some milliseconds and to send them together."""
        self._gathers_acks = True

    def _put(self, arrivals: Iterable[Arrival | RMQError]) -> None:
        self._inbox.extend(arrivals)
        with contextlib.suppress(BlockingIOError, OSError):
            self._ringer.send(b"!")

    # --- sources --------------------------------------------------------------------------------

    def consume(self, source: Source) -> None:
        """Start to receive the messages of a queue."""
        with self._changed:
            former = self._sources.get(source.queue)
            if former is not None and former.kind == source.kind == "topic":
                former.channel, former.no_ack, former.is_active = (
                    source.channel,
                    source.no_ack,
                    True,
                )
                self._changed.notify_all()
                return
            self._sources[source.queue] = source
        if source.kind == "topic":
            self._open(source)
            self._start(self._fetch, source)
        elif self._subscription is None:
            self._subscription = self._shared.subscribe(IDLE_CHANNEL, source.name)
            self._start(self._listen, self._subscription)
        else:
            self._subscription.add(source.name)
        self._begin_renewal()

    def cancel(self, queue: str) -> None:
        """Stop receiving messages of a queue.

        RMQ continues to renew the leases of deliveries that Celery already has.
        """
        with self._changed:
            source = self._sources.get(queue)
            if source is None:
                return
            source.is_active = False
            self._changed.notify_all()
        if source.kind != "topic":
            del self._sources[queue]
            if self._subscription is not None:
                self._subscription.remove(source.name)

    def get(self, queue: str, channel: Any) -> tuple[str, rmq.Delivery] | None:
        """Receive one message of a topic without waiting."""
        if queue not in self._getters:
            self._getters[queue] = self._topic_of(queue).consumer(lease=self._lease)
            self._begin_renewal()
        for delivery in self._getters[queue].receive(wait=GET_S):
            return self._note_delivery(self._getters[queue], delivery, channel), delivery
        return None

    def _begin_renewal(self) -> None:
        if not self._is_renewing:
            self._is_renewing = True
            self._start(self._renew)

    def _start(self, target: Callable[..., None], *given: Any) -> None:
        name = f"rmq-celery-{target.__name__.strip('_')}"
        thread = threading.Thread(target=target, args=given, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _open(self, source: Source) -> None:
        topic = self._topic_of(source.queue)
        lease_s = self._lease or topic.settings.lease_ms / 1000
        self._renew_s = min(self._renew_s, lease_s / RENEW_PARTS)
        source.consumer = topic.consumer(lease=self._lease)

    # --- threads --------------------------------------------------------------------------------

    def _fetch(self, source: Source) -> None:
        while (room := self._wait_for_room(source)) > 0:
            consumer = source.consumer
            assert consumer is not None
            try:
                self._accept(source, consumer, consumer.receive(min(room, UNLIMITED), wait=None))
            except StorageError as error:
                log.warning("queue %s: %s", source.queue, error)
                self._closing.wait(RETRY_S)
            except TopicVanished:
                self._open(source)  # deleted, or Redis was flushed
            except RMQError as error:
                self._put([error])
                return

    def _wait_for_room(self, source: Source) -> int:
        """Wait until the channel accepts messages. Return how many messages it accepts.

        When the inbox is closed, return 0.
        """
        with self._changed:
            gathers = self._gathers_acks
            while not self._closing.is_set():
                if source.is_active and (room := self._room(source.channel)) > 0:
                    if not gathers or _is_half(room, source.channel.qos):
                        return room
                    gathers = False
                    self._changed.wait_for(lambda: self._is_half_free(source), GATHER_S)
                else:
                    self._changed.wait(LISTEN_S)
            return 0

    def _is_half_free(self, source: Source) -> bool:
        return _is_half(self._room(source.channel), source.channel.qos) or self._closing.is_set()

    def _room(self, channel: Any) -> int:
        qos = channel.qos
        if not qos.can_consume():
            return 0
        if _counts_alone(qos):
            return 0 if self._inbox else 1
        if not qos.prefetch_count:
            return UNLIMITED - len(self._inbox)
        return int(qos.prefetch_count) - self._counts[channel]

    def _accept(
        self, source: Source, consumer: rmq.Consumer, deliveries: list[rmq.Delivery]
    ) -> None:
        """Put deliveries into the inbox. Release deliveries beyond the prefetch limit."""
        if source.no_ack and source.is_active:
            consumer.ack(deliveries)
            self._put([Arrival(source, "", each) for each in deliveries])
            return
        with self._changed:
            room = max(0, self._room(source.channel)) if source.is_active else 0
            taken = deliveries[:room]
            tags = [self._note_delivery(consumer, each, source.channel) for each in taken]
        if len(deliveries) > room:
            consumer.release(deliveries[room:])
        if taken:
            pairs = zip(tags, taken, strict=True)
            self._put([Arrival(source, tag, each) for tag, each in pairs])

    def _note_delivery(self, consumer: rmq.Consumer, delivery: rmq.Delivery, channel: Any) -> str:
        tag = str(delivery.receipt)
        self._held[tag] = Unsettled(consumer, delivery, channel)
        self._counts[channel] += 1
        return tag

    def _listen(self, subscription: SharedSubscription) -> None:
        while not self._closing.is_set():
            try:
                is_heard = subscription.is_heard
                news = subscription.receive(LISTEN_S if is_heard else POLL_S)
                for source in list(self._sources.values()):
                    found = [each for each in news if each.channel == source.name]
                    if source.kind == "fanout":
                        contents = [each.data for each in found if each.data is not None]
                        self._put([Arrival(source, "", data) for data in contents])
                    elif source.kind == "list" and (found or not is_heard):
                        while values := self._shared.pop(source.queue, UNLIMITED):
                            self._put([Arrival(source, "", value) for value in values])
            except StorageError as error:
                log.warning("replies and remote control: %s", error)
                self._closing.wait(RETRY_S)
            except RMQError as error:
                if not self._closing.is_set():
                    self._put([error])
                return

    def _renew(self) -> None:
        """Renew the leases of all deliveries, and try again to settle deliveries."""
        while not self._closing.wait(self._renew_s):
            with self._changed:
                consumers = {held.consumer for held in self._held.values()}
            steps: list[Callable[[], object]] = [partial(self._extend, each) for each in consumers]
            for step in (*steps, self._repeat_settlements, self._refresh):
                try:
                    step()
                except RMQError as error:
                    log.warning("leases: %s", error)

    def _extend(self, consumer: rmq.Consumer) -> None:
        with self._renewing[consumer]:
            with self._changed:
                held = [each.delivery for each in self._held.values() if each.consumer is consumer]
            open_ones = [delivery for delivery in held if not delivery.is_settled]
            for lost in consumer.extend(open_ones, self._lease):
                log.warning("%s: the lease of %s has ended", lost.topic, lost.id)

    # --- settle ---------------------------------------------------------------------------------

    def ack(self, tag: str) -> None:
        """Ack a message. In an event loop, collect acks and send them together."""
        held = self._held.get(tag)
        gathers = self._gathers_acks and self._pid == os.getpid()
        if held is None or not gathers or not self._acks.add(tag):
            self.settle("ack", [tag])
            return
        with self._changed:
            self._uncount(held)
            room = self._room(held.channel)
            if room == 1 or _is_half(room, held.channel.qos):  # not for each ack
                self._changed.notify_all()

    def settle(self, verb: Verb, tags: Iterable[str]) -> None:
        """Settle deliveries by their tags.

        The method ignores the tags of messages from lists and fanout exchanges. If Redis cannot be
        reached, the deliveries keep their leases, and a later call settles them. If their topic was
        deleted, nothing happens.
        """
        with self._changed:
            found = {tag: self._held[tag] for tag in tags if tag in self._held}
        for consumer in {held.consumer for held in found.values()}:
            part = {tag: held for tag, held in found.items() if held.consumer is consumer}
            try:
                self._settle(verb, consumer, part)
            except StorageError as error:
                log.warning("%s of %d messages is repeated later: %s", verb, len(part), error)
                self._unsettled.append((verb, part))
            except RMQError as error:
                log.warning("%s of %d messages: %s", verb, len(part), error)
                self._forget(part)
            except Exception:  # a fault of RMQ must not end the thread that acks
                log.exception("%s of %d messages: they may run again", verb, len(part))
                self._forget(part)

    def _settle(self, verb: Verb, consumer: rmq.Consumer, part: dict[str, Unsettled]) -> None:
        given = [held.delivery for held in part.values()]
        with self._renewing[consumer]:
            # A renewal may have lost some. The consumer would refuse them together with all others.
            settled = [delivery for delivery in given if delivery.is_settled]
            deliveries = [delivery for delivery in given if not delivery.is_settled]
            if verb == "ack":
                lost = consumer.ack(deliveries)
            elif verb == "reject":
                lost = consumer.reject(deliveries, REJECTED)
            elif verb == "requeue":
                lost = consumer.nack(deliveries, delay=REQUEUE_S, error=REQUEUED)
            else:
                lost = consumer.release(deliveries)
        for delivery in (*lost, *(each for each in settled if each.lost)):
            log.warning(
                "%s: the lease of %s had ended before its %s, so it may run again",
                delivery.topic, delivery.id, verb,
            )  # fmt: skip
        self._forget(part)

    def _forget(self, tags: Iterable[str]) -> None:
        with self._changed:
            for tag in tags:
                held = self._held.pop(tag, None)
                if held is not None:
                    self._uncount(held)
            self._changed.notify_all()

    def _uncount(self, held: Unsettled) -> None:
        if held.counts:
            held.counts = False
            self._counts[held.channel] -= 1

    def _repeat_settlements(self) -> None:
        unsettled, self._unsettled = self._unsettled, []
        for verb, tags in unsettled:
            self.settle(verb, tags)

    def close(self) -> None:
        """Release all deliveries, and end the threads."""
        if self._pid != os.getpid():
            return  # a child of the process: its parent has the threads and the deliveries
        self._acks.close()  # before the consumers release what is not settled
        self._closing.set()
        self.note_room()
        self._repeat_settlements()
        consumers = [each.consumer for each in self._sources.values() if each.consumer]
        for consumer in (*consumers, *self._getters.values()):
            with contextlib.suppress(RMQError):
                consumer.close()
        if self._subscription is not None:
            self._subscription.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(JOIN_S)
        self._doorbell.close()
        self._ringer.close()


def _is_half(room: int, qos: Any) -> bool:
    """Return whether half of the prefetch limit is free, or whether Celery decides the prefetch."""
    return _counts_alone(qos) or 2 * room >= (qos.prefetch_count or UNLIMITED)


def _counts_alone(qos: Any) -> bool:
    """Return whether Celery decides how many messages to prefetch (worker_disable_prefetch)."""
    return "can_consume" in vars(qos)
