"""Limits for each key on clients of both kinds; the manual clock alone gives tokens."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

import rmq
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.integration.handling import Scene
from tests.patience import wait_for
from tests.servers import Server


def of(tenant: str | None, body: Any = None) -> rmq.Outgoing:
    return rmq.Outgoing(body, headers=None if tenant is None else {"tenant": tenant})


def tenants(batch: list[Any]) -> list[str | None]:
    return [one.headers.get("tenant") for one in batch]


def test_one_message_of_a_tenant_is_in_flight_whoever_has_it(
    api: Any, server: Server, name: str
) -> None:
    topic = api.topic(name, limit=rmq.Concurrency(1, key="tenant"))
    topic.send_many([of("a", 1), of("a", 2), of("b", 3), of(None, 4), of("a", 5), of(None, 6)])
    with topic.consumer() as one, rmq.Client(server.url) as client:
        other = client.topic(name).consumer()
        first = [*one.receive(1, wait=0), *other.receive(1, wait=0)]
        rest = one.receive(10, wait=0)

        assert [d.body for d in [*first, *rest]] == [1, 3, 4, 6]
        assert [d.body for d in other.receive(10, wait=0)] == []
        assert api.admin.stats(name)["held"] == 2
        first[0].ack()
        (second,) = other.receive(10, wait=5)
        assert second.body == 2
        other.close()


def test_rate_of_a_tenant_is_its_own(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name, limit="rate:2:1s:key=tenant")
    topic.send_many([of(tenant) for tenant in "aaaabbbb"])
    with topic.consumer() as consumer:
        assert tenants(consumer.receive(10, wait=0)) == ["a", "a", "b", "b"]
        assert consumer.receive(10, wait=0) == []
        clock.advance(0.5)
        assert tenants(consumer.receive(10, wait=0)) == ["a", "b"]
        clock.advance(0.499)
        assert consumer.receive(10, wait=0) == []
        clock.advance(0.001)
        assert tenants(consumer.receive(10, wait=0)) == ["a", "b"]


@pytest.mark.parametrize("wakes", ["ack", "send"])
@both_clients
def test_sleeper_is_woken_by_an_ack_and_by_another_tenant(
    api: Any, server: Server, name: str, wakes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.kernel.consumer.receive.POLL_S", 3600.0)
    topic = api.topic(name, limit=rmq.Concurrency(1, key="tenant"))
    topic.send_many([of("a"), of("a")])
    with topic.consumer() as consumer, rmq.Client(server.url) as another:
        same = another.topic(name)
        holder = same.consumer()
        (held,) = holder.receive(10, wait=5)
        send_b = lambda: same.send(None, headers={"tenant": "b"})  # noqa: E731
        later = threading.Timer(0.3, held.ack if wakes == "ack" else send_b)
        later.start()
        batch = consumer.receive(10, wait=20)
        later.join()
        assert tenants(batch) == ["a" if wakes == "ack" else "b"]
        holder.close()


def test_workers_do_all_the_work_and_one_message_of_a_tenant_at_a_time(
    scene: Scene, name: str
) -> None:
    topic = scene.api.topic(name, limit=rmq.Concurrency(1, key="tenant"))
    running: Counter[str] = Counter()
    order: dict[str, list[int]] = {tenant: [] for tenant in "abc"}
    most, together, guard = 0, 0, threading.Lock()

    def work(d: Any) -> Any:
        nonlocal most, together
        tenant = d.headers["tenant"]
        with guard:
            running[tenant] += 1
            most = max(most, running[tenant])
            together = max(together, sum(running.values()))
        yield 0.01
        with guard:
            running[tenant] -= 1
            order[tenant].append(d.body)

    scene.handle(topic, work, concurrency=8)
    topic.send_many([of("abc"[n % 3], n) for n in range(45)])
    with scene.working():
        wait_for(lambda: sum(map(len, order.values())) == 45)

    assert most == 1
    assert together > 1, "tenants do not wait for each other"
    assert all(numbers == sorted(numbers) for numbers in order.values())


def test_setting_is_compared_changed_and_refused(api: Any, name: str) -> None:
    text = "concurrency:6,rate:5:1s:key=tenant,concurrency:3:key=tenant"
    api.topic(name, slots=3, limit=text).open()

    assert str(api.admin.settings(name).limit) == text
    with pytest.raises(rmq.SettingsMismatch, match=r"key=tenant for limit in Redis"):
        api.topic(name, limit=rmq.Concurrency(3, key="user")).open()
    with pytest.raises(rmq.InvalidValue, match="concurrency:2:key=tenant is less than the 3 slots"):
        api.admin.topic_set(name, limit=rmq.Concurrency(2, key="tenant"))
    api.admin.topic_set(name, limit=rmq.Rate(9, key="user"))
    assert str(api.admin.settings(name).limit) == "rate:9:1s:key=user"
