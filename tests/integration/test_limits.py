"""Limits of a topic on clients of both kinds; the manual clock alone gives tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import rmq
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.integration.handling import Scene
from tests.integration.test_topic_change import send_each, slots_of
from tests.patience import wait_for
from tests.servers import Server


def taken(consumer: Any, count: int = 100) -> list[Any]:
    return list(consumer.receive(count, wait=0))


def test_all_consumers_together_get_what_the_rate_allows(
    api: Any, server: Server, name: str, clock: Clock
) -> None:
    topic = api.topic(name, limit=rmq.Rate(10, per=1, burst=5))
    topic.send_many([rmq.Outgoing(n) for n in range(40)])
    with topic.consumer() as one, rmq.Client(server.url) as client:
        other = client.topic(name).consumer()
        got: list[int] = []
        for tenth in range(20):
            batch = [*taken(one), *taken(other)]
            got.append(len(batch))
            assert sum(got) == 5 + tenth
            clock.advance(0.1)
        clock.advance(60)
        assert len(taken(one)) == 5
        other.close()


def test_slots_keep_the_rate_of_the_topic(
    api: Any, server: Server, name: str, clock: Clock
) -> None:
    topic = api.topic(name, slots=4, limit="rate:8:1s:4")
    topic.open()
    assert slots_of(server, name, "limit") == {b"8:4000:1:0"}
    send_each(topic, 100)
    with topic.consumer() as consumer:
        assert len(taken(consumer)) == 4
        total = 0
        for _ in range(16):
            clock.advance(0.125)
            total += len(taken(consumer))
        assert total == 16


@pytest.mark.parametrize("limit", ["rate:1:1h", "concurrency:1"])
@both_clients
def test_limit_is_changed_while_consumers_sleep(
    api: Any, server: Server, name: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing but the wake-up ends its sleep.
    monkeypatch.setattr("rmq.kernel.consumer.receive.POLL_S", 3600.0)
    topic = api.topic(name, limit=limit)
    topic.send(1)
    topic.send(2)
    with topic.consumer() as consumer, rmq.Client(server.url) as another:
        (first,) = consumer.receive(10, wait=5)
        change = threading.Timer(0.3, lambda: another.admin.topic_set(name, limit=None))
        change.start()
        (second,) = consumer.receive(10, wait=30)
        change.join()
        assert consumer.ack([first, second]) == []
    assert str(api.admin.settings(name).limit) == "off"


@both_clients
def test_concurrency_counts_all_consumers_and_an_ack_wakes_the_sleeper(
    api: Any, server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.kernel.consumer.receive.POLL_S", 3600.0)
    topic = api.topic(name, limit=rmq.Concurrency(2))
    topic.send_many([rmq.Outgoing(n) for n in range(5)])
    with topic.consumer() as consumer, rmq.Client(server.url) as client:
        other = client.topic(name).consumer()
        held = other.receive(10, wait=5)
        assert [one.body for one in held] == [0, 1]
        counts = api.admin.stats(name)
        assert (counts["in_flight"], counts["held"]) == (2, 3)

        settle = threading.Timer(0.3, held[0].ack)
        settle.start()
        (mine,) = consumer.receive(10, wait=20)
        settle.join()

        assert mine.body == 2
        assert taken(consumer) == []
        mine.ack()
        other.close()


def test_workers_stay_within_the_concurrency_and_do_all_the_work(scene: Scene, name: str) -> None:
    topic = scene.api.topic(name, limit=rmq.Concurrency(2))
    running: list[int] = []
    most, done, guard = 0, 0, threading.Lock()

    def work(d: Any) -> Any:
        nonlocal most, done
        with guard:
            running.append(1)
            most = max(most, len(running))
        yield 0.01
        with guard:
            running.pop()
            done += 1

    scene.handle(topic, work, concurrency=8)
    topic.send_many([rmq.Outgoing(n) for n in range(30)])
    with scene.working():
        wait_for(lambda: done == 30)

    assert most == 2


def test_setting_is_compared_and_refused_where_slots_have_no_share(api: Any, name: str) -> None:
    api.topic(name, slots=3, limit=[rmq.Rate(5), rmq.Concurrency(3)]).open()

    api.topic(name, limit="concurrency:3,rate:5:1s").open()
    with pytest.raises(rmq.SettingsMismatch, match=r"rate:5:1s,concurrency:3 for limit in Redis"):
        api.topic(name, limit=rmq.Rate(6)).open()
    with pytest.raises(rmq.InvalidValue, match="less than the 3 slots"):
        api.admin.topic_set(name, limit=rmq.Concurrency(2))
    with pytest.raises(rmq.InvalidValue, match="less than the 4 slots"):
        api.topic(f"{name}-4", slots=4, limit=rmq.Concurrency(3)).open()
    assert str(api.admin.settings(name).limit) == "rate:5:1s,concurrency:3"


@pytest.mark.parametrize(("limit", "first"), [(rmq.Rate(3), 3), (rmq.Concurrency(4), 4), (None, 9)])
def test_query_takes_what_the_limit_allows(
    api: Any, name: str, limit: Callable[..., Any], first: int, clock: Clock
) -> None:
    topic = api.topic(name, limit=limit)
    topic.send_many([rmq.Outgoing(n) for n in range(9)])
    query = topic.query("a" * 32, "me")

    end = query.take({})
    assert end == {0: first}
    query.settle(end, end)
    clock.advance(0.5)

    more = {rmq.Rate(3): 1, rmq.Concurrency(4): 4, None: 0}[limit]
    assert query.take(end) == {0: first + more}
    query.close()
