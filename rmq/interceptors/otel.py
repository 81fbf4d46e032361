"""Create traces: a span for each send and each run of a handler, linked by a header of the message.

This module needs the extra `otel`, which is OpenTelemetry's API. The program chooses SDK and
exporter. Names follow OpenTelemetry's semantic conventions for messaging.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from rmq.interceptors.active_runs import Runs, late_s
from rmq.kernel.core import failure, packages
from rmq.kernel.core.delivery_limits import HEADERS_BYTES, HEADERS_MAX
from rmq.kernel.core.interceptor import Interceptor, Outcome
from rmq.kernel.core.message import Outgoing, SendResult
from rmq.kernel.delivery.delivery import DeliveryData

log = logging.getLogger("rmq")

MARKS_BYTES = 256  # kept free for the headers that RMQ itself adds


class OpenTelemetry(Interceptor):
    """Creates a span for each send, and a linked span for each run of a handler.

    The headers of a message carry the trace. The program's propagator writes them (traceparent,
    tracestate, possibly baggage) in addition to the sender's headers. If a message already has one
    of these headers, or has no room for all of them, the message is not changed.

    Inside a handler, the consumer span is the current span. For a batch, the current span is the
    span of the first delivery.

    Args:
        tracer_provider: Tracer provider of the SDK. Default: the global provider.
        parent: Whether the consumer span is also a child of the producer's span, in one trace. If
            False, each run begins its own trace, linked to the sender's trace.

    Raises:
        ConfigurationError: The package is missing.
    """

    def __init__(self, tracer_provider: Any = None, *, parent: bool = False) -> None:
        self._trace = packages.load("opentelemetry.trace", "otel", "OpenTelemetry")
        self._context = packages.load("opentelemetry.context", "otel", "OpenTelemetry")
        self._propagate = packages.load("opentelemetry.propagate", "otel", "OpenTelemetry")
        self._tracer = self._trace.get_tracer("rmq", tracer_provider=tracer_provider)
        self._parent = parent
        # By the id() of a message. The value contains the message, so that Python does not reuse
        # the id().
        self._sending: dict[int, tuple[Outgoing, Any]] = {}
        self._runs: Runs[Any] = Runs("rmq_otel")

    # --- sending ---------------------------------------------------------------------------------

    def before_send(self, topic: str, message: Outgoing) -> None:
        """Begin the producer's span, and write its trace context into the message's headers."""
        span = self._tracer.start_span(
            f"send {topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes=_attributes("send", topic, message),
        )
        self._sending[id(message)] = message, span
        trace_headers: dict[str, str] = {}
        self._propagate.inject(trace_headers, context=self._trace.set_span_in_context(span))
        headers = {} if message.headers is None else message.headers
        if trace_headers and _has_room(headers, trace_headers):
            message.headers = {**headers, **trace_headers}

    def after_send(self, topic: str, message: Outgoing, result: SendResult | BaseException) -> None:
        """End the producer's span."""
        _, span = self._sending.pop(id(message), (None, None))
        if span is None:
            return
        if isinstance(result, BaseException):
            self._failed(span, result)
        else:
            span.set_attribute("messaging.message.id", str(result.id))
            span.set_attribute("messaging.destination.partition.id", str(result.slot))
            span.set_attribute("rmq.status", result.status)
        span.end()

    # --- handling --------------------------------------------------------------------------------

    def before_handle(self, delivery: DeliveryData) -> None:
        """Begin the consumer's span, and make it the current span."""
        topic = delivery.topic
        origin = self._propagate.extract(delivery.headers, context=self._context.Context())
        producer = self._trace.get_current_span(origin).get_span_context()
        span_context = origin
        if not self._parent:
            span_context = self._trace.set_span_in_context(self._trace.INVALID_SPAN, origin)
        attributes = _attributes("process", topic, delivery) | {
            "messaging.message.id": str(delivery.id),
            "messaging.destination.partition.id": str(delivery.slot),
            "rmq.attempt": delivery.attempt,
        }
        late = late_s(delivery)
        if late is not None:
            attributes["rmq.late_seconds"] = late
        span = self._tracer.start_span(
            f"process {topic}",
            context=span_context,
            kind=self._trace.SpanKind.CONSUMER,
            links=[self._trace.Link(producer)] if producer.is_valid else None,
            attributes=attributes,
        )
        run = self._runs.begin(delivery, span)
        if run is not None:
            run.note = self._context.attach(self._trace.set_span_in_context(span, span_context))

    def after_handle(self, delivery: DeliveryData, outcome: Outcome) -> None:
        """End the consumer's span, and make the previous span current again."""
        span, run = self._runs.end(delivery)
        if run is not None:
            self._context.detach(run.note)
        if span is None:
            return
        span.set_attribute("rmq.verb", outcome.verb)
        if outcome.error is not None:
            self._failed(span, outcome.error)
        elif outcome.verb in ("nack", "reject", "lost"):
            span.set_attribute("error.type", outcome.verb)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, outcome.verb))
        span.end()

    def _failed(self, span: Any, error: BaseException) -> None:
        kind = type(error)
        where = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        span.set_attribute("error.type", f"{where}{kind.__qualname__}")
        with contextlib.suppress(Exception):  # it calls str(error), which is the user's code
            span.record_exception(error)
        summary = failure.summary(error)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, summary))


def _attributes(verb: str, topic: str, message: Outgoing | DeliveryData) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "messaging.system": "rmq",
        "messaging.operation.name": verb,
        "messaging.operation.type": verb,
        "messaging.destination.name": topic,
    }
    marks = {"rmq.type": message.type, "rmq.group": message.group}
    return attributes | {name: text for name, text in marks.items() if text is not None}


def _has_room(headers: Any, trace_headers: dict[str, str]) -> bool:
    """Return whether the trace fits into these headers. If not, the trace is left out."""
    if not isinstance(headers, Mapping):
        return False  # the send itself raises the error
    if any(name in headers for name in trace_headers):
        return False
    both = [*headers.items(), *trace_headers.items()]
    if not all(isinstance(name, str) and isinstance(text, str) for name, text in both):
        return False
    size = MARKS_BYTES + sum(
        4 * 2 + len((name + text).encode(errors="replace")) for name, text in both
    )
    if len(both) > HEADERS_MAX or size > HEADERS_BYTES:
        log.debug("%d headers, about %d bytes: no room for the trace", len(headers), size)
        return False
    return True
