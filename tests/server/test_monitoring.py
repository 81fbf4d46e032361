"""The dashboard, the alert rules and the runbook name what exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import yaml

from rmq.cli import cli
from rmq.features.doctor.flows import BY_NAME, CHECKS
from rmq.kernel.core import metrics
from rmq.kernel.topic.stats import COUNTERS
from rmq.server.metrics import QUEUES

DOCS = Path(__file__).resolve().parents[2] / "docs"
CATALOGUE = {metric.name: metric for metric in (*metrics.METRICS, *metrics.SERVER_METRICS)}
EXPORTER = {"redis_memory_used_bytes", "redis_memory_max_bytes"}  # of redis_exporter
SERVICES = (
    "leadership", "survey", "rollback", "retention", "schedules", "sampler", "expiry", "audits",
    "queries", "worker_records", "resizes", "wanted", "offloading", "follow_ups", "problems",
)  # fmt: skip
VALUES = {"queue": QUEUES, "event": tuple(COUNTERS), "service": SERVICES}

RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DOCS / "monitoring/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((DOCS / "monitoring/grafana.json").read_text())
RUNBOOK = (DOCS / "runbook.md").read_text()
EXPRESSIONS = {rule["alert"]: rule["expr"] for rule in RULES} | {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}


class Use(NamedTuple):
    """A metric in an expression, with its selector."""

    metric: str
    labels: dict[str, str]


def uses(expression: str) -> list[Use]:
    """The metrics of an expression of PromQL."""
    found = re.findall(r"\b((?:rmq|redis)_\w+)(?:\{([^}]*)\})?", expression)
    return [
        Use(name, dict(re.findall(r'(\w+)\s*=~?\s*"([^"]*)"', selector)))
        for name, selector in found
    ]


def mistakes(expression: str) -> list[str]:
    """Return an expression's mistakes, as names that the server and the workers do not expose."""
    found = []
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"(?:by|on) \(([^)]*)\)", expression))))
    labels: set[str] = {"le"}
    for use in uses(expression):
        if use.metric in EXPORTER:
            continue
        metric = CATALOGUE.get(use.metric.removesuffix("_bucket"))
        if metric is None:
            found.append(use.metric)
            continue
        is_bucket = use.metric.endswith("_bucket")
        if is_bucket != (metric.kind == "histogram"):
            found.append(f"{use.metric}: a {metric.kind}")
        if metric.kind == "gauge" and re.search(rf"(rate|increase)\({use.metric}", expression):
            found.append(f"{use.metric}: a gauge has no rate")
        if metric.kind == "counter" and not re.search(
            rf"(rate|increase)\({use.metric}", expression
        ):
            found.append(f"{use.metric}: a counter without a rate")
        labels |= set(metric.labels)
        for label, text in use.labels.items():
            if label not in metric.labels:
                found.append(f"{use.metric}: {label}")
            elif label in VALUES:
                found += [value for value in text.split("|") if value not in VALUES[label]]
    if any(use.metric not in EXPORTER for use in uses(expression)):
        found += sorted(grouped - labels)
    if expression.count("(") != expression.count(")"):
        found.append("brackets")
    return found


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_names_metrics_and_labels_of_the_catalogue(name: str) -> None:
    assert uses(EXPRESSIONS[name])
    assert mistakes(EXPRESSIONS[name]) == []


@pytest.mark.parametrize(
    "expression",
    [
        "sum(rmq_mesages)", 'sum(rmq_messages{queue="ded"})', 'sum(rmq_messages{que="dead"})',
        "sum by (tpic) (rmq_messages)", "rate(rmq_messages[5m])", "sum(rmq_sent_total)",
        "sum(rmq_lateness_seconds)", "sum(rmq_messages",
        'min(rmq_server_service_idle_seconds{service="scheduler"})',
    ],
)  # fmt: skip
def test_a_slip_in_an_expression_is_noticed(expression: str) -> None:
    assert mistakes(expression)


def test_the_services_named_here_are_those_of_the_server() -> None:
    from rmq.server import Server, ServerConfig

    config = ServerConfig.load({"url": "redis://127.0.0.1:1"}, {}, "/dev/null")
    names = [status.name for status in Server(config).services()]
    assert set(names) >= set(SERVICES)


def test_each_alert_has_a_severity_a_summary_and_a_section_of_the_runbook() -> None:
    sections = re.split(r"^## ", RUNBOOK, flags=re.MULTILINE)[1:]
    titled = {section.splitlines()[0]: section for section in sections}
    by_title = {title: section for title, section in titled.items() if title.startswith("Rmq")}
    assert sorted(by_title) == sorted(rule["alert"] for rule in RULES)
    assert len(RULES) == len(by_title) >= 10
    for rule in RULES:
        name = rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"
        for part in ("**Means.**", "**Look.**", "**Fix.**"):
            assert by_title[name].count(part) == 1, (name, part)


def test_labels_of_a_summary_are_those_that_its_expression_keeps() -> None:
    for rule in RULES:
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        kept = set(re.findall(r"by \((\w+)\)", rule["expr"]))
        assert used <= kept | {"instance"}, rule["alert"]


def test_every_command_of_the_runbook_exists() -> None:
    root = click.Context(cli)
    for words in re.findall(r"`rmq ([a-z][a-z -]*)", RUNBOOK):
        group: Any = cli
        for word in words.split():
            if not isinstance(group, click.Group):
                break
            group = group.get_command(root, word)
            assert group is not None, f"rmq {words}"


# Alerts about what no single look at Redis shows: the server itself, or an audit of days.
WITHOUT_CHECK = {
    "RmqTopicsNotCounted", "RmqServiceFails", "RmqServiceStalls", "RmqMessagesMissing",
    "RmqQueryWithoutDriver",
}  # fmt: skip


def test_checks_of_the_doctor_alerts_and_the_runbook_agree() -> None:
    sections = dict(
        (head, text)
        for head, text in re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", RUNBOOK, re.M | re.S)
    )
    alerts = [alert for check in CHECKS for alert in check.alerts]

    assert {check.runbook for check in CHECKS} <= sections.keys()
    assert len(alerts) == len(set(alerts))
    assert {rule["alert"] for rule in RULES} == {*alerts} | WITHOUT_CHECK
    for check in CHECKS:
        for alert in check.alerts:
            assert f"rmq doctor --only {check.name}`" in sections[alert]
    for heading in sections.keys() - {rule["alert"] for rule in RULES} - {"A"}:
        assert heading in BY_NAME, heading


def test_every_option_of_the_runbook_exists() -> None:
    root = click.Context(cli)
    seen = 0
    for line in re.findall(r"`rmq ([^`]*--[^`]*)`", RUNBOOK):
        group: Any = cli
        for word in line.split():
            if isinstance(group, click.Group):
                group = group.get_command(root, word)
            elif word.startswith("--"):
                seen += 1
                options = {name for option in group.params for name in option.opts}
                assert word in options, f"rmq {line}"
    assert seen >= 4


def test_panels_of_the_dashboard_have_ids_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 15
    taken = set()
    for panel in panels:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["description"]
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            assert named <= set(re.findall(r"\w+", " ".join(grouped))), panel["title"]


def test_every_metric_of_the_server_is_on_the_dashboard_or_in_a_rule() -> None:
    named = {
        use.metric.removesuffix("_bucket")
        for expression in EXPRESSIONS.values()
        for use in uses(expression)
    }
    missing = {metric.name for metric in metrics.SERVER_METRICS} - named
    assert missing <= {"rmq_server_service_done_total", "rmq_build_info"}


ALERT_TESTS = """
rule_files: [alerts.yml]
evaluation_interval: 10m
tests:
  - interval: 10m
    input_series:
      - {series: 'rmq_messages{topic="orders",queue="dead"}', values: '3x200'}
      - {series: 'rmq_messages{topic="bills",queue="dead"}', values: '0x200'}
      - {series: 'rmq_long_runs{topic="orders"}', values: '0x10 2x10 0x10'}
    alert_rule_test:
      - {eval_time: 23h, alertname: RmqDeadLettersStand, exp_alerts: []}
      - eval_time: 25h
        alertname: RmqDeadLettersStand
        exp_alerts:
          - exp_labels: {severity: warning, topic: orders}
            exp_annotations:
              summary: Topic orders has had dead letters for a day, 3 now.
              runbook: docs/runbook.md#rmqdeadlettersstand
      - {eval_time: 100m, alertname: RmqRunsLong, exp_alerts: []}
      - eval_time: 130m
        alertname: RmqRunsLong
        exp_alerts:
          - exp_labels: {severity: warning, topic: orders}
            exp_annotations:
              summary: 2 runs of handlers of topic orders may hang.
              runbook: docs/runbook.md#rmqrunslong
      - {eval_time: 300m, alertname: RmqRunsLong, exp_alerts: []}
  - interval: 1m
    input_series:
      - {series: 'rmq_topic_events_total{topic="orders",event="delivered"}', values: '0+9x60'}
      - series: 'rmq_topic_events_total{topic="orders",event="settled"}'
        values: '0+9x20 180+1x40'
      - {series: 'rmq_messages{topic="orders",queue="in_flight"}', values: '5x60'}
      - {series: 'rmq_topic_events_total{topic="slow",event="delivered"}', values: '0+9x60'}
      - {series: 'rmq_topic_events_total{topic="slow",event="settled"}', values: '0x60'}
      - {series: 'rmq_messages{topic="slow",queue="in_flight"}', values: '0+9x60'}
      - {series: 'rmq_topic_events_total{topic="rare",event="delivered"}', values: '0+1x60'}
      - {series: 'rmq_topic_events_total{topic="rare",event="settled"}', values: '0x60'}
      - {series: 'rmq_messages{topic="rare",queue="in_flight"}', values: '0x60'}
    alert_rule_test:
      - {eval_time: 20m, alertname: RmqDeliveriesFail, exp_alerts: []}
      - eval_time: 50m
        alertname: RmqDeliveriesFail
        exp_alerts:
          - exp_labels: {severity: warning, topic: orders}
            exp_annotations:
              summary: Most deliveries of topic orders fail.
              runbook: docs/runbook.md#rmqdeliveriesfail
"""


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_alerts_fire_for_dead_letters_long_runs_and_failing_deliveries(tmp_path: Path) -> None:
    shutil.copy(DOCS / "monitoring/alerts.yml", tmp_path)
    (tmp_path / "test.yml").write_text(ALERT_TESTS)

    ran = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
