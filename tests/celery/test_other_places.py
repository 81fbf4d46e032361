"""The transport on a Redis Cluster and behind Sentinel: tasks, replies, fanout, remote control."""

from __future__ import annotations

import kombu
import pytest

from tests.adapters import place
from tests.celery.test_transport import Inbox, publish
from tests.celery.workers import Workers
from tests.patience import PATIENCE_S, wait_for

__all__ = ["place"]  # a fixture
pytestmark = pytest.mark.slow


def test_tasks_replies_and_fanouts_arrive(place, connect, name):
    here, there = connect(place), connect(place)
    exchange = kombu.Exchange(f"{name}f", type="fanout")
    reply = kombu.Queue(f"{name}r", expires=10, durable=False, auto_delete=True)
    fanout = kombu.Queue(f"{name}q", exchange=exchange, auto_delete=True)
    for number in range(10):
        publish(there, number, f"q{number % 3}", priority=number)
    tasks = Inbox(here, "q0", "q1", "q2")
    assert sorted(tasks.wait(10)) == list(range(10))

    inbox = Inbox(here, reply, fanout, no_ack=True)
    publish(there, "reply", reply.name)
    assert inbox.wait(1) == ["reply"]
    with there.channel() as channel:
        producer = kombu.Producer(channel, serializer="json")

        def arrives() -> bool:  # the subscription to the fanout begins a moment later
            producer.publish("all", exchange=exchange, declare=[exchange])
            return "all" in inbox.wait(len(inbox.got) + 1, within=0.5)

        wait_for(arrives, "the fanout does not arrive")
    assert set(inbox.got) == {"reply", "all"}


def test_a_worker_runs_tasks_and_answers(place, server, name):
    workers = Workers(server.url, name, broker=place)
    try:
        workers.start("-P", "threads")
        workers.app.tasks["shop.note"].delay(1)
        workers.app.tasks["shop.again"].delay(2)
        replies = workers.app.control.inspect(timeout=PATIENCE_S, limit=1).ping()
        wait_for(lambda: workers.count("ran", 2) == 3, "the retries do not come")

        assert list(replies.values()) == [{"ok": "pong"}]
        assert workers.count("ran", 1) == 1
    finally:
        workers.stop()
