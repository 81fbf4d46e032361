from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

import rmq
from rmq.errors import ConfigurationError, EmbeddedError, InvalidValue, TopicNotFound
from rmq.kernel.topic import clock as command_clock
from rmq.testing import Broker, servers
from tests.faults.connections import idle_of
from tests.testing.conftest import BACKENDS


def test_broker_is_empty_and_its_own(broker: Broker) -> None:
    assert broker.client.admin.topics() == []

    broker.client.topic("orders").send(1)
    with Broker(broker.backend) as other:  # type: ignore[arg-type]
        assert other.client.admin.topics() == []
        other.client.topic("orders").send(2)
        assert [one.body for one in other.sent("orders")] == [2]

    assert [one.body for one in broker.sent("orders")] == [1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_brokers_one_after_another_start_no_server_but_the_first(backend: servers.Backend) -> None:
    with Broker(backend):
        pass
    running = servers._servers[backend].server

    for _ in range(20):
        with Broker(backend):
            assert servers._servers[backend].server is running


def test_twenty_brokers_one_after_another_and_sixteen_at_once() -> None:
    for _ in range(20):
        with Broker() as one:
            one.client.topic("t").send(1)
    opened = [Broker().__enter__() for _ in range(16)]
    try:
        with pytest.raises(ConfigurationError, match="16 brokers"):
            Broker().__enter__()
    finally:
        for one in opened:
            one.__exit__()
    assert command_clock.now_us == b""


def test_auto_prefers_the_real_server_and_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_servers", {})  # whatever other tests have started
    with Broker() as broker:
        assert broker.backend == "embedded"
    servers._servers["embedded"].server.stop()

    def missing() -> None:
        raise EmbeddedError("no redis-server")

    monkeypatch.setattr(servers, "_RealServer", missing)
    monkeypatch.setattr(servers, "_servers", {})
    with Broker() as broker:
        assert broker.backend == "fakeredis"
    servers._servers["fakeredis"].server.stop()

    def absent() -> None:
        raise ImportError("No module named 'fakeredis'")

    monkeypatch.setattr(servers, "FakeServer", absent)
    monkeypatch.setattr(servers, "_servers", {})
    with pytest.raises(ConfigurationError, match=r"nothing to run on.*no redis-server.*fakeredis"):
        Broker().__enter__()


def test_a_closed_broker_says_so() -> None:
    broker = Broker()
    with pytest.raises(InvalidValue, match="not open"):
        broker.sent("orders")
    with broker, pytest.raises(InvalidValue, match="open already"):
        broker.__enter__()
    with pytest.raises(InvalidValue, match="clock"):
        _ = broker.clock
    with pytest.raises(InvalidValue, match="backend"):
        Broker("memory").__enter__()  # type: ignore[arg-type]


def test_error_of_a_script_is_reported_and_the_connection_goes_on(broker: Broker) -> None:
    one, many = broker.client.topic("one"), broker.client.topic("many", slots=4)
    one.open()
    many.open()
    broker._open().flush()
    idle = idle_of(broker.client._transport)
    with pytest.raises(rmq.TopicVanished, match=r"rmq:\{one_0\}:slot has vanished"):
        one.send(1)
    with pytest.raises(rmq.TopicVanished, match=r"rmq:\{one_0\}:slot has vanished"):
        one.send("x" * 40_000)  # in a transaction
    with pytest.raises(rmq.TopicVanished, match="many_"):
        many.send_many([rmq.Outgoing(n) for n in range(100)])
    assert broker.client.admin.topics() == []
    assert idle_of(broker.client._transport) == idle  # all replies came: none of them was given up


async def test_async_client_inside_a_loop(broker: Broker) -> None:
    async with broker.async_client() as client:
        topic = client.topic("orders")
        await topic.send({"id": 7}, delay=60)
        broker.assert_sent(topic, {"id": 7}, due_in=60)


async def test_async_with_closes_its_async_clients() -> None:
    async with Broker() as broker:
        client = broker.async_client()
        await client.topic("orders").send(1)
        assert len(broker.sent("orders")) == 1


def test_import_rmq_loads_nothing_of_it() -> None:
    text = "import rmq, sys; print([n for n in sys.modules if 'testing' in n or 'fakeredis' in n])"
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert "rmq.testing" not in found.stdout
    assert "fakeredis" not in found.stdout


def test_nothing_is_left_when_the_process_ends() -> None:
    text = (
        "from rmq.testing import Broker, servers\n"
        "with Broker('embedded') as b: b.client.topic('t').send(1)\n"
        "print(servers._servers['embedded'].server._directory)"
    )
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert found.stderr == ""
    assert found.stdout.strip()
    assert not os.path.exists(found.stdout.strip())


# --- the clock ---------------------------------------------------------------------------------


def test_delay_merge_lease_and_expiry_follow_the_clock(broker: Broker) -> None:
    topic = broker.client.topic("t", retry=rmq.Levels((10,)))
    topic.send("late", delay=60)
    topic.send("a", merge_key="k", time_range=60, merge="collect")
    broker.clock.advance(59)
    assert topic.send("b", merge_key="k", time_range=60, merge="collect").status == "merged"
    with topic.consumer(lease=30) as consumer:
        assert consumer.receive(10) == []

        broker.clock.advance(1)
        assert sorted(str(one.body) for one in consumer.receive(10)) == ["['a', 'b']", "late"]

        broker.clock.advance(timedelta(seconds=29))
        assert consumer.receive(10) == []
        broker.clock.advance(2)  # the leases end, which costs a retry
        assert consumer.receive(10) == []
        broker.clock.advance(10)
        assert [one.attempt for one in consumer.receive(10)] == [2, 2]
    topic.send("short", expires=5)
    broker.clock.advance(6)
    with topic.consumer() as consumer:
        assert "short" not in [one.body for one in consumer.receive(10)]
    assert [one.body for one in broker.dead(topic)] == ["short"]


def test_clock_stands_still_and_does_not_go_back(broker: Broker) -> None:
    before = broker.clock.now
    topic = broker.client.topic("t")
    topic.send(1, delay=0.001)
    time.sleep(0.05)
    with topic.consumer() as consumer:
        assert consumer.receive() == []
    assert broker.clock.now == before
    assert broker.clock.move_to(before + timedelta(hours=1)) == before + timedelta(hours=1)
    with pytest.raises(InvalidValue, match="has passed"):
        broker.clock.move_to(before)
    with pytest.raises(InvalidValue):
        broker.clock.advance(-1)


def test_brokers_share_one_clock_and_the_last_sets_time_free() -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    outer, inner = Broker(now=start), Broker()
    with outer:
        inner.__enter__()
        inner.clock.advance(60)
        assert outer.clock.now == start + timedelta(seconds=60)
        with pytest.raises(InvalidValue, match="another broker"):
            Broker(now=start).__enter__()
    clock = inner.clock
    assert command_clock.now_us != b""  # the inner one is still there, whoever leaves first
    inner.__exit__()
    assert command_clock.now_us == b""
    with pytest.raises(InvalidValue, match="closed"):
        clock.advance(1)


def test_clock_can_be_the_servers() -> None:
    with Broker(clock="server") as broker:
        assert command_clock.now_us == b""
        broker.client.topic("t").send(1, delay=60)
        broker.assert_sent("t", due_in=60)
        with pytest.raises(InvalidValue):
            broker.clock.advance(1)


# --- looks -------------------------------------------------------------------------------------


def test_assert_sent_finds_by_each_field(broker: Broker) -> None:
    topic = broker.client.topic("orders", slots=3)
    topic.send({"id": 1}, priority=900, headers={"trace": "x", "other": "y"})
    topic.send({"id": 2}, delay=60)
    topic.send({"id": 3}, merge_key="user:1", time_range=5)

    assert [one.body for one in broker.assert_sent(topic, {"id": 1}, priority=900)] == [{"id": 1}]
    broker.assert_sent("orders", lambda body: body["id"] > 1, count=2)
    broker.assert_sent("orders", headers={"trace": "x"}, due_in=0, count=1)
    broker.assert_sent("orders", due_in=timedelta(minutes=1), count=1)
    broker.assert_sent("orders", due_in=50, within=10, count=1)
    broker.assert_sent("orders", merge_key="user:1", due_in=5, count=1)
    broker.assert_sent("orders", count=3)
    for wrong in (
        {"body": {"id": 9}}, {"count": 2}, {"priority": 901}, {"due_in": 30},
        {"headers": {"trace": "z"}}, {"merge_key": "user:2"}, {"body": None},
    ):  # fmt: skip
        with pytest.raises(AssertionError):
            broker.assert_sent("orders", **wrong)  # type: ignore[arg-type]


def test_failed_assertion_shows_what_is_there(broker: Broker) -> None:
    topic = broker.client.topic("orders")
    topic.send({"id": 1}, priority=900, headers={"a": "b"})
    topic.send({"id": 2}, delay=60)
    with topic.consumer() as consumer:
        consumer.receive()[0].reject("no good")

    with pytest.raises(AssertionError) as caught:
        broker.assert_sent("orders", {"id": 1}, due_in=5)

    assert str(caught.value) == (
        "expected a message with body={'id': 1}, due_in=5; found 0; there is:\n"
        "topic 'orders' (0 settled):\n"
        "  waiting:\n"
        "    {'id': 2}, due in 60 s\n"
        "  dead:\n"
        "    {'id': 1}, priority 900, headers {'a': 'b'}, delivered 1 times, rejected: no good"
    )
    with pytest.raises(AssertionError, match="found 2"):
        broker.assert_empty("orders")
    with pytest.raises(AssertionError, match="topic 'orders'"):
        broker.assert_empty()


def test_assert_empty_sees_what_is_in_flight(broker: Broker) -> None:
    topic = broker.client.topic("orders")
    topic.send(1)
    with topic.consumer() as consumer:
        one = consumer.receive()[0]
        with pytest.raises(AssertionError, match="in flight"):
            broker.assert_empty()
        one.ack()
    broker.assert_empty()
    broker.assert_empty("orders")


def test_unknown_topic_is_an_error_and_an_unused_one_is_empty(broker: Broker) -> None:
    used = broker.client.topic("orders")
    broker.assert_empty("orders")
    assert broker.sent(used) == []
    for look in (broker.sent, broker.dead, broker.assert_sent, broker.assert_empty):
        with pytest.raises(TopicNotFound, match="'orders'"):
            look("ordres")
    with pytest.raises(AssertionError, match="nothing"):
        broker.assert_sent("orders")
