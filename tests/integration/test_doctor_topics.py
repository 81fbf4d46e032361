"""Each check of the doctor that looks at topics: where it must fire, and where it must not."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

import rmq
from rmq.features.doctor import handling, topics
from rmq.features.doctor.look import SEVERITIES
from rmq.features.topic_admin.service import Sampler
from rmq.http_framework.survey import Survey
from rmq.kernel.core.keys import leader_key, workers_key
from rmq.kernel.transport.connections.pool import Pool
from tests.conftest import Clock
from tests.integration.examining import client, grave, one, redis, report_worker, seen
from tests.servers import Server

__all__ = ["client", "redis"]  # fixtures


def test_topic_that_cannot_be_read_is_an_error(client: rmq.Client, redis: Server) -> None:
    client.topic("orders").open()
    assert grave(client, "topics") == []
    with redis.raw() as raw:
        raw.delete("rmq:{orders}:topic")

    assert one(client, "topics").severity == "error"


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("store", "5 messages in no queue"),
        ("prepare", "1 message in no queue"),
        ("dead", "2 messages in no queue"),
        ("trash", "1 message in no queue"),
        ("records", "9 messages of its queues without record"),
    ],
)
def test_slot_of_which_a_key_was_evicted_is_an_error(
    client: rmq.Client, redis: Server, place: str, text: str
) -> None:
    topic = client.topic("orders")
    topic.send_many([rmq.Outgoing(n) for n in range(8)])
    topic.send(8, delay=3600)
    with topic.consumer() as consumer:
        first, *others = consumer.receive(4)
        consumer.reject([first, *others[:2]], "why")
        client.admin.purge("orders", "dead", keep=60, ids=[first.id])
        assert grave(client, "queue-members") == []
        with redis.raw() as raw:
            assert raw.delete(f"rmq:{{orders_0}}:{place}") == 1

        finding = one(client, "queue-members")

    assert finding.severity == "error"
    assert text in finding.evidence


@pytest.mark.parametrize("limit", ["BIG_MEMBERS", "BIG_BYTES"])
def test_slot_that_holds_very_much_is_named(
    client: rmq.Client, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    client.topic("orders").send_many([rmq.Outgoing(n) for n in range(50)])
    assert grave(client, "big-keys") == []

    monkeypatch.setattr(topics, limit, 50)

    assert "orders: slot 0 of 1 holds 50 messages" in one(client, "big-keys").evidence


def test_slot_with_most_messages_is_named(client: rmq.Client) -> None:
    client.topic("even", slots=4).send_many([rmq.Outgoing(n) for n in range(1200)])
    assert grave(client, "slot-skew") == []
    client.topic("skewed", slots=4).send_many(
        [rmq.Outgoing(n, slot_basis="all") for n in range(1200)]
    )

    assert "skewed: slot " in one(client, "slot-skew").evidence


def test_a_history_that_keeps_much_less_than_its_time_is_named(
    client: rmq.Client, clock: Clock
) -> None:
    topic = client.topic("orders", history=rmq.History("1h", "1MiB"))
    topic.send_many([rmq.Outgoing("x" * 100_000) for _ in range(10)])
    assert grave(client, "history") == []
    with topic.consumer() as consumer:
        consumer.ack(consumer.receive(10, wait=1))
    clock.advance(2000)
    assert grave(client, "history") == [], "it keeps more than half of its time"
    clock.advance(-1400)

    finding = one(client, "history")

    assert "orders: the history has reached max_bytes, and keeps the last 10 min instead of 60" in (
        finding.evidence
    )
    assert finding.fix == "rmq topic set orders --history keep=1h,max_bytes=6MiB"


def test_group_with_most_of_a_backlog_is_named(client: rmq.Client) -> None:
    topic = client.topic("orders", slots=4, groups=rmq.Groups())
    topic.send_many([rmq.Outgoing(n, group=f"g{n % 100}") for n in range(800)])
    assert grave(client, "group-skew") == [], "less than a thousand"
    topic.send_many([rmq.Outgoing(n, group=f"g{n % 100}") for n in range(800)])
    assert grave(client, "group-skew") == [], "a hundred groups of the same size"
    topic.send_many([rmq.Outgoing(n, group="tenant") for n in range(400)] * 5)

    finding = one(client, "group-skew")

    assert "orders: group tenant has 56% of 3600 that wait" in finding.evidence
    assert finding.fix == "rmq groups ls orders"


def test_group_that_a_dead_letter_holds_is_named_until_it_is_released(client: rmq.Client) -> None:
    topic = client.topic("orders", groups=rmq.Groups(on_dead="hold"))
    topic.send_many([rmq.Outgoing(n, group=f"my group {n % 2}") for n in range(4)])
    assert grave(client, "groups") == []
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive()
        delivery.reject("why")

    finding = one(client, "groups")

    assert f"1 group held by a dead letter: {delivery.group}" in finding.evidence
    assert finding.fix == f"rmq groups release orders '{delivery.group}'"
    client.admin.group_release("orders", delivery.group)
    assert grave(client, "groups") == []


def test_head_that_waits_for_its_retry_is_named(client: rmq.Client) -> None:
    topic = client.topic("orders", retry="levels:1h:0")
    topic.send(1)
    topic.send(2)
    with topic.consumer(ordered=True) as consumer:
        (head,) = consumer.receive(1, wait=5)
        assert grave(client, "blocked-heads") == []
        head.nack(error="down")

    finding = one(client, "blocked-heads")

    assert str(head.id) in finding.evidence
    assert "1 message behind it" in finding.evidence


def test_head_that_a_worker_runs_for_long_is_named_with_the_worker(
    client: rmq.Client, redis: Server
) -> None:
    topic = client.topic("orders")
    topic.send(1)
    topic.send(2)
    with topic.consumer(ordered=True) as consumer:
        (head,) = consumer.receive(1, wait=5)
        report_worker(redis, "aaaaaaaa", "orders", runs=[(str(head.id), 0, 1000)])
        assert grave(client, "blocked-heads") == []
        report_worker(redis, "aaaaaaaa", "orders", runs=[(str(head.id), 0, 900_000)])

        finding = one(client, "blocked-heads")
        head.ack()

    assert "handle of host:7 runs for 15 min" in finding.evidence
    assert finding.fix == "kill 7  (on host; its messages are delivered again)"


def test_messages_without_a_taker_are_named_until_somebody_is_there(
    client: rmq.Client, redis: Server
) -> None:
    topic = client.topic("orders")
    topic.send(1)
    assert "orders: 1 message due, none in flight" in one(client, "no-consumer").evidence

    report_worker(redis, "aaaaaaaa", "orders")
    assert grave(client, "no-consumer") == []
    with redis.raw() as raw:
        raw.delete(workers_key("rmq"))
    client.admin.topic_pause("orders")
    assert grave(client, "no-consumer") == []
    client.admin.topic_resume("orders")
    with redis.raw() as raw, raw.pubsub() as listener:
        listener.subscribe("rmq:{orders}:wake")
        assert listener.get_message(timeout=5)
        assert grave(client, "no-consumer") == []


def test_late_messages_are_named(client: rmq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.topic("orders").send(1, delay=0.001)
    client.topic("bills").send(1)  # it has no due time, and waits since it was sent
    time.sleep(0.05)  # its time passes
    assert grave(client, "late") == []

    monkeypatch.setattr(topics, "LATE_MS", 20)

    (finding,) = grave(client, "late")
    first, other = finding.topics
    assert finding.fix == f"rmq worker wanted {first}"
    assert {first, other} == {"bills", "orders"}
    assert finding.evidence.startswith(f"{first}: the oldest due message has waited ")
    assert finding.evidence.endswith(f"too few or too slow; and 1 more like it: {other}")


def test_dead_letters_that_grow_are_named(
    client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = client.topic("orders")
    assert grave(client, "dead-letters") == []
    began = datetime.now(UTC) - timedelta(seconds=1)
    topic.send_many([rmq.Outgoing(n) for n in range(10)])
    with topic.consumer() as consumer:
        first, *others = consumer.receive(10, wait=5)
        first.reject("ValueError: bad")
        (small,) = seen(client, "dead-letters")
        consumer.reject(others, "ValueError: bad")
    finding = one(client, "dead-letters")

    assert small.severity == "note"
    assert "1 dead letter in the last hour, 0 in the hour before" in small.evidence
    assert "10 dead letters in the last hour, 0 in the hour before" in finding.evidence
    assert "ValueError: bad" in finding.evidence
    assert finding.since is not None
    assert began < finding.since <= datetime.now(UTC)
    assert finding.since_from == "redis"

    time.sleep(0.05)  # they die in the hour before
    monkeypatch.setattr(handling, "HOUR_MS", 40)

    assert grave(client, "dead-letters") == []


def test_messages_behind_others_that_do_not_end_are_named(
    client: rmq.Client, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics_ = [client.topic(name, groups=rmq.Groups()) for name in ("orders", "bills")]
    survey = Survey(client._transport, "rmq")
    with topics_[0].consumer() as orders, topics_[1].consumer() as bills:
        for topic in topics_:
            topic.send_many([rmq.Outgoing(n, group=f"g{n % 2}") for n in range(7)])
        (first, _), (other, _) = orders.receive(2), bills.receive(2)
        survey.run_once()
        Sampler(client._transport, survey).run_once()
        assert grave(client, "late") == [], "only since a moment"
        monkeypatch.setattr(topics, "STUCK_MS", 0)

        finding = one(client, "late")
        report_worker(redis, "aaaaaaaa", "bills", runs=[(str(other.id), 0, 1000)])
        run = one(client, "late")
        first.ack()

        assert set(finding.topics) == {"orders", "bills"}
        assert "5 messages held behind 2 in flight, of which none has ended" in finding.evidence
        assert run.topics == ("orders",), "a worker runs the other"
        assert grave(client, "late") == []


def _failing(client: rmq.Client, names: list[str]) -> None:
    """Let all deliveries of topics fail, after a server has stored samples."""
    for name in names:
        client.topic(name, slots=2).open()
    survey = Survey(client._transport, "rmq")
    survey.run_once()
    Sampler(client._transport, survey).run_once()
    for name in names:
        client.topic(name).send_many([rmq.Outgoing(n) for n in range(20)])
        with client.topic(name).consumer() as consumer:
            while deliveries := consumer.receive(20):
                consumer.reject(deliveries, "ValueError: bad")


def test_failing_deliveries_are_named_since_the_first_dead_letter(
    client: rmq.Client, redis: Server
) -> None:
    began = datetime.now(UTC) - timedelta(seconds=1)
    _failing(client, ["orders"])

    finding = one(client, "failures")

    assert finding.evidence.startswith("orders: 100% of 20 deliveries of the last 10 min failed")
    assert "ValueError: bad" in finding.evidence
    assert finding.since is not None
    assert began < finding.since <= datetime.now(UTC)
    assert (finding.since_from, finding.runbook) == ("redis", "RmqDeliveriesFail")
    with redis.raw() as raw:  # a message died before this hour: the start may be older
        key = next(key for n in range(2) if raw.zcard(key := f"rmq:{{orders_{n}}}:dead"))
        raw.zadd(key, {raw.zrange(key, 0, 0)[0]: int(time.time() * 1000) - 5_400_000})
    assert one(client, "failures").since is None


def test_samples_of_many_topics_take_few_round_trips(
    client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number:02}" for number in range(30)]
    _failing(client, names)
    seen(client, "failures")  # loads the scripts
    exchange, trips = Pool.exchange, list[int]()
    monkeypatch.setattr(Pool, "exchange", lambda *args: trips.append(1) or exchange(*args))

    (finding,) = seen(client, "failures")
    (letters,) = seen(client, "dead-letters")

    assert len(finding.topics) == len(letters.topics) == 30
    assert len(trips) < 30


def test_paused_job_is_named_since_the_start_of_the_job(client: rmq.Client) -> None:
    client.topic("orders").open()
    job = client.admin.job_start("orders", "redrive")
    assert grave(client, "jobs") == []
    client.admin.job_pause(job.id)

    finding = one(client, "jobs")

    assert finding.since == job.began
    assert finding.fix == f"rmq job resume {job.id}"


def test_forgotten_pause_is_named_with_who_and_why(
    client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.topic("orders").open()
    client.admin.topic_pause("orders", by="me", why="closed")
    assert grave(client, "paused") == []
    time.sleep(0.02)  # longer than the limit below

    monkeypatch.setattr(topics, "PAUSED_MS", 10)

    finding = one(client, "paused")
    assert "by me: closed" in finding.evidence
    assert finding.fix == "rmq topic resume orders"


def test_resize_that_nobody_finishes_is_named(
    client: rmq.Client, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = client.topic("orders", slots=2)
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(10)])
    assert [finding.severity for finding in seen(client, "resizes")] == ["ok"]
    client.admin.topic_resize("orders", 4, wait=False)
    (begun,) = seen(client, "resizes")
    assert (begun.severity, begun.fix) == ("note", "rmq server")

    monkeypatch.setattr(topics, "UNATTENDED_MS", 0)
    assert "waits for older messages" in one(client, "resizes").evidence
    with redis.raw() as raw:
        raw.set(leader_key("rmq"), "host:7:00")
        (served,) = seen(client, "resizes")
        assert (served.severity, "server host:7:00" in served.evidence) == ("ok", True)
        raw.delete(leader_key("rmq"))
    with topic.consumer() as consumer:
        consumer.ack(consumer.receive(10, wait=5))
        consumer.ack(consumer.receive(10, wait=0.5))
    monkeypatch.setattr(topics, "UNFINISHED_MS", 0)
    unfinished = one(client, "resizes")
    assert "from 2 to 4 slots" in unfinished.evidence
    assert "no process continues it" in unfinished.evidence
    assert unfinished.fix == "rmq topic resize orders 4"

    client.admin.topic_resize("orders", 4)

    assert [finding.severity for finding in seen(client, "resizes")] == ["ok"]


def test_resize_that_died_before_its_slots_were_created_is_named_with_its_mend(
    client: rmq.Client, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.topic("orders", slots=1).open()
    client.admin.topic_resize("orders", 2, wait=False)
    with redis.raw() as raw:
        raw.delete("rmq:{orders_1}:slot")
        now_ms = int(time.time() * 1000)
        raw.hset("rmq:{orders}:topic", "resizing", f"{now_ms} 1 0")

    monkeypatch.setattr(topics, "UNFINISHED_MS", 0)

    assert one(client, "topics").fix == "rmq topic resize orders 2"
    assert one(client, "resizes").fix == "rmq topic resize orders 2"


def test_schedule_that_nobody_sends_is_named(
    client: rmq.Client, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = client.topic("orders")
    topic.every("nightly", every=3600).declare()
    assert grave(client, "schedules") == []
    with redis.raw() as raw:
        raw.zadd("rmq:{orders_0}:schedule_times", {"nightly": int(time.time() * 1000) - 600_000})

    assert "orders: schedule nightly was due 10 min ago" in one(client, "schedules").evidence


def test_topic_that_misses_its_slo_is_named_with_how_late_it_is(
    client: rmq.Client, redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "LATE_MS", 1 << 60)
    topic = client.topic("orders", slo="p50<50ms")
    topic.open()
    (unknown,) = seen(client, "slo")
    assert (unknown.severity, unknown.fix) == ("note", "rmq server")
    survey = Survey(client._transport, "rmq")
    survey.run_once()
    Sampler(client._transport, survey).run_once()
    assert [finding.severity for finding in seen(client, "slo")] == ["ok"]

    topic.send("waits")
    time.sleep(0.1)
    waits = one(client, "slo")
    with topic.consumer() as consumer:
        consumer.receive()[0].ack()
    late = one(client, "slo")

    assert waits.evidence.startswith(
        "orders: slo p50<50ms, and none was received lately; the oldest"
    )
    assert late.evidence.startswith("orders: slo p50<50ms, and p50 of the last ")
    client.admin.topic_set("orders", slo="p50<10s")
    assert grave(client, "slo") == []


# --- many topics ---------------------------------------------------------------------------------


def test_findings_of_one_kind_are_one_and_name_the_worst_topic(client: rmq.Client) -> None:
    for number in range(210):
        client.topic(f"a{number:03}").send(1)
    client.topic("zz-payments").send_many([rmq.Outgoing(n) for n in range(50)])

    finding = one(client, "no-consumer")

    assert finding.evidence.startswith("zz-payments: 50 messages due")
    assert "; and 210 more like it: a000, a001, a002 and 207 more" in finding.evidence


def test_a_topic_without_consumer_is_found_behind_many_with_one(
    client: rmq.Client, redis: Server
) -> None:
    names = [f"a{number:03}" for number in range(205)]
    for name in names:
        client.topic(name).send(1)
    client.topic("zz-payments").send(1)
    with redis.raw() as raw, raw.pubsub() as listener:
        listener.subscribe(*[f"rmq:{{{name}}}:wake" for name in names])
        assert listener.get_message(timeout=5)
        finding = one(client, "no-consumer")

    assert finding.evidence.startswith("zz-payments: 1 message due")
    assert "more like it" not in finding.evidence


def test_the_gravest_findings_come_first(client: rmq.Client) -> None:
    client.topic("orders").send(1)

    found = [SEVERITIES.index(each.severity) for each in client.admin.doctor()]

    assert found == sorted(found, reverse=True)


def test_dead_letters_that_were_not_looked_at_are_not_ok(
    client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bills", "orders"):
        client.topic(name, slots=1).send_many([rmq.Outgoing(n) for n in range(10)])
        with client.topic(name).consumer() as consumer:
            consumer.reject(consumer.receive(10), "why")
    monkeypatch.setattr(handling, "SLOTS_MAX", 1)

    found = seen(client, "dead-letters")

    assert [each.severity for each in found] == ["warning", "note"]
    assert "growth is not known" in found[1].evidence


@pytest.mark.parametrize(
    ("seconds", "mean", "is_long"),
    [(29, None, False), (31, None, True), (31, 0.001, True), (31, 60, False), (601, 60, True)],
)
def test_runs_that_may_hang_are_named(
    client: rmq.Client, redis: Server, seconds: int, mean: float | None, is_long: bool
) -> None:
    topic = client.topic("imports", lease=30)
    head = topic.send(1)
    runs = [(str(head.id), 0, seconds * 1000)]
    report_worker(redis, "aaaaaaaa", "imports", runs=runs, run_s=mean)

    found = grave(client, "long-runs")

    expected = f"imports: 1 run of handle may hang; {head.id} is running for "
    assert [each.evidence.startswith(expected) for each in found] == [True] * is_long
    command = "kill 7  (on host; its messages are delivered again)"
    assert [each.fix for each in found] == [command] * is_long


@pytest.mark.parametrize(
    ("cancelled_ms", "is_named"), [(None, False), (5000, False), (40_000, True)]
)
def test_run_that_ignores_a_request_to_cancel_it_is_named(
    client: rmq.Client, redis: Server, cancelled_ms: int | None, is_named: bool
) -> None:
    topic = client.topic("imports", lease=300)
    older, head = topic.send(1), topic.send(2)
    runs = [(str(older.id), 0, 60_000), (str(head.id), 0, 50_000)]
    report_worker(
        redis, "aaaaaaaa", "imports", runs=runs, run_s=40, cancelled_ms=[None, cancelled_ms]
    )

    found = [each.evidence for each in grave(client, "long-runs")]

    told = f"the run of {head.id} has ignored a request to cancel it for 40"
    assert [told in text for text in found] == [True] * is_named
