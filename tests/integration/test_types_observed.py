"""Types in logs, metrics and spans."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

import rmq
from rmq.interceptors import Logging, OpenTelemetry, Prometheus
from rmq.testing import Broker


class Watched:
    """A worker, as far as Prometheus looks at it."""

    def __init__(self, handlers: Any) -> None:
        self.handlers = list(handlers)

    def counts(self) -> dict[str, dict[str, int]]:
        return {}

    def missing(self) -> dict[str, int]:
        return {}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


def test_the_label_has_the_types_of_handlers_and_other(broker: Broker) -> None:
    registry = CollectorRegistry()
    metrics = Prometheus(registry)
    client = rmq.Client("redis://localhost:1/0", interceptors=[metrics])
    topic = client.topic("t")
    topic.handler(type=("a", "b"))(lambda body: None)
    topic.handler(lambda body: None)
    worker = Watched(client._handlers.by_topic["t"])
    metrics.watch(worker)

    with broker.adopting(client):
        topic.send_many(rmq.Outgoing(1, type=kind) for kind in ["a", "b", "b", "c", "d", None])
        broker.drain()

    def counted(metric: str, message_type: str, **labels: str) -> float | None:
        named = {"topic": "t", "type": message_type, **labels}
        return registry.get_sample_value(metric, named)

    handled = {
        name: counted("rmq_handled_total", name, verb="ack") for name in ("a", "b", "other", "")
    }
    assert handled == {"a": 1, "b": 2, "other": 2, "": 1}
    assert counted("rmq_handler_seconds_count", "b") == 2
    assert counted("rmq_lateness_seconds_count", "b") == 2
    assert counted("rmq_handled_total", "c", verb="ack") is None


def test_events_have_the_type_where_there_is_one(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    client = rmq.Client("redis://localhost:1/0", interceptors=[Logging()])
    topic = client.topic("t")
    topic.handler(type="a")(lambda body: None)
    topic.handler(lambda body: None)

    with broker.adopting(client), caplog.at_level(logging.INFO, "rmq.messages"):
        topic.send(1, type="a")
        topic.send(2)
        with pytest.raises(rmq.EncodeError):
            topic.send(object(), type="a")
        broker.drain()

    events = [vars(one) for one in caplog.records if one.name == "rmq.messages"]
    assert [(one["event"], one.get("type")) for one in events] == [
        ("sent", "a"), ("sent", None), ("not_sent", "a"), ("handled", "a"), ("handled", None),
    ]  # fmt: skip


def test_spans_have_the_type_where_there_is_one(broker: Broker) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    client = rmq.Client("redis://localhost:1/0", interceptors=[OpenTelemetry(provider)])
    topic = client.topic("t")
    topic.handler(lambda body: None)

    with broker.adopting(client):
        topic.send(1, type="a")
        topic.send(2)
        broker.drain()

    spans = exporter.get_finished_spans()
    assert [(one.name, (one.attributes or {}).get("rmq.type")) for one in spans] == [
        ("send t", "a"), ("send t", None), ("process t", "a"), ("process t", None),
    ]  # fmt: skip
