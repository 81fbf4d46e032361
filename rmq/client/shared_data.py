"""Share small data between programs, outside of topics: published data, values, lists and sets.

Connectors use this data for replies and broadcasts, which are not messages of a topic. `make fmt`
writes the blocking classes from this module.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from rmq.client.client import AsyncClient, parts_of
from rmq.errors import InvalidValue
from rmq.kernel.core.keys import check_name, shared_key
from rmq.kernel.core.validation import Duration, check_int, duration_ms
from rmq.kernel.transport.flow.steps import POLL_S, AwaitSignal, Flow, Subscription

POP_MAX = 1000  # values of one call of `pop`


class Published(NamedTuple):
    """Data that a subscription received.

    It can also say that the subscription to a channel has begun.

    Attributes:
        channel: Name of the channel.
        data: The published data. None if the subscription to the channel has just begun. Data that
            was published before was not received.
    """

    channel: str
    data: bytes | None


class ChannelSubscription(Subscription):
    """The connection of a subscription to the channels of shared data.

    Attributes:
        names: Name of each channel, by its key in Redis.
        news: Received data that was not returned yet.
        is_closed: Whether the subscription has ended.
        is_receiving: Whether a call of `receive` is running. This call closes the connection when
            it ends.
    """

    __slots__ = ("_sent", "is_closed", "is_receiving", "names", "news")

    def __init__(self) -> None:
        super().__init__(b"")
        self.names: dict[bytes, str] = {}
        self.news: list[Published] = []
        self.is_closed = self.is_receiving = False
        self._sent: set[bytes] = set()

    def required_channels(self) -> Sequence[bytes]:
        """Return the channels that a new connection must subscribe to."""
        channels = list(self.names)
        self._sent = set(channels)
        self.channel = channels[0]  # for errors
        return channels

    def missing_channels(self) -> Sequence[bytes]:
        """Return more channels that the current connection must subscribe to."""
        missing = [each for each in list(self.names) if each not in self._sent]
        self._sent.update(missing)
        return missing

    def note_subscribed(self, channels: Iterable[bytes]) -> None:
        """Record that the subscription to these channels has begun or has begun again."""
        names = [self.names[each] for each in channels if each in self.names]
        self.news += [Published(name, None) for name in names]
        self.payloads.append(b"")  # ends the wait

    def note_signal(self, channel: bytes, payload: bytes, signals: set[int]) -> None:
        """Record published data. The method also adds an item to `signals`, which ends the wait."""
        if channel in self.names:
            self.news.append(Published(self.names[channel], payload))
            signals.add(0)

    def wake(self) -> None:
        """End the current or the next wait on this subscription."""
        reader = getattr(self.connection, "reader", None)
        if reader is not None:
            reader.wake()


def receive_flow(subscription: ChannelSubscription, seconds: float) -> Flow[list[Published]]:
    """Wait for data of a subscription, at most for a number of seconds."""
    until = time.monotonic() + seconds
    if not subscription.names:
        raise InvalidValue("receive: the subscription has no channel; add one")
    subscription.is_receiving = True
    try:
        while not subscription.news and not subscription.is_closed:
            left_s = max(0.0, until - time.monotonic())
            is_heard = subscription.connection is None or subscription.is_active
            yield AwaitSignal(subscription, left_s if is_heard else min(left_s, POLL_S))
            if time.monotonic() >= until:
                break
        if subscription.is_closed and subscription.is_active:
            subscription.must_reconnect = True  # the next wait closes the connection
            yield AwaitSignal(subscription, 0.0)
    finally:
        subscription.is_receiving = False
    news, subscription.news = subscription.news, []
    subscription.payloads.clear()
    return news


class AsyncSharedSubscription:
    """A subscription to channels of shared data. It has its own connection.

    One task may receive. Any task may call the other methods.
    """

    def __init__(self, client: AsyncClient, namespace: str) -> None:
        self._transport = client._transport
        self._key = partial(shared_key, parts_of(client).prefix, namespace, "channel")
        self._subscription = ChannelSubscription()

    def add(self, *channels: str) -> None:
        """Subscribe to more channels. A running call of `receive` subscribes immediately."""
        self._subscription.names.update({self._key(channel): channel for channel in channels})
        self._subscription.wake()

    def remove(self, *channels: str) -> None:
        """Ignore data that is published on these channels from now on."""
        for channel in channels:
            self._subscription.names.pop(self._key(channel), None)

    @property
    def is_heard(self) -> bool:
        """Whether data can arrive.

        The value is False if this Redis user may not use the channels.
        """
        return self._subscription.is_active

    async def receive(self, wait: Duration = 0) -> list[Published]:
        """Wait for published data, and return the data in the order in which it arrived.

        When the subscription begins, `receive` also returns one item for each channel, whose data
        is None. The same happens after each lost connection, because data may have been missed.

        Args:
            wait: Longest wait, in seconds or as a timedelta. `wake` and `add` may end the wait
                earlier.

        Raises:
            InvalidValue: There is no channel.
            Unavailable: Redis cannot be reached. You may repeat the call.
        """
        seconds = duration_ms(wait, "wait", zero=True) / 1000
        return await self._transport.run(receive_flow(self._subscription, seconds))

    async def close(self) -> None:
        """End the subscription. A call of `receive` that waits also ends."""
        self._subscription.is_closed = True
        if self._subscription.is_receiving:
            self._subscription.wake()
        else:
            await self._transport.unsubscribe(self._subscription)


class AsyncSharedData:
    """Data that the programs of a namespace share, outside of topics.

    Published data reaches only programs that are subscribed at this moment. Values of a list are
    popped once, in the order in which they were pushed. If a reply of Redis is lost, the values of
    a push may be added twice, and the values of a pop are lost.

    If data must not be lost, use a topic. On a Redis Cluster, each name may be on another server.

    Args:
        client: Client whose Redis and prefix are used.
        namespace: Name of the program or connector: 1 to 128 characters of A-Z a-z 0-9 . _ -
    """

    def __init__(self, client: AsyncClient, namespace: str) -> None:
        self._client = client
        self._namespace = check_name(namespace, "namespace")
        self._prefix = parts_of(client).prefix
        self._raw = client._transport.raw_command

    def _key(self, kind: str, name: str) -> bytes:
        return shared_key(self._prefix, self._namespace, kind, name)

    async def publish(self, channel: str, data: bytes) -> int:
        """Publish data on a channel.

        Returns:
            Number of subscriptions that got the data. On a Redis Cluster, only the subscriptions on
                one of its servers are counted.
        """
        return int(await self._raw("publish", "PUBLISH", self._key("channel", channel), data))

    def subscribe(self, *channels: str) -> AsyncSharedSubscription:
        """Return a subscription to these channels. It begins with its first `receive`."""
        made = AsyncSharedSubscription(self._client, self._namespace)
        made.add(*channels)
        return made

    async def put(self, name: str, value: bytes, *, expires: Duration | None = None) -> None:
        """Store a value. An earlier value of this name is replaced.

        Args:
            name: Name of the value.
            value: The value.
            expires: Time from now after which the value is deleted, in seconds or as a timedelta.
                None keeps the value until it is replaced.
        """
        key = self._key("value", name)
        ms = () if expires is None else ("PX", duration_ms(expires, "expires", low_ms=1))
        await self._raw("put", "SET", key, value, *ms)

    async def get(self, name: str) -> bytes | None:
        """Return a value, or None if the value is missing or has expired."""
        found = await self._raw("get", "GET", self._key("value", name))
        return None if found is None else bytes(found)

    async def push(self, name: str, *values: bytes, expires: Duration) -> int:
        """Append values to a list. Return the length of the list.

        Args:
            name: Name of the list.
            values: At least one value.
            expires: Time from now after which the list is deleted, in seconds or as a timedelta. If
                the process dies during this call, the list may stay until the next push.
        """
        ms = duration_ms(expires, "expires", low_ms=1)
        key = self._key("list", name)
        length = int(await self._raw("push", "RPUSH", key, *values))
        await self._raw("push", "PEXPIRE", key, ms)
        return length

    async def pop(self, name: str, max_values: int = 1) -> list[bytes]:
        """Remove up to 1000 of the oldest values of a list, and return them."""
        most = check_int(max_values, "max_values", 1, POP_MAX)
        return list(await self._raw("pop", "LPOP", self._key("list", name), most) or ())

    async def length(self, name: str) -> int:
        """Return the number of values in a list."""
        return int(await self._raw("length", "LLEN", self._key("list", name)))

    async def delete(self, name: str) -> None:
        """Delete a list."""
        await self._raw("delete", "DEL", self._key("list", name))

    async def add(self, name: str, member: bytes, *, expires: Duration | None = None) -> None:
        """Add a member to a set.

        Args:
            name: Name of the set.
            member: The member.
            expires: Time from now after which the set is deleted, in seconds or as a timedelta.
                With None, the expiry of the set is not changed.
        """
        ms = None if expires is None else duration_ms(expires, "expires", low_ms=1)
        await self._raw("add", "SADD", self._key("set", name), member)
        if ms is not None:
            await self._raw("add", "PEXPIRE", self._key("set", name), ms)

    async def discard(self, name: str, member: bytes) -> None:
        """Remove a member from a set. If the set does not have the member, nothing happens."""
        await self._raw("discard", "SREM", self._key("set", name), member)

    async def members(self, name: str) -> set[bytes]:
        """Return the members of a set. If the set does not exist, the result is empty."""
        return set(await self._raw("members", "SMEMBERS", self._key("set", name)))
