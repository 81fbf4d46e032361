"""The programs of docs/observability.md run, and its tables agree with the catalogue."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from rmq.kernel.core.metrics import EVENTS, METRICS, SERVER_METRICS
from tests.examples.running import run_forked
from tests.servers import Server

pytestmark = pytest.mark.slow  # `make test` reads the README alone

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "observability.md").read_text()
PROGRAMS = [
    text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "Worker" in text
]


def ran(containing: str, server: Server) -> subprocess.CompletedProcess[str]:
    (program,) = [one for one in PROGRAMS if containing in one]
    done = run_forked(ROOT, "-c", program, env={**os.environ, "RMQ_URL": server.url})
    assert done.returncode == 0, done.stderr
    return done


def test_the_program_with_logs_says_which_message_is_charged(server: Server) -> None:
    told = [json.loads(line) for line in ran("JsonFormatter", server).stderr.splitlines()]

    (charged,) = [one for one in told if one["logger"] == "shop"]
    events = {one["event"]: one for one in told if one["logger"] == "rmq.messages"}
    assert charged["message"] == "charging 7"
    assert charged["message_id"] == events["sent"]["message_id"]
    assert events["handled"]["verb"] == "ack"


def test_the_program_with_metrics_shows_every_metric(server: Server) -> None:
    told = ran("prometheus_client", server).stdout

    assert [one.name for one in METRICS if one.name not in told] == []
    assert 'rmq_handled_total{topic="orders-measured",type="",verb="ack"} 1.0' in told
    assert 'rmq_lateness_seconds_bucket{le="30.0",topic="orders-measured",type=""} 1.0' in told


def test_the_program_with_traces_shows_both_spans(server: Server) -> None:
    told = ran("ConsoleSpanExporter", server).stdout

    assert '"name": "send orders-traced"' in told
    assert '"name": "process orders-traced"' in told


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_the_table_has_every_metric_with_its_kind_and_labels(metric: object) -> None:
    row = f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels)} |"  # type: ignore[attr-defined]
    assert row in PAGE


def test_the_tables_name_nothing_that_the_catalogue_lacks() -> None:
    of_servers = {one.name for one in SERVER_METRICS}
    assert set(re.findall(r"`(rmq_[a-z_]+)`", PAGE)) - of_servers == {one.name for one in METRICS}
    for event in EVENTS[:3]:
        assert f"| `{event.name}` | `{' '.join(event.fields)}` |" in PAGE
