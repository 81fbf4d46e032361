# Generated from rmq/client/client.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.client.client`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any, Unpack

from rmq.client.admin_blocking import Admin
from rmq.client.client import ClientBase, facts
from rmq.client.topic_blocking import Topic
from rmq.errors import ConfigurationError, StorageError
from rmq.features.batches.batch_blocking import Batch
from rmq.features.batches.flows import BATCH_KEEP, Dead
from rmq.kernel.core.codec import Codec
from rmq.kernel.core.interceptor import Interceptor
from rmq.kernel.core.keys import wake_channel
from rmq.kernel.core.message import Outgoing
from rmq.kernel.core.results import Results
from rmq.kernel.core.settings import TopicSettings
from rmq.kernel.core.steps import ENTRY_BYTES
from rmq.kernel.core.validation import Duration
from rmq.kernel.delivery.delivery import DeliveryData
from rmq.kernel.events.flows import EVENT_KEEP, SignalResult
from rmq.kernel.producer import report


class Client(ClientBase):
    """A client of RMQ for one Redis, for `with`. Tasks of one event loop may share it.

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
        self._transport = self._open_transport()
        self.admin = Admin(self._transport, self._prefix, self._sessions)

    def topic(
        self,
        name: str,
        *,
        codec: str | Codec = "json",
        results: Results | None = None,
        step_bytes: int = ENTRY_BYTES,
        **settings: Unpack[TopicSettings],
    ) -> Topic:
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
        return Topic(
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
    ) -> Batch:
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
        return Batch(self._transport.run, self._batch(name, then, dead, timeout, keep))

    def signal(
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
        return self._transport.run(self._signal(key, body, keep, codec))

    def ping(self) -> float:
        """Return how many seconds one round trip to the server takes."""
        started = time.perf_counter()
        self._transport.raw_command("ping", "PING")
        return time.perf_counter() - started

    def can_wake(self) -> bool:
        """Return whether this Redis user may publish wake-ups for consumers.

        In Redis 7 or later, a user may use only the channels that its ACL names. Without this right
        no message is lost, but waiting consumers notice new messages up to a second late.
        """
        try:
            self._transport.raw_command("wake", "PUBLISH", wake_channel(self._prefix, "ping"), "")
        except ConfigurationError:
            return False
        return True

    def server_info(self, section: str = "server") -> dict[str, str]:
        """Return a section of the server's INFO."""
        return facts(self._transport.raw_command("info", "INFO", section))

    def close(self) -> None:
        """Close all connections. An embedded server stops with its last client."""
        if self._hooks.producer_sequence is not None:
            with contextlib.suppress(StorageError):
                self._transport.run(report.report(self._hooks.producer_sequence, again=False))
        self._transport.run(self._result_signals.close())
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
