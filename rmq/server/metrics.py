"""Metrics for Prometheus (`/metrics`): counts of messages, and results of services."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rmq.features.spark import held
from rmq.features.spark.held import HeldQuery
from rmq.features.workers.wanted import WorkersWanted
from rmq.http_framework.service import ServerState
from rmq.http_framework.survey import TopicCounts
from rmq.kernel.core import metrics, packages, slo
from rmq.kernel.core.history import StoredSample
from rmq.kernel.core.metrics import Metric
from rmq.kernel.topic.stats import COUNTERS

QUEUES = ("retries", "priority", "due", "later", "in_flight", "dead")
TOPICS_MAX = 1000  # limit of exposed topics, sorted by name; each topic has 48 series
# Limit of exposed queries, those with most messages first; each query has 9 or more series.
QUERIES_MAX = 100
# Metrics from the reports of a query's driver, by the names in the report.
OF_QUERIES = {
    "rows": metrics.QUERY_ROWS, "bytes": metrics.QUERY_BYTES,
    "batches": metrics.QUERY_BATCHES, "replays": metrics.QUERY_REPLAYS,
    "lapses": metrics.QUERY_LAPSES, "commands": metrics.QUERY_COMMANDS,
}  # fmt: skip


class ServerMetrics:
    """Computes the metrics of `rmq server` when Prometheus requests `/metrics`.

    Args:
        topics: Function that returns the message counts of each topic. It returns counts only on
            the leading server, so that the sum over all servers counts each message once.
        state: State of this server.
        queries: Function that returns, for each topic, the streaming queries (for example, of
            Spark) that read the topic.
        before: Function that returns earlier counts of a topic, or None. Its arguments are the
            topic, and how long ago in ms.
        wanted: Function that returns the number of needed worker processes for each topic.
        long_runs: Function that returns, for each topic, the number of handler runs that may hang.
        batches: Function that returns the number of batches whose callback was not sent yet.
    """

    def __init__(
        self,
        topics: Callable[[], dict[str, TopicCounts]],
        state: ServerState,
        queries: Callable[[], dict[str, list[HeldQuery]]] = dict,
        before: Callable[[str, int], StoredSample | None] = lambda topic, window_ms: None,
        wanted: Callable[[], dict[str, WorkersWanted]] = dict,
        long_runs: Callable[[], Mapping[str, int]] = dict,
        batches: Callable[[], int] = int,
    ) -> None:
        library = packages.load("prometheus_client", "server", "/metrics")
        self._families = packages.load("prometheus_client.core", "server", "/metrics")
        self._topics, self._state, self._queries = topics, state, queries
        self._before, self._wanted, self._long_runs = before, wanted, long_runs
        self._batches = batches
        self._registry = library.CollectorRegistry()
        self._registry.register(self)
        self._library = library
        self.content_type: str = library.CONTENT_TYPE_LATEST

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return bytes(self._library.generate_latest(self._registry))

    def collect(self) -> Iterator[Any]:
        """Yield the metric families. prometheus_client calls this method."""
        every = self._topics()
        topics = dict(sorted(every.items())[:TOPICS_MAX])
        totals = {name: counts.total for name, counts in topics.items()}

        def of_topics(metric: Metric, value: Callable[[Mapping[str, int]], float]) -> Any:
            return self._family(metric, [((name,), value(total)) for name, total in totals.items()])

        yield self._family(
            metrics.MESSAGES,
            [((name, queue), count[queue]) for name, count in totals.items() for queue in QUEUES],
        )
        yield of_topics(metrics.OLDEST_DUE, lambda count: count["late_ms"] / 1000)
        yield self._lateness(topics)
        yield from self._of_slos(topics)
        wanted = [((name,), of) for name, of in self._wanted().items() if name in topics]
        yield self._family(metrics.WORKERS_WANTED, [(at, of.processes) for at, of in wanted])
        yield self._family(metrics.WORKERS_RUNNING, [(at, of.running) for at, of in wanted])
        long_runs = self._long_runs()
        yield self._family(metrics.LONG_RUNS, [(at, long_runs.get(at[0], 0)) for at, _ in wanted])
        yield of_topics(metrics.HELD_BACK, lambda count: count["held"])
        yield of_topics(metrics.GROUPS_PAUSED, lambda count: count["groups_paused"])
        yield of_topics(metrics.GROUPS_HELD, lambda count: count["groups_held"])
        yield of_topics(metrics.PENDING, lambda count: count["pending"])
        yield of_topics(metrics.PENDING_AGE, lambda count: count["pending_ms"] / 1000)
        yield of_topics(metrics.SUSPENDED, lambda count: count["suspended"])
        yield of_topics(metrics.HISTORY_BYTES, lambda count: count["history_bytes"])
        yield self._family(metrics.BATCHES_OPEN, [((), self._batches())])
        yield of_topics(metrics.PAUSED, lambda count: count["paused_ms"] > 0)
        yield of_topics(metrics.SENDS_PAUSED, lambda count: count["sends_paused_ms"] > 0)
        yield self._family(metrics.TOPICS_NOT_COUNTED, [((), len(every) - len(topics))])
        yield self._family(
            metrics.TOPIC_EVENTS,
            [((name, event), count[event]) for name, count in totals.items() for event in COUNTERS],
        )
        audited = sorted(self._state.missing().items())[:TOPICS_MAX]
        yield self._family(
            metrics.SERVER_AUDIT_MISSING, [((name,), count) for name, count in audited]
        )
        yield from self._of_queries()
        yield self._family(metrics.LEADER, [((), int(self._state.leads()))])
        yield self._family(metrics.BUILD, [((packages.VERSION,), 1)])
        services = [((status.name,), status) for status in self._state.services()]
        idle = [(of, status.idle_s) for of, status in services if status.idle_s is not None]
        yield self._family(metrics.SERVICE_IDLE, idle)
        yield self._family(metrics.SERVICE_DONE, [(of, each.done) for of, each in services])
        yield self._family(metrics.SERVICE_FAILURES, [(of, each.failures) for of, each in services])

    def _of_queries(self) -> Iterator[Any]:
        """Yield the metric families of queries: messages in flight, and values from the drivers."""
        every = held.over_topics(self._queries())
        queries = every[:QUERIES_MAX]
        held_of = [((topic, of.run), n) for of in queries for topic, n in of.held.items()]
        yield self._family(
            metrics.QUERY_MESSAGES,
            sorted(held_of, key=lambda sample: -sample[1])[:TOPICS_MAX],
        )
        running = [((of.run,), int(of.owner is not None)) for of in queries]
        yield self._family(metrics.QUERY_OWNED, running)
        # The last report of a driver that has ended would show a wrong lag forever.
        lags = [
            ((of.run,), of.report["lag_ms"] / 1000)
            for of in queries
            if of.owner is not None and "lag_ms" in of.report
        ]
        yield self._family(metrics.QUERY_LAG, lags)
        for name, metric in OF_QUERIES.items():
            told = [((of.run,), of.report[name]) for of in queries if name in of.report]
            yield self._family(metric, told)
        yield self._family(metrics.QUERIES_NOT_COUNTED, [((), len(every) - len(queries))])

    def _lateness(self, topics: Mapping[str, TopicCounts]) -> Any:
        metric = metrics.TAKE_LATENESS
        bounds = [*map(str, metric.buckets), "+Inf"]
        family = self._new(metric)
        for name, counts in topics.items():
            at_most = itertools.accumulate(counts.lateness)
            family.add_metric((name,), list(zip(bounds, at_most, strict=True)), None)
        return family

    def _of_slos(self, topics: Mapping[str, TopicCounts]) -> Iterator[Any]:
        """Yield the metric families of service level objectives: measured delay and objective."""
        promised, measured = [], []
        for name, counts in topics.items():
            objective = counts.context.settings.objective
            if objective is None:
                continue
            promised.append(((name,), objective.within_s))
            earlier = self._before(name, slo.WINDOW_MS)
            taken = metrics.growth(counts.lateness, earlier.lateness) if earlier else ()
            lateness_s = objective.lateness_s(taken, counts.total["late_ms"])
            measured.append(((name,), lateness_s or 0.0))
        yield self._family(metrics.SLO, promised)
        yield self._family(metrics.SLO_LATENESS, measured)

    def _new(self, metric: Metric) -> Any:
        make = getattr(self._families, f"{metric.kind.title()}MetricFamily")
        return make(metric.name, metric.help, labels=metric.labels)

    def _family(self, metric: Metric, samples: Sequence[tuple[tuple[str, ...], float]]) -> Any:
        family = self._new(metric)
        for labels, value in samples:
            family.add_metric(labels, value)
        return family
