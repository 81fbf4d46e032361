"""The transport of kombu: queues are topics, priorities and times are RMQ's."""

from __future__ import annotations

import itertools
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import kombu
import pytest
from kombu.asynchronous.hub import Hub

import rmq
from rmq.integrations.celery import inbox as inboxes
from tests.patience import PATIENCE_S, wait_for


def admin(connection: Any) -> Any:
    return connection.transport.rmq_client.admin


def counts(connection: Any, name: str, queue: str = "q") -> dict[str, int]:
    found: dict[str, int] = admin(connection).stats(f"{name}.{queue}")
    return found


def publish(connection: Any, body: Any, queue: str = "q", **options: Any) -> None:
    with connection.channel() as channel:
        kombu.Producer(channel, serializer="json").publish(
            body, routing_key=queue, declare=[kombu.Queue(queue)], **options
        )


class Inbox:
    """A consumer of queues that keeps the messages that it got."""

    def __init__(self, connection: Any, *queues: Any, ack: bool = True, **options: Any) -> None:
        self._connection = connection
        self.got: list[Any] = []
        self.messages: list[Any] = []

        def receive(body: Any, message: Any) -> None:
            self.got.append(body)
            self.messages.append(message)
            if ack:
                message.ack()

        wanted = [
            queue if isinstance(queue, kombu.Queue) else kombu.Queue(queue) for queue in queues
        ]
        self.consumer = kombu.Consumer(
            connection.channel(), wanted, callbacks=[receive], accept=["json", "pickle"], **options
        )
        self.consumer.consume()

    def wait(self, count: int, within: float = PATIENCE_S) -> list[Any]:
        """Receive until there are so many messages, or the time is over."""
        until = time.monotonic() + within
        while len(self.got) < count and time.monotonic() < until:
            try:
                self._connection.drain_events(timeout=max(0.0, until - time.monotonic()))
            except TimeoutError:
                break
        return self.got


def test_a_message_is_settled_by_its_ack(connect, name):
    connection = connect()
    publish(connection, {"a": 1})

    assert Inbox(connection, "q").wait(1) == [{"a": 1}]
    found = counts(connection, name)
    assert (found["settled"], found["in_flight"], found["records"]) == (1, 0, 0)


def test_a_rejected_message_is_a_dead_letter_that_people_can_read(connect, name):
    connection = connect()
    headers = {"task": "shop.charge", "id": "1"}
    publish(connection, [[7], {"cents": 5}, {}], headers=headers)
    inbox = Inbox(connection, "q", ack=False)
    inbox.wait(1)
    inbox.messages[0].reject()

    (letter,) = admin(connection).peek(f"{name}.q", queue="dead")
    assert (letter.type, letter.body["body"]) == ("shop.charge", [[7], {"cents": 5}, {}])
    assert letter.failure.error == inboxes.REJECTED


def test_a_requeued_message_comes_again_and_costs_a_retry(connect, name):
    connection = connect()
    publish(connection, 1)
    inbox = Inbox(connection, "q", ack=False)
    inbox.wait(1)
    inbox.messages[0].requeue()

    assert inbox.wait(2) == [1, 1]
    assert [each.delivery_info["redelivered"] for each in inbox.messages] == [False, True]
    inbox.messages[1].ack()


def test_pickles_are_stored_as_hex_and_unpickled_by_the_consumer_only(connect, name):
    connection = connect()
    publish(connection, {"a": 1}, serializer="pickle")

    (message,) = admin(connection).peek(f"{name}.q", queue="waiting")
    assert message.body["hex"].startswith("80")
    assert Inbox(connection, "q").wait(1) == [{"a": 1}]


def test_json_that_only_python_reads_arrives_unchanged(connect):
    connection = connect()
    publish(connection, [float("inf"), 10**30, "\ud800"])

    assert Inbox(connection, "q").wait(1) == [[float("inf"), 10**30, "\ud800"]]


@pytest.mark.parametrize(("order", "expected"), [("amqp", [9, 5, 3, 0]), ("kombu", [0, 3, 5, 9])])
def test_priorities_are_strict(connect, order, expected):
    connection = connect(priorities=order)
    for priority in (3, 9, 0, 5):
        publish(connection, priority, priority=priority)

    assert Inbox(connection, "q").wait(4) == expected


def test_an_unknown_order_of_priorities_is_refused(connect):
    with pytest.raises(rmq.ConfigurationError, match="priorities"):
        connect(priorities="random").connect()


def test_a_task_with_an_eta_waits_in_redis_and_comes_on_time(connect, name):
    connection = connect()
    inbox = Inbox(connection, "q", prefetch_count=2)
    due = datetime.now(UTC) + timedelta(seconds=1)
    for number in range(4):
        publish(connection, number, headers={"task": "t", "eta": due.isoformat()}, priority=number)
    publish(connection, "now")

    assert inbox.wait(1) == ["now"]
    found = counts(connection, name)
    assert (found["later"], found["in_flight"]) == (4, 0)
    began = time.time()
    inbox.wait(5)
    assert sorted(inbox.got[1:]) == [0, 1, 2, 3]
    assert time.time() >= due.timestamp() > began


def test_an_expired_task_is_dropped(connect, name):
    connection = connect()
    soon = datetime.now(UTC) + timedelta(seconds=0.2)
    publish(connection, 1, headers={"task": "t", "expires": soon.isoformat()})
    publish(connection, 2, expiration=0.2)
    publish(connection, 3)
    time.sleep(0.3)

    assert Inbox(connection, "q").wait(1) == [3]
    assert counts(connection, name)["expired"] == 2


def test_bindings_are_known_to_other_connections(connect, name):
    here, there = connect(), connect()
    direct = kombu.Exchange(f"{name}d", type="direct")
    topic = kombu.Exchange(f"{name}t", type="topic")
    inbox = Inbox(
        here,
        kombu.Queue("direct", exchange=direct, routing_key="red"),
        kombu.Queue("stars", exchange=topic, routing_key="stock.*"),
    )
    with there.channel() as channel:
        producer = kombu.Producer(channel, serializer="json")
        for exchange, key in ((direct, "red"), (direct, "blue"), (topic, "stock.us"), (topic, "x")):
            producer.publish(key, exchange=exchange, routing_key=key, declare=[exchange])

    assert sorted(inbox.wait(2)) == ["red", "stock.us"]
    assert inbox.wait(3, within=0.1) == inbox.got[:2]


def test_a_fanout_reaches_all_consumers_and_the_durable_queues(connect, name):
    connections = [connect(), connect()]
    exchange = kombu.Exchange(f"{name}f", type="fanout")
    inboxes = [
        Inbox(each, kombu.Queue(f"f{n}", exchange=exchange, auto_delete=True), no_ack=True)
        for n, each in enumerate(connections)
    ]
    kombu.Queue("kept", exchange=exchange)(connections[0].channel()).declare()
    client = connections[0].transport.rmq_client
    channel = f"rmq:shared:celery:channel:fanout:{name}f"
    wait_for(lambda: client._transport.raw_command("n", "PUBSUB", "NUMSUB", channel)[1] == 2)
    with connect().channel() as publisher:
        kombu.Producer(publisher, serializer="json").publish(
            "all", exchange=exchange, declare=[exchange]
        )

    assert [inbox.wait(1) for inbox in inboxes] == [["all"], ["all"]]
    assert counts(connections[0], name, "kept")["priority"] == 1


def test_a_reply_queue_is_a_list_that_expires(connect, name, raw):
    here, there = connect(), connect()
    queue = kombu.Queue(f"reply-{name}", durable=False, auto_delete=True, expires=10)
    queue(here.channel()).declare()
    with there.channel() as channel:
        kombu.Producer(channel, serializer="json").publish("early", routing_key=queue.name)
    inbox = Inbox(here, queue, no_ack=True)

    assert inbox.wait(1) == ["early"]
    with there.channel() as channel:
        kombu.Producer(channel, serializer="json").publish("late", routing_key=queue.name)
    assert inbox.wait(2) == ["early", "late"]
    assert f"{name}.reply-{name}" not in admin(here).topics()
    assert 0 < raw.pttl(f"rmq:shared:celery:set:list:reply-{name}") <= 10_000


def test_a_closed_connection_gives_back_what_it_held(connect, name):
    connection, other = connect(), connect()
    for number in range(4):
        publish(connection, number)
    inbox = Inbox(connection, "q", ack=False)
    inbox.wait(4)
    assert counts(other, name)["in_flight"] == 4
    connection.close()

    assert Inbox(other, "q").wait(4) == [0, 1, 2, 3]


def test_a_child_of_the_process_gives_nothing_back(connect, name):
    connection = connect()
    publish(connection, 1)
    inbox = Inbox(connection, "q", ack=False)
    inbox.wait(1)
    if (child := os.fork()) == 0:
        connection.close()
        os._exit(0)
    os.waitpid(child, 0)

    assert counts(connection, name)["in_flight"] == 1
    inbox.messages[0].ack()


def test_the_prefetch_limit_counts_all_queues_of_a_channel(connect, name):
    connection = connect()
    for queue in ("a", "b"):
        for number in range(3):
            publish(connection, number, queue)
    inbox = Inbox(connection, "a", "b", ack=False, prefetch_count=2)
    inbox.wait(2)
    assert len(inbox.wait(3, within=0.2)) == 2
    inbox.messages[0].ack()
    inbox.wait(3)

    held = sum(counts(connection, name, queue)["in_flight"] for queue in ("a", "b"))
    assert (len(inbox.got), held) == (3, 2)


@pytest.mark.parametrize("renews", [True, pytest.param(False, id="control: no renewal")])
def test_a_callback_that_blocks_loses_no_lease(connect, name, renews, monkeypatch):
    if not renews:
        monkeypatch.setattr(inboxes, "RENEW_PARTS", 0.01)
    connection, other = connect(lease=1), connect(lease=1)
    publish(connection, 1)
    inbox = Inbox(connection, "q", ack=False)
    inbox.wait(1)
    watcher = Inbox(other, "q")

    assert watcher.wait(1, within=2.5 if renews else PATIENCE_S) == ([] if renews else [1])
    inbox.messages[0].ack()


def test_an_ack_at_the_time_of_a_renewal_settles(connect, name, monkeypatch, caplog):
    extend, leases = rmq.Consumer.extend, itertools.cycle((10, 20))
    # Each renewal changes the receipts, and they come one after another.
    monkeypatch.setattr(rmq.Consumer, "extend", lambda me, all, _: extend(me, all, next(leases)))
    monkeypatch.setattr(inboxes, "RENEW_PARTS", 10_000)
    connection = connect(lease=10)
    for number in range(90):
        publish(connection, number)
    inbox = Inbox(connection, "q", ack=False)
    inbox.wait(90)
    for message in inbox.messages:
        message.ack()

    found = counts(connection, name)
    assert (found["settled"], found["in_flight"]) == (90, 0)
    assert "had ended before its ack" not in caplog.text


def test_the_event_loop_is_woken_and_does_not_poll(connect, name, raw):
    connection, hub = connect(), Hub()
    inbox = Inbox(connection, "q")
    connection.register_with_event_loop(hub)
    inbox_thread = threading.Timer(0.2, publish, (connect(), "woken"))
    try:
        time.sleep(0.2)  # the first calls of the consumer
        calls = sum(stat["calls"] for stat in raw.info("commandstats").values())
        for _ in range(3):
            hub.timer.call_after(0.2, lambda: None)
            hub.run_once()
        idle = sum(stat["calls"] for stat in raw.info("commandstats").values()) - calls
        inbox_thread.start()
        until = time.monotonic() + PATIENCE_S
        while not inbox.got and time.monotonic() < until:
            hub.timer.call_after(1.0, lambda: None)
            hub.run_once()
        assert inbox.got == ["woken"]
        assert idle <= 12  # a look each second, and INFO itself
    finally:
        inbox_thread.join()
        connection.transport.unregister_from_event_loop(connection.connection, hub)
        hub.close()


def test_a_deleted_topic_is_made_again(connect, name):
    connection = connect()
    publish(connection, 1)
    inbox = Inbox(connection, "q")
    inbox.wait(1)
    admin(connection).topic_delete(f"{name}.q", force=True)
    publish(connection, 2)

    assert inbox.wait(2) == [1, 2]


def test_the_ack_of_a_message_whose_topic_was_deleted_does_nothing(connect, name, caplog):
    connection = connect()
    publish(connection, 1)
    inbox = Inbox(connection, "q", ack=False, prefetch_count=1)
    inbox.wait(1)
    admin(connection).topic_delete(f"{name}.q", force=True)
    inbox.messages[0].ack()

    publish(connection, 2)
    assert inbox.wait(2) == [1, 2]  # the message has left room
    assert f"{{{name}.q_0}}" in caplog.text
    inbox.messages[1].ack()


def test_a_queue_is_purged_counted_and_deleted(connect, name):
    connection = connect()
    for number in range(3):
        publish(connection, number)
    channel = connection.channel()
    queue = kombu.Queue("q")(channel)

    assert queue.queue_declare(passive=True).message_count == 3
    assert queue.purge() == 3
    assert queue.get() is None
    queue.delete()
    assert admin(connection).topics().count(f"{name}.q") == 0
    with pytest.raises(connection.channel_errors):
        queue.queue_declare(passive=True)


def test_one_message_may_be_asked_for(connect, name):
    connection = connect()
    for number in range(3):
        publish(connection, number)
    with connection.channel() as channel:
        queue = kombu.Queue("q")(channel)
        assert queue.get(no_ack=True).payload == 0
        queue.get().ack()
        assert queue.get().payload == 2

    assert counts(connection, name)["priority"] == 1  # the channel gave it back
