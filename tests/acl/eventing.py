"""The steps of events: of consumers that suspend messages, and of programs that signal."""

from __future__ import annotations

from typing import Any

import rmq
from rmq.kernel.core.keys import EventKeys, SlotKeys
from rmq.kernel.events import scripts
from rmq.kernel.events.flows import deliver_pending, register
from tests.acl.batching import check
from tests.acl.registry import of
from tests.acl.scene import Scene


def suspend(s: Scene, api: Any) -> None:
    """Send a message, and let it wait for an event with the name of the scene."""
    s.full.topic(s.name).send(1)
    with api.topic(s.name).consumer() as consumer:
        (d,) = consumer.receive()
        with d:
            raise rmq.WaitFor(s.name, 3600)


@of("consumer", "worker", "server")
def suspends_a_message_and_continues(s: Scene) -> None:
    suspend(s, s.api)
    check(s, s.full.signal(s.name, 1, keep=0.1).delivered == 1)
    with s.api.topic(s.name).consumer() as consumer:
        (d,) = consumer.receive()
        check(s, d.event is not None and d.event.body == 1)
        d.ack()


@of("consumer", "worker")
def waits_for_an_event_that_came_before(s: Scene) -> None:
    s.full.signal(s.name, 1)
    suspend(s, s.api)
    check(s, s.full.admin.stats(s.name)["suspended"] == 0)
    s.raw.delete(EventKeys("rmq", s.name.encode()).event)


@of("producer", "server")
def signals_an_event(s: Scene) -> None:
    suspend(s, s.full)
    with rmq.Client(s.url, retry_for=0) as client:
        check(s, client.signal(s.name, 1, keep=0.1).delivered == 1)


@of("server")
def delivers_the_events_of_others(s: Scene) -> None:
    suspend(s, s.full)
    keys = EventKeys("rmq", s.name.encode())

    def stored_only() -> Any:
        return (yield scripts.event_signal(keys, b"", 60_000, 1))

    s.full._transport.run(stored_only())
    s.raw.zadd(keys.undelivered, {s.name: 1})  # its process has died some seconds ago
    with rmq.Client(s.url, retry_for=0) as client:
        check(s, client._transport.run(deliver_pending("rmq")) == 1)


@of("server")
def registers_the_messages_of_others(s: Scene) -> None:
    suspend(s, s.full)
    slot, keys = SlotKeys("rmq", s.name, 0), EventKeys("rmq", s.name.encode())
    (member,) = s.raw.zrange(slot.waits, 0, -1)
    s.raw.zadd(slot.waits, {member: 1})  # its registration is due
    s.raw.delete(keys.waiters)
    with rmq.Client(s.url, retry_for=0) as client:
        client._transport.run(register("rmq", slot))
    check(s, s.full.signal(s.name, 1, keep=0.1).delivered == 1)
