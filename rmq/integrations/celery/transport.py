"""The transport of kombu. Celery reaches its broker through it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any
from urllib.parse import quote

from kombu.transport import virtual

import rmq
from rmq.connectors import SharedData, redact_url
from rmq.errors import StorageError, TopicNotFound
from rmq.integrations.celery.channel import Channel
from rmq.integrations.celery.envelope import topic_name
from rmq.integrations.celery.inbox import Inbox

NAMESPACE = "celery"  # of the shared data: replies, bindings, remote control
PRIORITY_ORDERS = ("amqp", "kombu")
# Settings of a topic that the transport makes. Bodies may be as large as RMQ allows.
DEFAULTS: dict[str, Any] = {"max_body": 16 * 1024 * 1024, "on_expire": "drop"}


def redis_url(connection: Any) -> str:
    """Convert the URL of a kombu connection to a URL for `rmq.Client`.

    kombu removes `rmq+` from the URLs of Sentinel and Cluster. It also splits URLs with several
    addresses.
    """
    url = connection.hostname or "localhost"
    if "://" not in url:
        user = quote(connection.userid or "", safe="")
        if connection.password:
            user += ":" + quote(connection.password, safe="")
        place = f"{user}@{url}" if user else url
        port = connection.port or Transport.default_port
        database = (connection.virtual_host or "0").strip("/") or "0"
        url = f"{connection.transport_cls}://{place}:{port}/{database}"
    elif connection.uri_prefix:
        url = f"{connection.uri_prefix}+{url}"
    scheme, _, rest = url.partition("://")
    for ours, theirs in (("rmqs", "rediss"), ("rmq", "redis")):
        if scheme.startswith(ours):
            scheme = theirs + scheme.removeprefix(ours)
    if scheme in ("sentinel", "cluster"):
        scheme = f"redis+{scheme}"
    return f"{scheme}://{rest}"


class Transport(virtual.Transport):
    """A broker of Celery and kombu on RMQ.

    Options in `broker_transport_options`:

    * lease: Seconds after which RMQ delivers the messages of a dead worker again. Default: the
      setting of the topic, 30 s.
    * priorities: "amqp" or "kombu". With "amqp", RMQ delivers priority 9 first. With "kombu", RMQ
      delivers priority 0 first, as kombu's transport for Redis does.
    * topic: Settings of the topics that the transport creates, by name. See `rmq.Settings`.
    * topic_prefix: First part of the names of all topics.
    * prefix, retry_for, max_connections: Arguments of `rmq.Client`.
    """

    Channel = Channel
    can_parse_url = True
    default_port = 6379
    # Celery starts mingle and gossip, and makes its events a fanout exchange, for "redis" only.
    driver_type = "redis"
    driver_name = "rmq"
    polling_interval = None
    connection_errors = (*virtual.Transport.connection_errors, StorageError)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        given = client.transport_options
        order = given.get("priorities", "amqp")
        if order not in PRIORITY_ORDERS:
            raise rmq.ConfigurationError(f"priorities: {order!r}; give one of {PRIORITY_ORDERS}")
        self.reverses_priorities = order == "kombu"
        self._settings = {**DEFAULTS, **given.get("topic", {})}
        self._topic_prefix = given.get("topic_prefix", "")
        names = ("prefix", "retry_for", "max_connections")
        self.rmq_client = rmq.Client(
            redis_url(client), **{name: given[name] for name in names if name in given}
        )
        self.shared = SharedData(self.rmq_client, NAMESPACE)
        self._topics: dict[str, rmq.Topic] = {}
        self.lists: dict[str, float | None] = {}  # expiry of reply queues; None: a topic
        self.own_lists: set[str] = set()  # reply queues that this connection has declared
        self.own_bindings: dict[tuple[str, str], bytes] = {}
        self.fanouts: dict[str, tuple[str, str]] = {}  # exchange and routing key, by queue
        self.temporary: set[str] = set()  # queues that nobody needs after their consumers
        self.durable_of: dict[str, tuple[float, list[str]]] = {}  # queues, by fanout exchange
        self.inbox = Inbox(self.shared, self.topic, given.get("lease"), self._refresh)
        self._pid = os.getpid()

    def driver_version(self) -> str:
        """Return the version of RMQ."""
        return rmq.__version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL, by default without its password."""
        return uri if include_password else redact_url(uri)

    # --- topics ---------------------------------------------------------------------------------

    def topic_name(self, queue: str) -> str:
        """Return the name of the topic for a queue."""
        return topic_name(queue, self._topic_prefix)

    def topic(self, queue: str) -> rmq.Topic:
        """Return the topic for a queue.

        If the topic is missing, the method creates it with the settings in the options. It does not
        change the settings of an existing topic.
        """
        if queue not in self._topics:
            name = self.topic_name(queue)
            topic = self.rmq_client.topic(name)
            try:
                topic.open(create=False)
            except TopicNotFound:
                topic = self.rmq_client.topic(name, **self._settings)
                topic.open()
            self._topics[queue] = topic
        return self._topics[queue]

    def forget_topic(self, queue: str) -> None:
        """Forget the open topic of a queue, so that the next use opens the topic again."""
        self._topics.pop(queue, None)

    def delete_topic(self, queue: str) -> None:
        """Delete the topic of a queue and all its messages."""
        self.forget_topic(queue)
        with contextlib.suppress(TopicNotFound):
            self.rmq_client.admin.topic_delete(self.topic_name(queue), force=True)

    # --- connections ----------------------------------------------------------------------------

    def establish_connection(self) -> Any:
        """Check that Redis answers, and return the connection."""
        self.rmq_client.ping()
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Release all messages, and end the threads."""
        if self._pid != os.getpid():
            return
        super().close_connection(connection)
        self.inbox.close()
        with contextlib.suppress(StorageError):
            self.rmq_client.close()

    def _refresh(self) -> None:
        for channel in list(self.channels)[:1]:
            channel.refresh()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Register `on_readable` in the event loop of a worker.

        The loop then calls `on_readable` when messages have arrived.
        """
        loop.add_reader(self.inbox.fileno(), self.on_readable, connection, loop)
        loop.on_tick.add(self.inbox.tick)
        self.inbox.gather_acks()

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Remove `on_readable` from the event loop."""
        loop.remove_reader(self.inbox.fileno())
        loop.on_tick.discard(self.inbox.tick)

    def on_readable(self, connection: Any, loop: Any) -> None:
        """Deliver all messages that have arrived."""
        self.inbox.silence()
        while self._deliver_next():
            pass

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver the messages in the inbox. If the inbox is empty, wait for a message.

        Raises:
            TimeoutError: No message arrived within `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        self.inbox.note_room()
        while not self._deliver_next():
            left_s = None if until is None else until - time.monotonic()
            if left_s is not None and left_s < 0:
                raise TimeoutError
            self.inbox.wait(left_s)
        while self._deliver_next():
            pass

    def _deliver_next(self) -> bool:
        while (arrival := self.inbox.next()) is not None:
            if arrival.source.channel.deliver(arrival):
                return True
        return False

    def deliver(self, message: dict[str, Any], queue: str) -> None:
        """Call the callback of a queue with a message."""
        self._callbacks[queue](message)
