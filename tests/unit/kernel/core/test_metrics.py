"""The catalogue keeps its own rules: names, units, few labels, one line of help."""

from __future__ import annotations

import logging
import re

import pytest

from rmq.kernel.core import metrics
from rmq.kernel.core.metrics import EVENTS, LABELS, METRICS, SERVER_METRICS, LogEvent, Metric

ALL = (*METRICS, *SERVER_METRICS)


@pytest.mark.parametrize("metric", ALL, ids=lambda m: m.name)
def test_a_metric_is_named_after_its_kind_and_unit(metric: Metric) -> None:
    assert re.fullmatch(r"rmq_[a-z_]+", metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    if metric.kind == "histogram":
        assert metric.name.endswith("_" + metric.unit)


@pytest.mark.parametrize("metric", ALL, ids=lambda m: m.name)
def test_a_metric_has_known_labels_and_one_line_of_help(metric: Metric) -> None:
    assert {"topic", "query"} & {*metric.labels} or metric.name.startswith(
        ("rmq_server_", "rmq_batches_", "rmq_build_info")
    )
    assert set(metric.labels) <= set(LABELS)
    assert metric.help.endswith(".")
    assert "\n" not in metric.help


@pytest.mark.parametrize("metric", ALL, ids=lambda m: m.name)
def test_buckets_are_a_histograms_and_grow(metric: Metric) -> None:
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))


def test_no_label_names_a_message() -> None:
    assert not [name for name in LABELS if "id" in name.split("_") or name in ("key", "body")]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.name)
def test_an_event_has_fields_that_logging_takes(event: LogEvent) -> None:
    record = logging.LogRecord("x", 20, "x", 1, "x", (), None)

    assert len(set(event.fields)) == len(event.fields)
    assert not [name for name in ("event", *event.fields) if name in {*vars(record), "message"}]
    assert isinstance(logging.getLevelName(event.level), int)
    assert event.help.endswith(".")


def test_names_are_given_once_and_everything_is_listed() -> None:
    for kind, listed in ((Metric, ALL), (LogEvent, EVENTS)):
        assert len({one.name for one in listed}) == len(listed)
        defined = [one for one in vars(metrics).values() if isinstance(one, kind)]
        assert sorted(one.name for one in defined) == sorted(one.name for one in listed)


def test_lateness_is_reported_of_first_attempts_and_is_never_negative() -> None:
    assert metrics.lateness_s(1, 10_000, 1_000, 12_500) == 2.5
    assert metrics.lateness_s(1, 0, 1_000, 12_500) == 11.5, "to be taken at once"
    assert metrics.lateness_s(1, 10_000, 0, 9_000) == 0, "our clock is behind"
    assert metrics.lateness_s(2, 10_000, 0, 12_500) is None
