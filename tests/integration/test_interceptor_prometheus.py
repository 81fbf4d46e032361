"""Prometheus: every metric of the catalogue is emitted, with its labels, and nothing else."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.samples import Sample

import rmq
from rmq import Outgoing
from rmq.interceptors import Prometheus
from rmq.kernel.core.metrics import METRICS
from tests.integration.working import handle, work
from tests.patience import wait_for
from tests.servers import Server

STYLES = ("plain", "async")


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def samples(registry: CollectorRegistry) -> list[Sample]:
    return [sample for family in registry.collect() for sample in family.samples]


def total(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return sum(
        one.value for one in samples(registry)
        if one.name == name and labels.items() <= one.labels.items()
    )  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_every_metric_of_the_catalogue_is_emitted_and_nothing_else(
    link: Any, registry: CollectorRegistry, name: str, style: str
) -> None:
    metrics = Prometheus(registry)
    client = link(metrics, rmq.Audit(every=1))
    topic = client.topic(name, retry="immediate")

    def run(body: str, d: Any) -> None:
        if body == "bad" and d.attempt == 1:
            raise ValueError

    guard = rmq.idempotent(rmq.Claims(), key=lambda body: body)
    handle(topic, style, run, guard)
    topic.send("good", id=topic.send("good").id)
    topic.send("bad")
    topic.send("good")
    with pytest.raises(rmq.EncodeError):
        topic.send(object())
    with rmq.Worker(getattr(client, "target", client), heartbeat="thread"):
        wait_for(lambda: total(registry, "rmq_handled_total") == 3)
        wait_for(lambda: total(registry, "rmq_duplicates_total") == 1)
        wait_for(lambda: total(registry, "rmq_in_hand") == 0)
        wait_for(lambda: [one for one in samples(registry) if one.name == "rmq_audit_missing"])
        found = list(registry.collect())

    catalogue = {metric.name: metric for metric in METRICS}
    named = {f"{one.name}_total" if one.type == "counter" else one.name: one for one in found}
    assert set(named) == set(catalogue)
    for key, family in named.items():
        metric = catalogue[key]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert family.samples, f"{key} is emitted"
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
            assert sample.labels["topic"] == name

    def counted(metric: str, **labels: str) -> float:
        return sum(
            one.value for one in named[metric].samples
            if one.name in (metric, f"{metric}_count") and labels.items() <= one.labels.items()
        )  # fmt: skip

    assert counted("rmq_sent_total", status="stored") == 3
    assert counted("rmq_sent_total", status="duplicate") == 1
    assert counted("rmq_send_errors_total", error="EncodeError") == 1
    assert counted("rmq_handled_total", verb="ack") == 2
    assert counted("rmq_handled_total", verb="nack") == 1
    assert counted("rmq_handler_seconds") == 3
    assert counted("rmq_lateness_seconds") == 2, "first attempts only"
    assert counted("rmq_received_total") >= 4, "a copy may come back while the other one runs"
    assert counted("rmq_lease_lost_total") == 0
    assert counted("rmq_duplicates_total") == 1
    assert counted("rmq_claim_lost_total") == 0


@pytest.mark.parametrize("style", STYLES)
def test_a_run_beyond_its_max_runtime_is_counted_at_once_and_once(
    link: Any, registry: CollectorRegistry, name: str, style: str
) -> None:
    client, go = link(Prometheus(registry)), threading.Event()
    topic = client.topic(name, max_retries=0)
    # Blocked in the event loop, a task cannot be cancelled, either.
    handle(topic, style, lambda body, d: go.wait(60), max_runtime=0.2)
    topic.send("x")

    with rmq.Worker(getattr(client, "target", client), heartbeat="thread"):
        wait_for(lambda: total(registry, "rmq_handled_total") == 1)
        assert total(registry, "rmq_handled_total", verb="overrun") == 1
        assert total(registry, "rmq_handler_seconds_count") == 0
        go.set()
        wait_for(lambda: total(registry, "rmq_handler_seconds_count") == 1)

    assert total(registry, "rmq_handled_total") == 1


def test_without_it_nothing_is_counted(link: Any, registry: CollectorRegistry, name: str) -> None:
    metrics = Prometheus(registry)
    client = link()
    topic = client.topic(name)
    handled: list[Any] = []
    handle(topic, "plain", lambda body, d: handled.append(body))

    topic.send("x")
    work(client, lambda: handled)

    assert samples(registry) == []
    assert metrics is not None


def test_lateness_of_a_timed_message_is_from_when_it_was_due(
    link: Any, registry: CollectorRegistry, name: str
) -> None:
    client = link(Prometheus(registry))
    topic = client.topic(name)
    begun: list[float] = []
    handle(topic, "plain", lambda body, d: begun.append(time.time()))

    due = time.time() + 1.0
    topic.send("x", delay=1.0)
    work(client, lambda: total(registry, "rmq_handled_total") == 1)

    # Since it was sent would be a second more than this.
    assert 0 <= total(registry, "rmq_lateness_seconds_sum") <= begun[0] - due


def test_what_workers_hold_is_watched_and_summed(
    server: Server, registry: CollectorRegistry, name: str
) -> None:
    metrics, go = Prometheus(registry), threading.Event()
    with rmq.Client(server.url) as client:
        topic = client.topic(name)
        topic.send_many([Outgoing(n) for n in range(4)])
        handle(topic, "plain", lambda body, d: go.wait(10), prefetch=2)
        with (
            rmq.Worker(client, heartbeat="thread") as one,
            rmq.Worker(client, heartbeat="thread") as two,
        ):
            for worker in (one, two, two):
                metrics.watch(worker)
            wait_for(lambda: total(registry, "rmq_in_hand", topic=name) == 4)
            assert total(registry, "rmq_received_total", topic=name) == 4
            go.set()
            wait_for(lambda: total(registry, "rmq_in_hand", topic=name) == 0)


def test_a_worker_that_is_gone_is_no_longer_watched(
    server: Server, registry: CollectorRegistry, name: str
) -> None:
    metrics = Prometheus(registry)

    class Workers:
        def counts(self) -> dict[str, dict[str, int]]:
            return {name: {"in_flight": 5, "received": 5}}

        def missing(self) -> dict[str, int]:
            return {name: 2}

    workers = Workers()
    metrics.watch(workers)
    assert total(registry, "rmq_in_hand") == 5
    assert total(registry, "rmq_audit_missing") == 2
    del workers
    assert total(registry, "rmq_in_hand") == 0


def test_no_label_is_a_message(link: Any, registry: CollectorRegistry, name: str) -> None:
    client = link(Prometheus(registry))
    topic = client.topic(name)
    handle(topic, "plain", lambda body, d: None)
    topic.send("warm")
    work(client, lambda: total(registry, "rmq_handled_total") == 1)
    before = len(samples(registry))

    topic.send_many([Outgoing(n) for n in range(100)])
    work(client, lambda: total(registry, "rmq_handled_total") == 101)

    assert len(samples(registry)) == before


def test_two_in_one_registry_are_refused_and_the_error_says_what_to_do(
    registry: CollectorRegistry,
) -> None:
    Prometheus(registry)
    with pytest.raises(rmq.ConfigurationError, match="give it to every client"):
        Prometheus(registry)
    Prometheus(CollectorRegistry())


def test_the_default_registry_is_the_librarys() -> None:
    import prometheus_client

    made = Prometheus()
    try:
        assert b"rmq_in_hand" in generate_latest()
    finally:
        for one in (made, made._late, made._seconds, made._handled, made._sent, made._send_errors):
            prometheus_client.REGISTRY.unregister(one)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(rmq.ConfigurationError, match=r'pip install "\.\[prometheus\]"'):
        Prometheus()
