# Generated from rmq/client/shared_data.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.client.shared_data`."""

from __future__ import annotations

from functools import partial

from rmq.client.client import parts_of
from rmq.client.client_blocking import Client
from rmq.client.shared_data import POP_MAX, ChannelSubscription, Published, receive_flow
from rmq.kernel.core.keys import check_name, shared_key
from rmq.kernel.core.validation import Duration, check_int, duration_ms


class SharedSubscription:
    """A subscription to channels of shared data. It has its own connection.

    One thread may receive. Any thread may call the other methods.
    """

    def __init__(self, client: Client, namespace: str) -> None:
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

    def receive(self, wait: Duration = 0) -> list[Published]:
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
        return self._transport.run(receive_flow(self._subscription, seconds))

    def close(self) -> None:
        """End the subscription. A call of `receive` that waits also ends."""
        self._subscription.is_closed = True
        if self._subscription.is_receiving:
            self._subscription.wake()
        else:
            self._transport.unsubscribe(self._subscription)


class SharedData:
    """Data that the programs of a namespace share, outside of topics.

    Published data reaches only programs that are subscribed at this moment. Values of a list are
    popped once, in the order in which they were pushed. If a reply of Redis is lost, the values of
    a push may be added twice, and the values of a pop are lost.

    If data must not be lost, use a topic. On a Redis Cluster, each name may be on another server.

    Args:
        client: Client whose Redis and prefix are used.
        namespace: Name of the program or connector: 1 to 128 characters of A-Z a-z 0-9 . _ -
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = check_name(namespace, "namespace")
        self._prefix = parts_of(client).prefix
        self._raw = client._transport.raw_command

    def _key(self, kind: str, name: str) -> bytes:
        return shared_key(self._prefix, self._namespace, kind, name)

    def publish(self, channel: str, data: bytes) -> int:
        """Publish data on a channel.

        Returns:
            Number of subscriptions that got the data. On a Redis Cluster, only the subscriptions on
                one of its servers are counted.
        """
        return int(self._raw("publish", "PUBLISH", self._key("channel", channel), data))

    def subscribe(self, *channels: str) -> SharedSubscription:
        """Return a subscription to these channels. It begins with its first `receive`."""
        made = SharedSubscription(self._client, self._namespace)
        made.add(*channels)
        return made

    def put(self, name: str, value: bytes, *, expires: Duration | None = None) -> None:
        """Store a value. An earlier value of this name is replaced.

        Args:
            name: Name of the value.
            value: The value.
            expires: Time from now after which the value is deleted, in seconds or as a timedelta.
                None keeps the value until it is replaced.
        """
        key = self._key("value", name)
        ms = () if expires is None else ("PX", duration_ms(expires, "expires", low_ms=1))
        self._raw("put", "SET", key, value, *ms)

    def get(self, name: str) -> bytes | None:
        """Return a value, or None if the value is missing or has expired."""
        found = self._raw("get", "GET", self._key("value", name))
        return None if found is None else bytes(found)

    def push(self, name: str, *values: bytes, expires: Duration) -> int:
        """Append values to a list. Return the length of the list.

        Args:
            name: Name of the list.
            values: At least one value.
            expires: Time from now after which the list is deleted, in seconds or as a timedelta. If
                the process dies during this call, the list may stay until the next push.
        """
        ms = duration_ms(expires, "expires", low_ms=1)
        key = self._key("list", name)
        length = int(self._raw("push", "RPUSH", key, *values))
        self._raw("push", "PEXPIRE", key, ms)
        return length

    def pop(self, name: str, max_values: int = 1) -> list[bytes]:
        """Remove up to 1000 of the oldest values of a list, and return them."""
        most = check_int(max_values, "max_values", 1, POP_MAX)
        return list(self._raw("pop", "LPOP", self._key("list", name), most) or ())

    def length(self, name: str) -> int:
        """Return the number of values in a list."""
        return int(self._raw("length", "LLEN", self._key("list", name)))

    def delete(self, name: str) -> None:
        """Delete a list."""
        self._raw("delete", "DEL", self._key("list", name))

    def add(self, name: str, member: bytes, *, expires: Duration | None = None) -> None:
        """Add a member to a set.

        Args:
            name: Name of the set.
            member: The member.
            expires: Time from now after which the set is deleted, in seconds or as a timedelta.
                With None, the expiry of the set is not changed.
        """
        ms = None if expires is None else duration_ms(expires, "expires", low_ms=1)
        self._raw("add", "SADD", self._key("set", name), member)
        if ms is not None:
            self._raw("add", "PEXPIRE", self._key("set", name), ms)

    def discard(self, name: str, member: bytes) -> None:
        """Remove a member from a set. If the set does not have the member, nothing happens."""
        self._raw("discard", "SREM", self._key("set", name), member)

    def members(self, name: str) -> set[bytes]:
        """Return the members of a set. If the set does not exist, the result is empty."""
        return set(self._raw("members", "SMEMBERS", self._key("set", name)))
