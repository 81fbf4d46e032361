"""The metrics of `rmq.kernel.core.metrics`, for Prometheus. Needs the extra `prometheus`."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

from rmq.errors import ConfigurationError
from rmq.interceptors.active_runs import late_s
from rmq.kernel.core import metrics, packages
from rmq.kernel.core.interceptor import Interceptor, Outcome
from rmq.kernel.core.message import Outgoing, SendResult
from rmq.kernel.core.metrics import Metric
from rmq.kernel.delivery.delivery import DeliveryData


class Counting(Protocol):
    """The methods that `Prometheus.watch` needs of a worker."""

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the worker's counts of deliveries by topic: received, unsettled and lost."""

    def missing(self) -> dict[str, int]:
        """Return how many messages were missing in the last audit, by topic."""


class Prometheus(Interceptor):
    """Counts and times messages. The program chooses how it exposes the metrics.

    Create one object and pass it to every client, because each metric can be registered only once.

    Args:
        registry: Registry of prometheus_client. Default: its global registry.

    Raises:
        ConfigurationError: The package is missing, or the registry already has these metrics.
    """

    def __init__(self, registry: Any = None) -> None:
        self._lib = packages.load("prometheus_client", "prometheus", "Prometheus")
        self._families = packages.load("prometheus_client.core", "prometheus", "Prometheus")
        self._registry = self._lib.REGISTRY if registry is None else registry
        self._workers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._overran: set[DeliveryData] = set()
        self._types: set[str] = set()  # message types with a handler in a watched worker
        self._late = self._metric(metrics.LATENESS)
        self._seconds = self._metric(metrics.HANDLER_SECONDS)
        self._handled = self._metric(metrics.HANDLED)
        self._sent = self._metric(metrics.SENT)
        self._send_errors = self._metric(metrics.SEND_ERRORS)
        self._registry.register(self)

    def _metric(self, metric: Metric) -> Any:
        named = {"buckets": metric.buckets} if metric.kind == "histogram" else {}
        kind = self._lib.Histogram if metric.kind == "histogram" else self._lib.Counter
        try:
            return kind(metric.name, metric.help, metric.labels, registry=self._registry, **named)
        except ValueError as error:
            raise ConfigurationError(
                f"Prometheus: this registry has {metric.name} already ({error}); make one "
                "Prometheus() and give it to every client, or give each a registry of its own"
            ) from error

    def watch(self, worker: Counting) -> None:
        """Expose the counts of a worker, as long as the worker object exists.

        The metrics count deliveries that were received (`taken`), are unsettled (`held`) or were
        lost. After this call, the label `type` can also be a message type of the worker's handlers.
        You need not call this method if the client of the worker has this interceptor, because the
        worker calls it.
        """
        self._workers.add(worker)
        self._types.update(name for each in getattr(worker, "handlers", ()) for name in each.types)

    # --- hooks -----------------------------------------------------------------------------------

    def after_send(self, topic: str, message: Outgoing, result: SendResult | BaseException) -> None:
        """Count a sent message, or the error of a failed send."""
        if isinstance(result, BaseException):
            self._send_errors.labels(topic, type(result).__name__).inc()
        else:
            self._sent.labels(topic, result.status).inc()

    def before_handle(self, delivery: DeliveryData) -> None:
        """Observe how late the handler starts."""
        late = late_s(delivery)
        if late is not None:
            self._late.labels(delivery.topic, self._type(delivery)).observe(late)

    def after_handle(self, delivery: DeliveryData, outcome: Outcome) -> None:
        """Count and time the run."""
        topic, message_type = delivery.topic, self._type(delivery)
        self._seconds.labels(topic, message_type).observe(outcome.seconds)
        if delivery in self._overran:
            self._overran.discard(delivery)  # counted when it exceeded its max_runtime
        else:
            self._handled.labels(topic, message_type, outcome.verb).inc()

    def on_overrun(self, delivery: DeliveryData) -> None:
        """Count a run that continues after its `max_runtime`."""
        self._overran.add(delivery)
        self._handled.labels(delivery.topic, self._type(delivery), "overrun").inc()

    def _type(self, delivery: DeliveryData) -> str:
        """Return the label for a message's type, or "other" if no watched worker handles the type.

        Without "other", senders could fill the registry with any number of types.
        """
        message_type = delivery.type
        if message_type is None:
            return ""
        return message_type if message_type in self._types else "other"

    # --- a collector of prometheus_client --------------------------------------------------------

    def describe(self) -> Iterator[Any]:
        """Yield the same metrics as `collect`, without values."""
        yield from self._watched({})

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of the watched workers."""
        totals: dict[str, Counter[str]] = {}
        for worker in list(self._workers):
            for topic, counts in worker.counts().items():
                totals.setdefault(topic, Counter()).update(counts)
            for topic, count in worker.missing().items():
                totals.setdefault(topic, Counter())["missing"] = (
                    count  # not a sum, because an audit covers all workers of the topic
                )
        yield from self._watched(totals)

    def _watched(self, totals: dict[str, Counter[str]]) -> Iterator[Any]:
        for metric, key in (
            (metrics.IN_FLIGHT, "in_flight"),
            (metrics.RECEIVED, "received"),
            (metrics.LEASE_LOST, "lost"),
            (metrics.DUPLICATES, "duplicate"),
            (metrics.CLAIM_LOST, "claim_lost"),
            (metrics.AUDIT_MISSING, "missing"),
        ):
            kind = "Gauge" if metric.kind == "gauge" else "Counter"
            family = getattr(self._families, f"{kind}MetricFamily")
            made = family(metric.name, metric.help, labels=metric.labels)
            for topic, counts in totals.items():
                if key in counts:
                    made.add_metric((topic,), counts[key])
            yield made
