"""Expiry, audits, queries and records of workers, each where nobody else does it."""

from __future__ import annotations

import logging
import time

import pytest

import rmq
from rmq.features.audit import service as audit_service
from rmq.features.audit.service import Audits
from rmq.features.dead_letters import service as dead_letters_service
from rmq.features.dead_letters.service import Expiry
from rmq.features.follow_ups.service import FollowUps
from rmq.features.spark import service as queries_service
from rmq.features.spark.service import Queries
from rmq.features.workers import flows
from rmq.features.workers.service import WorkerRecords
from rmq.http_framework.survey import Survey
from rmq.kernel.core.keys import worker_key, workers_key
from rmq.server import metrics
from tests.conftest import Clock
from tests.server.running import get, serving, until
from tests.servers import Server as Redis


class Look:
    """A survey, and the service that reads it."""

    def __init__(self, client: rmq.Client, prefix: str, service: type) -> None:
        self._survey = Survey(client._transport, prefix)
        self.service = service(client._transport, self._survey)

    def __call__(self) -> int:
        self._survey.run_once()
        return int(self.service.run_once())


def calls(server: Redis) -> int:
    with server.raw() as raw:
        return int(raw.info("commandstats")["cmdstat_evalsha"]["calls"])  # type: ignore[index]


@pytest.mark.parametrize(("on_expire", "place"), [("drop", "expired"), ("dead", "dead_lettered")])
def test_messages_expire_in_a_topic_that_nobody_takes_from(
    on_expire: str, place: str, client: rmq.Client, prefix: str, clock: Clock
) -> None:
    topic = client.topic("orders", on_expire=on_expire, slots=2)  # type: ignore[arg-type]
    for n in range(20):
        topic.send(n, expires=60)
    topic.send("stays")
    look = Look(client, prefix, Expiry)
    assert look() == 0
    clock.advance(61)
    assert client.admin.stats("orders")["priority"] == 21, "nobody does it by itself"

    assert look() == 20

    stats = client.admin.stats("orders")
    assert (stats["priority"], stats[place]) == (1, 20)


def test_a_slot_is_looked_through_again_only_when_there_may_be_something(
    server: Redis, client: rmq.Client, prefix: str, clock: Clock
) -> None:
    topic = client.topic("orders")
    topic.send(1)
    topic.send(2, expires=60)
    look = Look(client, prefix, Expiry)
    look()

    def cost() -> int:
        before = calls(server)
        look()
        return calls(server) - before

    assert [cost() for _ in range(3)] == [1, 1, 1], "the survey's own call"
    clock.advance(61)
    assert cost() == 2, "one expires"
    cost()  # what is left is another number of messages
    assert cost() == 1
    topic.send(3, expires=60)
    assert (cost(), cost()) == (2, 1)


def test_a_large_slot_is_looked_through_in_several_runs_and_starves_no_other(
    client: rmq.Client, prefix: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters_service, "LIMIT", 10)
    monkeypatch.setattr(dead_letters_service, "CALLS_MAX", 4)
    client.topic("a-large").send_many([rmq.Outgoing(n) for n in range(100)])
    client.topic("a-large").send("last", expires=1, priority=900)
    client.topic("b-small").send(1, expires=1)
    clock.advance(2)
    look = Look(client, prefix, Expiry)

    assert [look() for _ in range(4)] == [0, 0, 2, 0]


def test_where_somebody_takes_the_service_keeps_out(
    server: Redis, client: rmq.Client, prefix: str, clock: Clock
) -> None:
    topic = client.topic("orders")
    for n in range(10):
        topic.send(n)
    look = Look(client, prefix, Expiry)
    look()
    with topic.consumer() as consumer:
        for _ in range(3):
            consumer.receive()[0].ack()
            topic.send("more", expires=60)
            before = calls(server)
            look()
            assert calls(server) - before == 1


def test_lost_messages_are_found_without_a_worker(
    server: Redis,
    prefix: str,
    caplog: pytest.LogCaptureFixture,
    clock: Clock,
) -> None:
    with rmq.Client(server.url, prefix=prefix, interceptors=[rmq.Audit()]) as client:
        ids = [client.topic("orders").send(n).id for n in range(5)]
    with rmq.Client(server.url, prefix=prefix) as client:
        client.topic("plain").send(1)
        clock.advance(120)
        look = Look(client, prefix, Audits)
        assert look() == 1
        assert look.service.missing == {"orders": 0}
        raw = server.raw()
        member = ids[2].member
        raw.zrem(f"{prefix}:{{orders_0}}:store", member)
        raw.hdel(f"{prefix}:{{orders_0}}:records", member)
        assert look() == 0, "once in ten minutes"
        clock.advance(audit_service.AUDIT_S)
        look.service._next_at.clear()

        with caplog.at_level(logging.ERROR, "rmq"):
            assert look() == 1

        assert look.service.missing == {"orders": 1}
        assert "1 of 5 numbered messages are missing" in caplog.text


def test_a_topic_without_numbers_is_not_read_through(
    server: Redis, client: rmq.Client, prefix: str
) -> None:
    client.topic("plain", slots=2).send(1)
    look = Look(client, prefix, Audits)
    before = calls(server)

    assert look() == 0

    assert calls(server) - before <= 2 * 2 + 1, "the survey, a look at each slot, and the topic"
    assert look.service.missing == {}


def test_the_metric_of_an_audit_is_exposed(
    server: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Audits, "every_s", 0.1)
    with rmq.Client(server.url, prefix=prefix, interceptors=[rmq.Audit()]) as client:
        client.topic("orders").send(1)

    with serving(server.url, prefix) as running:
        until(
            lambda: (
                'rmq_server_audit_missing{topic="orders"} 0.0'
                in str(get(running.url + "/metrics")[1])
            ),
            "the audit",
        )


RUN, OTHER = "a" * 32, "b" * 32
TOLD = {
    "since_ms": 1, "rows": 88, "bytes": 4096, "batches": 5, "replays": 1, "lapses": 2,
    "lag_ms": 1500, "commands": 70,
}  # fmt: skip


def all_commands(server: Redis) -> int:
    with server.raw() as raw:
        found = raw.info("commandstats")
        return sum(int(found[f"cmdstat_{name}"]["calls"]) for name in ("evalsha", "zrange"))  # type: ignore[index]


def test_the_service_finds_queries_that_run_or_hold_messages(
    server: Redis, client: rmq.Client, prefix: str
) -> None:
    orders, refunds = (client.topic(name, slots=3) for name in ("orders", "refunds"))
    client.topic("empty", slots=3).open()
    refunds.open()
    orders.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(30)])
    query = orders.query(RUN, "etl-1")
    query.take({}, 10)
    query.keep((), TOLD)
    refunds.query(RUN, "etl-1").keep((), TOLD | {"rows": 80, "commands": 60})
    refunds.query(OTHER, "etl-2").keep(())
    look = Look(client, prefix, Queries)

    assert look() == 3

    listed = {name: client.admin.queries(name) for name in ("orders", "refunds")}
    assert {
        name: {query.run: (query.messages, query.slots, query.owner, query.report) for query in of}
        for name, of in look.service.held.items()
    } == {
        name: {query.run: (query.messages, query.slots, query.owner, query.report) for query in of}
        for name, of in listed.items()
    }
    assert all(
        abs(query.lease_left_s - same.lease_left_s) < 5
        for name, of in listed.items()
        for query, same in zip(of, look.service.held[name], strict=True)
    )
    client.admin.topic_delete("refunds")
    assert look() == 1
    assert list(look.service.held) == ["orders"]


def test_a_topic_without_queries_is_asked_again_only_after_something_was_taken(
    server: Redis, client: rmq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = client.topic("plain", slots=2)
    topic.send(1)
    look = Look(client, prefix, Queries)
    assert look() == 0
    look._survey.run_once()
    before = all_commands(server)

    assert look.service.run_once() == 0

    assert all_commands(server) - before == 0
    topic.query(RUN, "etl-1").renew({})
    assert look() == 0, "it took nothing yet"
    monkeypatch.setattr(queries_service, "WITHOUT_S", 0.0)
    assert look() == 1
    monkeypatch.undo()
    topic.query(RUN, "etl-1").take({}, 1)
    assert look() == 1


def test_metrics_tell_what_queries_hold_and_what_their_drivers_told(
    server: Redis, client: rmq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "QUERIES_MAX", 2)
    monkeypatch.setattr(Queries, "every_s", 0.1)
    orders, refunds = client.topic("orders"), client.topic("refunds")
    refunds.open()
    orders.send_many([rmq.Outgoing(n) for n in range(30)])
    query = orders.query(RUN, "etl-1")
    query.take({}, 10)
    query.keep((), TOLD)
    refunds.query(RUN, "etl-1").keep((), TOLD | {"rows": 80, "commands": 60})
    gone = orders.query(OTHER, "etl-2", owner_lease=1)
    gone.take({}, 1)
    gone.keep((), TOLD | {"rows": 7})
    orders.query("c" * 32, "etl-3").renew({})
    time.sleep(1.05)  # until the second one has no owner

    with serving(server.url, prefix) as running:
        text = until(
            lambda: (
                "rmq_server_queries_not_counted 1.0" in (t := str(get(running.url + "/metrics")[1]))
                and t
            ),
            "the queries",
        )

    lines = {line for line in text.split("\n") if line.startswith("rmq_query_")}
    assert lines == {
        f'rmq_query_messages{{query="{RUN}",topic="orders"}} 10.0',
        f'rmq_query_messages{{query="{RUN}",topic="refunds"}} 0.0',
        f'rmq_query_messages{{query="{OTHER}",topic="orders"}} 1.0',
        f'rmq_query_owned{{query="{RUN}"}} 1.0', f'rmq_query_owned{{query="{OTHER}"}} 0.0',
        f'rmq_query_lag_seconds{{query="{RUN}"}} 1.5',
        f'rmq_query_rows_total{{query="{RUN}"}} 88.0',
        f'rmq_query_rows_total{{query="{OTHER}"}} 7.0',
        *(
            f'rmq_query_{name}_total{{query="{run}"}} {TOLD[name]}.0'
            for run in (RUN, OTHER)
            for name in ("bytes", "batches", "replays", "lapses", "commands")
        ),
    }  # fmt: skip


def test_a_worker_that_was_killed_is_forgotten_and_named_in_the_log(
    server: Redis, client: rmq.Client, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    service = WorkerRecords(client._transport, prefix)
    client._transport.run(flows.report(prefix, "alive", lambda now_ms: "{}", 60_000))
    raw, index = server.raw(), workers_key(prefix)
    raw.zadd(index, {"killed": time.time() * 1000 - 1})
    raw.persist(index)

    with caplog.at_level(logging.WARNING, "rmq"):
        assert service.run_once() == 1

    assert raw.zrange(index, 0, -1) == [b"alive"]
    assert raw.exists(worker_key(prefix, "alive"))
    assert "worker killed has ended" in caplog.text
    assert service.run_once() == 0


def test_follow_ups_are_sent_without_a_consumer_and_a_topic_without_any_is_not_asked(
    server: Redis, client: rmq.Client, prefix: str, clock: Clock
) -> None:
    topic, target = client.topic("orders"), client.topic("invoices")
    target.open()
    topic.send("first")
    look = Look(client, prefix, FollowUps)
    look()
    before = calls(server)
    assert look() == 0
    assert calls(server) - before == 2, "the survey's call for each of two topics"
    client.admin.topic_pause("invoices", verb="send")
    with topic.consumer() as consumer:
        consumer.receive()[0].ack(then=[("invoices", rmq.Outgoing("next"))])
    client.admin.topic_resume("invoices", verb="send")
    assert client.admin.stats("orders")["pending"] == 1

    clock.advance(5)
    assert look() == 1

    assert client.admin.stats("orders")["pending"] == 0
    assert [d.body for d in target.consumer().receive()] == ["next"]
    assert look() == 0
