"""Lateness: what consumers and workers report, and where its percentiles are shown."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import pytest

import rmq
from rmq.features.topic_admin.service import Sampler
from rmq.http_framework.service import ServerState
from rmq.http_framework.survey import Survey
from rmq.kernel.consumer import scripts, state
from rmq.kernel.core import metrics
from rmq.kernel.topic import stats
from rmq.server.metrics import ServerMetrics
from tests.conftest import Clock
from tests.integration.driven import connect
from tests.server.running import ask, serving, until
from tests.servers import Server as Redis

TOPIC = "orders"


@pytest.fixture(params=["sync", "async"])
def either(request: pytest.FixtureRequest, server: Redis, prefix: str) -> Any:
    with connect(request.param, server.url, prefix=prefix) as made:
        yield made


def counted(client: rmq.Client) -> metrics.Counts:
    """The counts that were reported for the topic."""
    context = client.topic(TOPIC)._context
    slots = client._transport.run(stats.counts_and_lateness(context))
    return metrics.total(slot.lateness for slot in slots)


def in_buckets(*lates_ms: int) -> metrics.Counts:
    found = [0] * metrics.BUCKETS
    for late_ms in lates_ms:
        found[bisect_right(metrics.BOUNDS_MS, late_ms)] += 1
    return tuple(found)


def take_late(client: Any, clock: Clock, lates_ms: Sequence[int]) -> None:
    """Take messages so long after they were due; each is alone when it is taken."""
    topic = client.topic(TOPIC)
    with topic.consumer() as consumer:
        for late_ms in lates_ms:
            topic.send("x", delay=0.5)
            clock.advance(0.5 + late_ms / 1000)
            (delivery,) = consumer.receive()
            delivery.ack()


class Look:
    """A server's survey and sampler, run by hand."""

    def __init__(self, client: rmq.Client, prefix: str) -> None:
        self.survey = Survey(client._transport, prefix)
        self.sampler = Sampler(client._transport, self.survey)

    def __call__(self) -> None:
        self.survey.run_once()
        self.sampler.run_once()


def exposed_buckets(look: Look) -> dict[str, float]:
    """The buckets of the topic on /metrics, by their upper bounds."""
    exposed = ServerMetrics(lambda: look.survey.topics, ServerState()).text().decode()
    name = 'rmq_take_lateness_seconds_bucket{le="'
    lines = [line for line in exposed.splitlines() if line.startswith(name)]
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}


def test_known_lateness_gives_known_percentiles_of_each_step(
    client: rmq.Client, either: Any, prefix: str, clock: Clock
) -> None:
    clock.now_us -= clock.now_us % 600_000_000
    clock.advance(9)
    either.topic(TOPIC).open()
    look = Look(client, prefix)
    look()
    clock.advance(60)
    take_late(either, clock, [20] * 48 + [3000] * 2)
    look()
    clock.advance(60)
    look()
    take_late(either, clock, [700] * 5)
    look()
    clock.advance(60)

    found = either.admin.samples(TOPIC, since=600, step=60)

    by_step = [(sample.late_p50_s, sample.late_p99_s) for sample in found]
    first, second = [pair for pair in by_step if pair[0] is not None]
    assert 0.016 <= first[0] <= 0.032
    assert 2.048 <= first[1] <= 4.096
    assert 0.512 <= second[0] <= second[1] <= 1.024, "nothing of the step before"
    assert counted(client) == in_buckets(*[20] * 48, *[3000] * 2, *[700] * 5)
    buckets = exposed_buckets(look)
    assert len(buckets) == metrics.BUCKETS
    assert (buckets["0.016"], buckets["0.032"], buckets["1.024"], buckets["+Inf"]) == (
        0,
        48,
        53,
        55,
    )


def test_where_nothing_was_taken_or_nothing_reported_there_is_no_percentile(
    client: rmq.Client, prefix: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: without the report of consumers, there is nothing to show."""
    look = Look(client, prefix)
    client.topic(TOPIC).open()
    look()
    monkeypatch.setattr(state.LatenessCounter, "count", lambda *args, **named: None)
    take_late(client, clock, [20] * 3)
    clock.advance(20)
    look()
    clock.advance(20)

    found = client.admin.samples(TOPIC, since=60)

    assert found
    assert {(sample.late_p50_s, sample.late_p99_s) for sample in found} == {(None, None)}
    assert counted(client) == metrics.NONE
    assert exposed_buckets(look)["+Inf"] == 0


def slo_metrics(look: Look) -> dict[str, float]:
    """What is exposed about the slo of topics, by the name of the metric."""
    survey = look.survey
    metrics = ServerMetrics(lambda: survey.topics, ServerState(), before=survey.before)
    lines = [line for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    found = [line.partition("{") for line in lines if line.startswith("rmq_topic_slo_")]
    return {name: float(rest.rpartition(" ")[2]) for name, _, rest in found}


def test_slo_and_lateness_of_the_last_minutes_are_metrics(
    client: rmq.Client, prefix: str, clock: Clock
) -> None:
    client.topic(TOPIC).open()
    look = Look(client, prefix)
    look()
    assert slo_metrics(look) == {}
    client.admin.topic_set(TOPIC, slo="p90<1s")
    look = Look(client, prefix)
    look()
    take_late(client, clock, [20] * 10 + [3000] * 2)
    look()
    late = slo_metrics(look)

    clock.advance(310)
    look()
    idle = slo_metrics(look)
    take_late(client, clock, [20] * 50)
    look()
    mended = slo_metrics(look)

    assert late["rmq_topic_slo_seconds"] == 1.0
    assert 2.048 <= late["rmq_topic_slo_lateness_seconds"] <= 4.096
    assert idle["rmq_topic_slo_lateness_seconds"] == 0.0, "none was taken, none waits"
    assert 0.016 <= mended["rmq_topic_slo_lateness_seconds"] <= 0.032


def test_only_first_attempts_count_and_a_message_without_a_due_time_counts_from_its_send(
    client: rmq.Client, either: Any
) -> None:
    topic = either.topic(TOPIC, retry="immediate")
    topic.send("now")
    topic.send("of a key", dedup_key="k")
    with topic.consumer() as consumer:
        for delivery in consumer.receive(2):
            delivery.nack()
        for delivery in consumer.receive(2):
            assert delivery.attempt == 2
            delivery.ack()

    assert sum(counted(client)) == 1
    assert sum(counted(client)[:13]) == 1, "below 4 s"


def test_a_consumer_that_waits_reports_while_it_waits_and_one_that_is_closed_at_once(
    client: rmq.Client, either: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = either.topic(TOPIC)
    with topic.consumer() as consumer:
        topic.send(1)
        consumer.receive()[0].ack()
        assert sum(counted(client)) == 0, "not with every message"
    assert sum(counted(client)) == 1

    monkeypatch.setattr(state, "REPORT_S", 0.05)
    with topic.consumer() as consumer:
        topic.send(2)
        consumer.receive()[0].ack()
        until(  # it asks once a second
            lambda: consumer.receive(wait=1.5) == [] and sum(counted(client)) == 2, "its report"
        )


def test_messages_that_are_handed_over_and_those_at_most_once_count(
    client: rmq.Client, either: Any
) -> None:
    topic = either.topic(TOPIC)
    for _ in range(3):
        topic.send(1)
    with topic.consumer(mode="at_most_once") as consumer:
        assert len(consumer.receive(3)) == 3

    assert sum(counted(client)) == 3


@pytest.mark.parametrize("every_s", [0.05, 600.0])
def test_a_worker_reports_while_it_runs_and_when_it_stops(
    client: rmq.Client, every_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "REPORT_S", every_s)
    topic, seen = client.topic(TOPIC), []
    topic.handler()(lambda body: seen.append(body))
    with rmq.Worker(client, heartbeat="thread"):
        topic.send_many([rmq.Outgoing(n) for n in range(20)])
        until(lambda: len(seen) == 20, "all messages")
        if every_s < 1:
            until(lambda: sum(counted(client)) == 20, "the report of a worker that runs")
        else:
            assert sum(counted(client)) == 0

    assert sum(counted(client)) == 20


def test_a_report_that_is_refused_hinders_nothing_and_is_made_later(
    client: rmq.Client, either: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "REPORT_S", 0.0)
    topic, build = either.topic(TOPIC), scripts.lateness_report
    with topic.consumer() as consumer, monkeypatch.context() as refusing:
        refusing.setattr(scripts, "lateness_report", lambda *args: build(*args[:2], ["none"]))
        for n in range(3):
            topic.send(n)
            (delivery,) = consumer.receive()
            delivery.ack()
            assert consumer.receive() == []
        assert sum(counted(client)) == 0
        refusing.undo()

        consumer.receive()

        assert sum(counted(client)) == 3


def test_the_api_has_percentiles(
    server: Redis, client: rmq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sampler, "every_s", 0.1)
    client.topic(TOPIC).open()
    with serving(server.url, prefix) as running:
        url = f"{running.url}/api/v1/topics/{TOPIC}/samples?since=60"
        until(lambda: ask(url).body.get("samples"), "a sample", 60)
        samples = ask(url).body["samples"]

    assert {"late_p50_s", "late_p99_s"} <= set(samples[0])
    assert samples[0]["late_p99_s"] is None
