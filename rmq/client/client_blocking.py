# Generated from rmq/client/client.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.client.client`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Unpack

from rmq.client.admin_blocking import Admin
from rmq.client.client import ClientBase, facts
from rmq.client.topic_blocking import Topic
from rmq.errors import ConfigurationError, StorageError
from rmq.kernel.core.codec import Codec
from rmq.kernel.core.interceptor import Interceptor
from rmq.kernel.core.keys import wake_channel
from rmq.kernel.core.settings import TopicSettings
from rmq.kernel.core.validation import Duration
from rmq.kernel.producer import report


class Client(ClientBase):
    """A connection to RMQ on a Redis. For `with`; threads may share it.

    Args:
        url: redis://, rediss://, unix://, embedded:///directory, or for Redis Sentinel
            redis+sentinel://h1,h2,h3/service, or redis+cluster://h1:7000,h2:7000; default:
            RMQ_URL, else redis://localhost:6379/0.
            Options of redis-py may follow, as `?protocol=3`.
        prefix: the first part of every key; default: RMQ_PREFIX, else "rmq".
        retry_for: how long a call keeps trying while Redis cannot be reached, seconds or
            timedelta; at most 30 s.
        timeout: how long to wait for one reply, seconds or timedelta.
        max_connections: how many connections at most, 1 to 10000; default: what the URL's option
            of that name says, else 64. Calls beyond that wait in line for up to `timeout` and
            `retry_for` together. Each waiting consumer has one more, for its subscription.
        interceptors: hooks around its sends, and around the handlers of its workers.

    Raises:
        ConfigurationError: the URL cannot work.
        EmbeddedError: the embedded server does not start.
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
        self, name: str, *, codec: str | Codec = "json", **settings: Unpack[TopicSettings]
    ) -> Topic:
        """A topic by name. Nothing is sent to Redis before its first call, which opens it.

        Args:
            name: 1 to 128 of A-Z a-z 0-9 . _ -
            codec: how bodies are written: "json", "msgpack", "bytes", the name of a codec that is
                installed, rmq.Compressed(), rmq.Encrypted(keys), or an object of your own with a
                number from 4 to 7 (`rmq.kernel.core.codec.Codec`).
                Reading goes by the record; your own has to be named where it is read, too.
            settings: by name, see `rmq.Settings`; durations in seconds or timedelta. What is left
                out keeps its value in Redis, or is the default when the topic is created.

        Raises:
            InvalidValue, InvalidType: the name or a setting cannot work.
        """
        return Topic(self._transport, self._context(name, codec, settings), self._handlers)

    def ping(self) -> float:
        """Return the seconds of one round trip to the server."""
        started = time.perf_counter()
        self._transport.raw_command("ping", "PING")
        return time.perf_counter() - started

    def can_wake(self) -> bool:
        """Whether this Redis user may wake waiting consumers: publish to channels of the prefix.

        A Redis 7 user has no channels unless its ACL names them. Nothing is lost without them, but
        waiting consumers notice new messages up to a second late.
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
        """Close every connection; an embedded server stops with its last client."""
        if self._hooks.producer_sequence is not None:
            with contextlib.suppress(StorageError):
                self._transport.run(report.report(self._hooks.producer_sequence, again=False))
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
