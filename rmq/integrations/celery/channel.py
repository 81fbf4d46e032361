"""The channel of kombu.

Most queues are topics of RMQ. RMQ creates a topic when it is first used. A queue that expires, such
as a reply queue, is a list in Redis. Its messages have no lease. A temporary queue of a fanout
exchange is a Pub/Sub subscription.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from queue import Empty
from typing import Any

from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments

import rmq
from rmq.connectors import codec_of
from rmq.errors import EncodeError, TopicNotFound, TopicVanished
from rmq.integrations.celery import envelope
from rmq.integrations.celery.inbox import LIST_SIGNAL, Arrival, Source

WAITING = ("retries", "priority", "due", "later")  # counts of a topic, of its waiting messages
TABLE_S = 1.0  # time between two reads of the queues of a fanout exchange
LISTS_MAX = 10_000  # queues that a connection remembers as a list or a topic
SEPARATOR = "\x06\x16"
_codec = codec_of("json")


class QoS(virtual.QoS):
    """Settles deliveries: acks them, makes them dead letters, or releases them."""

    def ack(self, delivery_tag: str) -> None:
        """Ack a message."""
        super().ack(delivery_tag)
        self.channel.inbox.ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Make a message a dead letter, or release it for a retry."""
        self.channel.inbox.settle("requeue" if requeue else "reject", [delivery_tag])
        super().ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """Release all messages that are not settled."""
        self._flush()
        tags = list(self._delivered)
        self._delivered.clear()
        self.channel.inbox.settle("release", tags)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """When the channel closes, release all messages that are not settled."""
        self._on_collect.cancel()
        if self.channel.connection is not None:
            self.restore_unacked()
        self._delivered.restored = True


class Channel(virtual.Channel):
    """A channel of a connection. `rmq.celery.Transport` describes the options."""

    QoS = QoS
    supports_fanout = True
    body_encoding = None  # bodies are stored as they are

    @property
    def inbox(self) -> Any:
        """The threads that receive messages for the connection."""
        return self.connection.inbox

    # --- queues ---------------------------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        """Return the arguments of a queue with its limits, for example `x-expires`."""
        return to_rabbitmq_queue_arguments(arguments or {}, **options)

    def _new_queue(
        self,
        queue: str,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        expires_ms = (arguments or {}).get("x-expires")
        if auto_delete or exclusive or expires_ms:
            self.connection.temporary.add(queue)
        if expires_ms:
            seconds = expires_ms / 1000
            self.connection.lists[queue] = seconds
            self.connection.own_lists.add(queue)
            self._keep_list(queue, seconds)

    def _keep_list(self, queue: str, seconds: float) -> None:
        """Record in Redis that a queue is a list.

        The record expires at the same time as the list.
        """
        self.connection.shared.add(f"list:{queue}", f"{seconds!r}".encode(), expires=seconds)

    def _list_s(self, queue: str) -> float | None:
        """Return after how many seconds the list of a queue expires. For a topic, return None."""
        lists = self.connection.lists
        if queue not in lists:
            if len(lists) > LISTS_MAX:  # reply queues of callers that came and went
                for each in lists.keys() - self.connection.own_lists:
                    lists.pop(each, None)
            found = self.connection.shared.members(f"list:{queue}")
            lists[queue] = max(map(float, found), default=None)
        seconds: float | None = lists[queue]
        return seconds

    def _has_queue(self, queue: str, **_: Any) -> bool:
        if self._list_s(queue) is not None:
            return True
        return self.connection.topic_name(queue) in self.connection.rmq_client.admin.topics()

    def _size(self, queue: str) -> int:
        if self._list_s(queue) is not None:
            return int(self.connection.shared.length(queue))
        try:
            counts = self.connection.rmq_client.admin.stats(self.connection.topic_name(queue))
        except TopicNotFound:
            return 0
        return sum(counts[state] for state in WAITING)

    def _purge(self, queue: str) -> int:
        if self._list_s(queue) is not None:
            size = self._size(queue)
            self.connection.shared.delete(queue)
            return size
        try:
            name = self.connection.topic_name(queue)
            return int(self.connection.rmq_client.admin.purge(name, "waiting"))
        except TopicNotFound:
            return 0

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any
    ) -> None:
        """Delete a queue with its bindings and all its messages."""
        if if_empty and self._size(queue):
            return
        for exchange, routing_key, arguments in list(self.state.queue_bindings(queue)):
            self._unbind(queue, exchange, routing_key, arguments)
        self.state.queue_bindings_delete(queue)
        if self._list_s(queue) is not None:
            self.connection.own_lists.discard(queue)
            self.connection.shared.delete(queue)
        elif queue not in self.connection.fanouts:
            self.connection.delete_topic(queue)
        self.connection.lists.pop(queue, None)
        self.connection.fanouts.pop(queue, None)

    # --- exchanges ------------------------------------------------------------------------------

    def _table(self, exchange: str, routing_key: str) -> str:
        """Return the name of a set of bindings.

        A direct exchange has one set for each routing key.
        """
        is_direct = self.typeof(exchange).type == "direct"
        return f"bindings:{exchange}" + (f":{routing_key}" if is_direct else "")

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        if self.typeof(exchange).type == "fanout":
            self.connection.durable_of.pop(exchange, None)
            if queue in self.connection.temporary:
                self.connection.fanouts[queue] = exchange, routing_key
                return
        binding = SEPARATOR.join((routing_key or "", pattern or "", queue)).encode()
        table = self._table(exchange, routing_key)
        seconds = self._list_s(queue)
        is_own_table = seconds is not None and self.typeof(exchange).type == "direct"
        self.connection.shared.add(table, binding, expires=seconds if is_own_table else None)
        if is_own_table:
            self.connection.own_bindings[queue, table] = binding

    def _unbind(self, queue: str, exchange: str, routing_key: str, arguments: Any) -> None:
        _, pattern, _ = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments)
        table = self._table(exchange, routing_key)
        binding = SEPARATOR.join((routing_key or "", pattern or "", queue)).encode()
        self.connection.own_bindings.pop((queue, table), None)
        self.connection.shared.discard(table, binding)

    def queue_unbind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Any = None, **_: Any
    ) -> None:
        """Remove a binding of a queue."""
        self.state.binding_delete(queue, exchange, routing_key)
        if self.connection.fanouts.get(queue, ("",))[0] == exchange:
            del self.connection.fanouts[queue]
        else:
            self._unbind(queue, exchange, routing_key, arguments)

    def get_table(self, exchange: str, routing_key: str = "") -> list[tuple[str, ...]]:
        """Return the bindings of an exchange. If it is a direct exchange, pass the routing key."""
        found = self.connection.shared.members(self._table(exchange, routing_key))
        return [tuple(binding.decode().split(SEPARATOR)) for binding in found]

    def _lookup(self, exchange: str, routing_key: str, default: Any = None) -> Iterable[str]:
        if not exchange:
            return [routing_key or default or self.deadletter_queue]
        table = self.get_table(exchange, routing_key)
        found: Iterable[str] = self.typeof(exchange).lookup(table, exchange, routing_key, default)
        default = default or self.deadletter_queue
        return found or ([default] if default is not None else [])

    def refresh(self) -> None:
        """Renew the reply queues of this connection and their bindings before they expire."""
        for queue in list(self.connection.own_lists):
            self._keep_list(queue, self.connection.lists[queue])
        for (queue, table), binding in list(self.connection.own_bindings.items()):
            seconds = self.connection.lists.get(queue)
            if seconds is not None:
                self.connection.shared.add(table, binding, expires=seconds)

    # --- messages -------------------------------------------------------------------------------

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        seconds = self._list_s(queue)
        if seconds is not None:
            data = _codec.encode(envelope.pack(message, readable=False))
            self.connection.shared.push(queue, data, expires=seconds)
            self.connection.shared.publish(LIST_SIGNAL + queue, b"")
            return
        options = envelope.send_options(message, self.connection.reverses_priorities)
        try:
            self._send(queue, envelope.pack(message), options)
        except EncodeError:  # JSON that only Python reads, for example NaN
            self._send(queue, envelope.pack(message, readable=False), options)

    def _send(self, queue: str, packed: dict[str, Any], options: dict[str, Any]) -> None:
        try:
            self.connection.topic(queue).send(packed, **options)
        except TopicVanished:  # deleted, or Redis was flushed: nothing was sent
            self.connection.forget_topic(queue)
            self.connection.topic(queue).send(packed, **options)

    def _put_fanout(
        self, exchange: str, message: dict[str, Any], routing_key: str, **_: Any
    ) -> None:
        data = _codec.encode(envelope.pack(message, readable=False))
        self.connection.shared.publish(f"fanout:{exchange}", data)
        for queue in self._durable_of(exchange):
            self._put(queue, message)

    def _durable_of(self, exchange: str) -> list[str]:
        """Return the durable queues of a fanout exchange. These queues are topics.

        The method reads Redis at most once a second.
        """
        until, queues = self.connection.durable_of.get(exchange, (0.0, []))
        if time.monotonic() >= until:
            queues = [binding[2] for binding in self.get_table(exchange)]
            self.connection.durable_of[exchange] = time.monotonic() + TABLE_S, queues
        return list(queues)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        if self._list_s(queue) is not None:
            for value in self.connection.shared.pop(queue):
                return envelope.unpack(_codec.decode(value), self._next_delivery_tag())
            raise Empty
        found = self.inbox.get(queue, self)
        if found is None:
            raise Empty
        tag, delivery = found
        return envelope.unpack(delivery.body, tag, delivery.attempt > 1)

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        """Receive one message without waiting. If there is none, return None."""
        message = super().basic_get(queue, no_ack=no_ack, **options)
        if message is not None and no_ack:
            self.inbox.settle("ack", [message.delivery_tag])
        return message

    def deliver(self, arrival: Arrival) -> bool:
        """Pass a message that has arrived to the callback of its queue.

        If the queue has another routing key, drop the message and return False.
        """
        source, content = arrival.source, arrival.content
        if isinstance(content, rmq.Delivery):
            tag = arrival.tag or str(content.receipt)
            message = envelope.unpack(content.body, tag, content.attempt > 1)
        else:
            message = envelope.unpack(_codec.decode(content), self._next_delivery_tag())
            key = message["properties"]["delivery_info"].get("routing_key") or ""
            if source.kind == "fanout" and not self._matches(source.queue, key):
                return False
        self.connection.deliver(message, source.queue)
        return True

    def _matches(self, queue: str, routing_key: str) -> bool:
        """Return whether a routing key matches the binding of a fanout queue.

        The binding may be a pattern with wildcards.
        """
        _, bound = self.connection.fanouts.get(queue, ("", ""))
        if not bound or ("*" not in bound and "#" not in bound):
            return True
        pattern = self.exchange_types["topic"].key_to_pattern(bound)
        return re.match(pattern, routing_key) is not None

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any
    ) -> None:
        """Start to consume a queue."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        fanout = self.connection.fanouts.get(queue)
        if fanout is not None:
            source = Source(queue, "fanout", self, no_ack, f"fanout:{fanout[0]}")
        elif self._list_s(queue) is not None:
            source = Source(queue, "list", self, no_ack, LIST_SIGNAL + queue)
        else:
            source = Source(queue, "topic", self, no_ack)
        self.inbox.consume(source)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop consuming a queue."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self.inbox.cancel(queue)

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """Set how many unsettled messages the channel may have. 0 means no limit."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.inbox.note_room()
