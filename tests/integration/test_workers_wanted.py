"""How many worker processes a topic needs, of what Redis knows of it."""

from __future__ import annotations

import time
from typing import Any

import pytest

import rmq
from rmq.features.topic_admin.service import Sampler
from rmq.features.workers import reporter
from rmq.features.workers.service import Wanted
from rmq.http_framework.service import ServerState
from rmq.http_framework.survey import Survey
from rmq.server.metrics import ServerMetrics
from tests.conftest import Clock
from tests.integration.driven import connect
from tests.server.running import until
from tests.servers import Server

RUN_S = 0.05


def sleep(body: Any) -> None:
    time.sleep(RUN_S)


def test_terms_are_those_of_the_workers_and_of_the_samples(
    server: Server, kind: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "HEARTBEAT_S", 0.1)
    prefix = f"wanted-{kind}"
    with (
        rmq.Client(server.url, prefix=prefix) as client,
        connect(kind, server.url, prefix=prefix) as api,
    ):
        survey = Survey(client._transport, prefix)
        sampler = Sampler(client._transport, survey)
        topic = client.topic("work", slo="p99<10s")
        topic.open()
        nothing = api.admin.workers_wanted("work", min=0)
        survey.run_once()
        sampler.run_once()
        topic.handler(concurrency=2)(sleep)
        with rmq.Worker(client, heartbeat="thread"):
            topic.send_many([rmq.Outgoing(n) for n in range(40)])
            until(lambda: client.admin.stats("work")["settled"] == 40, "all runs")
            until(
                lambda: sum(h.counts["ack"] for w in api.admin.workers() for h in w.handlers) == 40,
                "the report of the worker",
            )
            clock.advance(100)
            client.admin.topic_pause("work")
            topic.send_many([rmq.Outgoing(n) for n in range(60)])
            paused = api.admin.workers_wanted("work")
            survey.run_once()
            wanted = Wanted(client._transport, survey)
            wanted.run_once()
            exposed = ServerMetrics(
                lambda: survey.topics, ServerState(), wanted=lambda: wanted.by_topic
            )
            text = exposed.text().decode()

    assert (nothing.processes, nothing.running) == (0, 0)
    assert "no worker process" in nothing.unknown
    assert (paused.running, paused.executors_per_process, paused.work_off_s) == (1, 2.0, 10.0)
    assert paused.backlog == 0, "a pause holds them back"
    assert paused.arrival_per_s == pytest.approx(1.0, rel=0.05)
    assert RUN_S <= paused.run_s < 4 * RUN_S
    assert paused.executors == pytest.approx(paused.arrival_per_s * paused.run_s)
    assert (paused.processes, paused.unknown) == (1, "")
    assert 'rmq_workers_wanted{topic="work"} 1.0' in text
    assert 'rmq_workers_running{topic="work"} 1.0' in text


def test_topic_that_does_not_exist_and_wrong_bounds_are_refused(api: Any) -> None:
    with pytest.raises(rmq.TopicNotFound):
        api.admin.workers_wanted("nosuch")
    with pytest.raises(rmq.InvalidValue, match="below min"):
        api.admin.workers_wanted("nosuch", min=3, max=2)
