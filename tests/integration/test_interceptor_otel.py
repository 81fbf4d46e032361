"""OpenTelemetry: a span of the producer and one of the consumer, tied by the message."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import rmq
from rmq import Outgoing
from rmq.interceptors import OpenTelemetry
from tests.integration.driven import both_clients
from tests.integration.working import handle, work

STYLES = ("plain", "async")


class Traces:
    """A provider of its own for each test, and what it exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def of(self, kind: SpanKind) -> list[ReadableSpan]:
        return [one for one in self.exporter.get_finished_spans() if one.kind == kind]

    @property
    def sent(self) -> list[ReadableSpan]:
        return self.of(SpanKind.PRODUCER)

    @property
    def handled(self) -> list[ReadableSpan]:
        return self.of(SpanKind.CONSUMER)

    @property
    def inside(self) -> list[ReadableSpan]:
        return self.of(SpanKind.INTERNAL)


@pytest.fixture
def traces() -> Traces:
    return Traces()


def key(span: Any) -> tuple[int, int]:
    told = span if isinstance(span, trace.SpanContext) else span.context
    return told.trace_id, told.span_id


@pytest.mark.parametrize("style", STYLES)
def test_the_consumers_span_is_linked_to_the_producers(
    link: Any, traces: Traces, name: str, style: str
) -> None:
    client = link(OpenTelemetry(traces.provider))
    topic = client.topic(name)
    handle(topic, style, lambda body, d: traces.tracer.start_span("inside").end())

    with traces.tracer.start_as_current_span("request") as request:
        result = topic.send("x")
    work(client, lambda: traces.handled)

    (sent,), (handled,) = traces.sent, traces.handled
    inside, outer = sorted(traces.inside, key=lambda one: one.name)
    assert outer.name == "request"
    assert sent.parent is not None
    assert key(sent.parent) == key(request.get_span_context())
    assert [key(one.context) for one in handled.links] == [key(sent)]
    assert handled.parent is None
    assert handled.context.trace_id != sent.context.trace_id
    assert inside.parent is not None
    assert key(inside.parent) == key(handled)
    common = {
        "messaging.system": "rmq", "messaging.destination.name": name,
        "messaging.message.id": str(result.id), "messaging.destination.partition.id": "0",
    }  # fmt: skip
    assert sent.name == f"send {name}"
    assert dict(sent.attributes or {}) == common | {
        "messaging.operation.name": "send", "messaging.operation.type": "send",
        "rmq.status": "stored",
    }  # fmt: skip
    assert handled.name == f"process {name}"
    found = dict(handled.attributes or {})
    assert 0 <= float(str(found.pop("rmq.late_seconds"))) < 10
    assert found == common | {
        "messaging.operation.name": "process", "messaging.operation.type": "process",
        "rmq.attempt": 1, "rmq.verb": "ack",
    }  # fmt: skip
    assert {sent.status.status_code, handled.status.status_code} == {StatusCode.UNSET}


@both_clients
def test_with_parent_the_consumers_span_is_in_the_trace_of_the_send(
    link: Any, traces: Traces, name: str
) -> None:
    client = link(OpenTelemetry(traces.provider, parent=True))
    topic = client.topic(name)
    handle(topic, "plain", lambda body, d: None)

    topic.send("x")
    work(client, lambda: traces.handled)

    (sent,), (handled,) = traces.sent, traces.handled
    assert handled.parent is not None
    assert key(handled.parent) == key(sent)
    assert [key(one.context) for one in handled.links] == [key(sent)]


@pytest.mark.parametrize("parent", [True, False], ids=["one trace", "linked"])
@pytest.mark.parametrize("style", [*STYLES, "returned", "rejected"])
def test_the_trace_of_a_message_continues_in_its_follow_up(
    link: Any, traces: Traces, name: str, style: str, parent: bool
) -> None:
    client = link(OpenTelemetry(traces.provider, parent=parent))
    topic, other = client.topic(name), client.topic(f"{name}-other")
    other.open()
    handle(other, "plain", lambda body, d: None)

    if style == "async":

        @topic.handler
        async def awaited(body: str, d: rmq.AsyncDelivery) -> None:
            await d.then(other, body)

    elif style == "plain":

        @topic.handler
        def plain(body: str, d: rmq.Delivery) -> None:
            d.then(other, body)

    elif style == "returned":

        @topic.handler
        def returned(body: str) -> rmq.Then:
            return rmq.Then(None, (other, Outgoing(body)))

    else:

        @topic.handler
        def rejected(body: str) -> None:
            raise rmq.Reject("no", then=[(other, Outgoing(body))])

    topic.send("x")
    work(client, lambda: len(traces.handled) == 2)

    (sent, follow_up) = traces.sent
    first, second = sorted(traces.handled, key=lambda span: str(span.name))
    assert [span.name for span in (follow_up, second)] == [
        f"send {name}-other", f"process {name}-other",
    ]  # fmt: skip
    assert follow_up.parent is not None
    assert key(follow_up.parent) == key(first)
    assert [key(each.context) for each in second.links] == [key(follow_up)]
    if parent:
        assert second.parent is not None
        assert key(second.parent) == key(follow_up)
        assert second.context.trace_id == sent.context.trace_id


def test_without_it_there_are_no_spans_and_no_headers(link: Any, traces: Traces, name: str) -> None:
    client = link()
    topic = client.topic(name)
    headers: list[Any] = []
    handle(topic, "plain", lambda body, d: headers.append(dict(d.headers)))

    topic.send("x")
    work(client, lambda: headers)

    assert headers == [{}]
    assert traces.exporter.get_finished_spans() == ()


@pytest.mark.parametrize("style", STYLES)
def test_errors_are_on_the_spans(link: Any, traces: Traces, name: str, style: str) -> None:
    client = link(OpenTelemetry(traces.provider))
    topic = client.topic(name, retry="immediate", max_retries=0)

    def run(body: str, d: Any) -> None:
        if body == "reject":
            raise rmq.Reject("why")
        if body == "bad":
            raise ValueError("no such order")

    handle(topic, style, run)
    with pytest.raises(rmq.EncodeError):
        topic.send(object())
    for body in ("bad", "reject"):
        topic.send(body)
    work(client, lambda: len(traces.handled) >= 2)

    not_sent = traces.sent[0]
    assert not_sent.status.status_code == StatusCode.ERROR
    assert (not_sent.attributes or {})["error.type"] == "rmq.errors.EncodeError"
    by_verb = {(one.attributes or {})["rmq.verb"]: one for one in traces.handled}
    bad, rejected = by_verb["nack"], by_verb["reject"]
    assert (bad.status.status_code, bad.status.description) == (
        StatusCode.ERROR, "ValueError: no such order",
    )  # fmt: skip
    assert (bad.attributes or {})["error.type"] == "ValueError"
    assert [one.name for one in bad.events] == ["exception"]
    assert rejected.status.status_code == StatusCode.ERROR


@pytest.mark.parametrize("options", [{"concurrency": 1}, {"concurrency": 4}, {"ordered": True}])
@pytest.mark.parametrize("style", STYLES)
def test_spans_inside_handlers_belong_to_their_own_message(
    link: Any, traces: Traces, name: str, style: str, options: Any
) -> None:
    client = link(OpenTelemetry(traces.provider))
    topic = client.topic(name, retry="immediate")

    def run(body: int, d: Any) -> None:
        traces.tracer.start_span(str(d.id)).end()
        if body % 3 == 0 and d.attempt == 1:
            raise ValueError(body)

    handle(topic, style, run, **options)
    topic.send_many([Outgoing(n, slot_basis="s") for n in range(30)])
    work(client, lambda: len(traces.handled) >= 40)

    ids = {key(one): (one.attributes or {})["messaging.message.id"] for one in traces.handled}
    assert len(traces.inside) == 40
    assert len(ids) == 40
    for inside in traces.inside:
        assert inside.parent is not None
        assert ids[key(inside.parent)] == inside.name
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize(
    "options", [{"concurrency": 1}, {"ordered": True}, {"batch": 3, "concurrency": 1}]
)
@pytest.mark.parametrize("style", STYLES)
def test_what_was_current_before_a_run_is_so_after_it(
    link: Any, traces: Traces, name: str, style: str, options: Any
) -> None:
    current: list[tuple[str, bool]] = []

    class Around(rmq.Interceptor):
        def before_handle(self, delivery: Any) -> None:
            current.append(("before", trace.get_current_span().get_span_context().is_valid))

        def after_handle(self, delivery: Any, outcome: rmq.Outcome) -> None:
            current.append(("after", trace.get_current_span().get_span_context().is_valid))

    client = link(Around(), OpenTelemetry(traces.provider))
    topic = client.topic(name)
    handle(topic, style, lambda body, d: None, **options)
    topic.send_many([Outgoing(n) for n in range(6)])
    work(client, lambda: len(current) == 12)

    if "batch" in options:  # it ends with the last of a batch
        assert current[5] == current[11] == ("after", False)
        assert current[0] == current[6] == ("before", False)
    else:
        assert set(current) == {("before", False), ("after", False)}


@both_clients
def test_spans_of_a_task_that_waits_belong_to_it(link: Any, traces: Traces, name: str) -> None:
    client = link(OpenTelemetry(traces.provider))
    topic = client.topic(name)

    async def run(body: int, d: Any) -> None:
        await asyncio.sleep(0.01 * (body % 3))
        traces.tracer.start_span(str(d.id)).end()

    topic.handler(concurrency=10)(run)
    topic.send_many([Outgoing(n) for n in range(20)])
    work(client, lambda: len(traces.handled) >= 20)

    ids = {key(one): (one.attributes or {})["messaging.message.id"] for one in traces.handled}
    for inside in traces.inside:
        assert inside.parent is not None
        assert ids[key(inside.parent)] == inside.name


@pytest.mark.parametrize("style", STYLES)
def test_of_a_batch_each_delivery_has_its_span_and_the_first_is_current(
    link: Any, traces: Traces, name: str, style: str
) -> None:
    client = link(OpenTelemetry(traces.provider))
    topic = client.topic(name)

    def run(bodies: Any, deliveries: Any) -> None:
        traces.tracer.start_span(str(deliveries[0].id)).end()

    handle(topic, style, run, batch=3, concurrency=1)
    topic.send_many([Outgoing(n) for n in range(6)])
    work(client, lambda: len(traces.handled) >= 6)

    assert {key(one.links[0].context) for one in traces.handled} == set(map(key, traces.sent))
    ids = {key(one): (one.attributes or {})["messaging.message.id"] for one in traces.handled}
    for inside in traces.inside:
        assert inside.parent is not None
        assert ids[key(inside.parent)] == inside.name


# --- headers -------------------------------------------------------------------------------------


def test_the_senders_headers_are_kept_and_baggage_arrives(
    link: Any, traces: Traces, name: str
) -> None:
    client = link(OpenTelemetry(traces.provider))
    topic = client.topic(name)
    seen: list[Any] = []
    handle(
        topic, "plain", lambda body, d: seen.append((dict(d.headers), baggage.get_baggage("user")))
    )

    token = context.attach(baggage.set_baggage("user", "42"))
    mine = Outgoing("x", headers={"a": "b"})
    topic.send_many([mine])
    context.detach(token)
    work(client, lambda: seen)

    headers, user = seen[0]
    assert headers["a"] == "b"
    assert set(headers) == {"a", "traceparent", "baggage"}
    assert mine.headers == {"a": "b"}
    assert user == "42"


def test_a_trace_that_the_sender_put_there_is_left(link: Any, traces: Traces, name: str) -> None:
    client = link(OpenTelemetry(traces.provider))
    topic = client.topic(name)
    handle(topic, "plain", lambda body, d: None)
    theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    topic.send("x", headers={"traceparent": theirs})
    work(client, lambda: traces.handled)

    (linked,) = traces.handled[0].links
    assert f"{linked.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    "headers",
    [{str(n): "" for n in range(32)}, {"a": "x" * 4085}, {"a": "ä" * 1990}, {"traceparent": "?"}],
    ids=["entries", "bytes", "utf-8", "nonsense"],
)
def test_headers_without_room_are_sent_as_they_are(
    link: Any, traces: Traces, name: str, headers: dict[str, str]
) -> None:
    client = link(OpenTelemetry(traces.provider))
    topic = client.topic(name)
    seen: list[Any] = []
    handle(topic, "plain", lambda body, d: seen.append(dict(d.headers)))

    topic.send("x", headers=headers)
    work(client, lambda: traces.handled)

    assert seen == [headers]
    assert not traces.handled[0].links


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, "text", [("a", "b")]])
def test_headers_that_cannot_be_sent_are_refused_by_the_send_itself(
    link: Any, traces: Traces, name: str, headers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = link(OpenTelemetry(traces.provider)).topic(name)
    with caplog.at_level(logging.ERROR), pytest.raises(rmq.InvalidType, match="headers"):
        topic.send("x", headers=headers)
    assert caplog.records == []
    assert traces.sent[0].status.status_code == StatusCode.ERROR


def test_nothing_is_kept_of_what_was_sent(link: Any, traces: Traces, name: str) -> None:
    interceptor = OpenTelemetry(traces.provider)
    topic = link(interceptor).topic(name)
    topic.send_many([Outgoing(n) for n in range(100)])
    with pytest.raises(rmq.EncodeError):
        topic.send_many([Outgoing(1), Outgoing(object())])
    assert interceptor._sending == {}
    assert len(traces.sent) == 102


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(rmq.ConfigurationError, match=r'pip install "\.\[otel\]"'):
        OpenTelemetry()
