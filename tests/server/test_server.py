"""The server on a real Redis: leadership, services, probes, metrics."""

from __future__ import annotations

import gzip
import http.client
import re
import signal
import time

import pytest

import rmq
from rmq.features.messages import service
from rmq.features.topic_admin import service as topic_admin_service
from rmq.http_framework import service as web_service, survey
from rmq.server import leadership, metrics
from rmq.server.leadership import Leadership
from tests.server.running import get, serving, until
from tests.servers import Server as Redis


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "EVERY_MIN_S", 0.2)
    monkeypatch.setattr(service.Rollback, "every_s", 0.1)
    monkeypatch.setattr(topic_admin_service, "WITH_DEAD_S", 0.2)
    monkeypatch.setattr(topic_admin_service.Retention, "every_s", 0.1)
    monkeypatch.setattr(leadership.Leadership, "every_s", 0.1)
    monkeypatch.setattr(web_service, "RETRY_S", 0.1)


def test_expired_leases_of_a_topic_that_nobody_consumes_are_given_back(
    server: Redis, client: rmq.Client, prefix: str
) -> None:
    topic = client.topic("orders", slots=2, lease=1, retry="immediate")
    for n in range(4):
        topic.send(n)
    topic.consumer().receive()
    held = client.admin.stats("orders")["in_flight"]
    assert held > 0
    time.sleep(2.1)  # the lease, and the second that its deadline is rounded up to
    assert client.admin.stats("orders")["in_flight"] == held, "nobody gives it back by itself"

    with serving(server.url, prefix):
        until(lambda: client.admin.stats("orders")["in_flight"] == 0, "the rollback")

    assert client.admin.stats("orders")["rolled_back"] == held


def test_dead_letters_past_their_retention_are_dropped_and_others_stay(
    server: Redis, client: rmq.Client, prefix: str
) -> None:
    for name, settings in (("old", {"dead_retention": 1}), ("kept", {})):
        topic = client.topic(name, **settings)  # type: ignore[arg-type]
        topic.send(1)
        with topic.consumer() as consumer:
            consumer.receive()[0].reject("why")
    time.sleep(1.1)
    raw = server.raw()

    with serving(server.url, prefix) as running:
        until(lambda: not raw.zcard(f"{prefix}:{{old_0}}:dead"), "the drop")
        until(lambda: _done(running, "retention"), "the end of the run")

    assert raw.zcard(f"{prefix}:{{kept_0}}:dead") == 1
    assert client.admin.stats("old")["dead_dropped"] == 1


def test_schedules_are_served_without_a_worker(
    server: Redis, client: rmq.Client, prefix: str
) -> None:
    client.topic("orders").every("tick", every=1, body={"n": 1}).declare()

    with serving(server.url, prefix):
        until(lambda: client.admin.stats("orders")["accepted"] >= 2, "two times")


def test_one_of_two_servers_leads_and_the_other_takes_over_at_once_when_it_stops(
    server: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "HOLD_S", 3600.0)
    with serving(server.url, prefix) as second:
        with serving(server.url, prefix) as first:
            until(lambda: first.leadership.leader and second.leadership.leader, "an answer")
            leaders = [running for running in (first, second) if running.leadership.leads()]
            assert len(leaders) == 1
            assert first.leadership.leader == second.leadership.leader
            statuses = {status.name: status for status in _follower(first, second).services()}
            assert statuses["survey"].runs == 0, "one survey is enough"
        until(second.leadership.leads, "the other one leads")


def test_a_server_that_was_killed_leads_no_longer_than_it_said(
    server: Redis, client: rmq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, other = (Leadership(client._transport, prefix) for _ in range(2))
    dead.run_once()
    other.run_once()
    assert (dead.leads(), other.leads()) == (True, False)

    with monkeypatch.context() as short:
        short.setattr(leadership, "HOLD_S", 0.5)
        dead.run_once()  # its last one
    time.sleep(0.55)
    other.run_once()

    assert (dead.leads(), other.leads()) == (False, True)


def test_probes_tell_when_redis_does_not_answer_and_when_it_does_again(
    own_server: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq.server import server as module

    monkeypatch.setattr(module, "READY_S", 1.0)
    monkeypatch.setattr(module, "RETRY_FOR_S", 0.1)
    with serving(own_server.url, prefix) as running:
        until(lambda: get(running.url + "/readyz")[0] == 200, "ready")
        own_server.kill()

        _, reply = until(
            lambda: (found := get(running.url + "/readyz"))[0] == 503 and found, "not ready"
        )
        assert "no script" in reply["problems"][0]
        assert get(running.url + "/livez") == (200, {"ok": True, "problems": []})

        own_server.start()
        until(lambda: get(running.url + "/readyz")[0] == 200, "ready again")


def test_metrics_count_messages_and_name_each_series_once(
    server: Redis, client: rmq.Client, prefix: str
) -> None:
    for n in range(3):
        client.topic("orders").send(n)

    with serving(server.url, prefix) as running:
        text = until(
            lambda: (
                'rmq_messages{queue="priority",topic="orders"} 3.0' in (t := _metrics(running))
                and t
            ),
            "the survey",
        )

    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert re.search(r"^rmq_server_leader 1\.0$", text, re.MULTILINE)
    assert f'\nrmq_build_info{{version="{rmq.__version__}"}} 1.0\n' in text
    assert 'rmq_topic_events_total{event="accepted",topic="orders"} 3.0' in text
    age = re.search(r'^rmq_oldest_due_seconds{topic="orders"} (.*)$', text, re.MULTILINE)
    assert age is not None
    assert float(age[1]) > 0, "they were sent a moment ago"


def test_metrics_are_compressed_for_clients_that_take_gzip(server: Redis, prefix: str) -> None:
    with serving(server.url, prefix) as running:
        connection = http.client.HTTPConnection(running.url.removeprefix("http://"))
        connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        text = gzip.decompress(answer.read()).decode()
        connection.close()

    assert answer.headers["Content-Encoding"] == "gzip"
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert "rmq_" in text


def test_metrics_tell_of_paused_sends_and_of_topics_without_series(
    server: Redis, client: rmq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "TOPICS_MAX", 2)
    for name in ("a", "b", "c"):
        client.topic(name).open()
    client.admin.topic_pause("a", verb="send")
    client.admin.topic_pause("b", verb="receive")

    with serving(server.url, prefix) as running:
        text = until(
            lambda: "rmq_server_topics_not_counted 1.0" in (t := _metrics(running)) and t,
            "the survey",
        )

    for line in (
        'rmq_paused{topic="a"} 0.0', 'rmq_paused{topic="b"} 1.0',
        'rmq_sends_paused{topic="a"} 1.0', 'rmq_sends_paused{topic="b"} 0.0',
    ):  # fmt: skip
        assert line in text
    assert 'topic="c"' not in text


def test_a_topic_that_cannot_be_read_does_not_stop_the_others(
    server: Redis, client: rmq.Client, prefix: str
) -> None:
    client.topic("broken").send(1)
    client.topic("orders").send(1)
    raw = server.raw()
    raw.delete(f"{prefix}:{{broken_0}}:store")
    raw.set(f"{prefix}:{{broken_0}}:store", "x")

    with serving(server.url, prefix) as running:
        until(lambda: "orders" in running.survey.topics, "the other topic")
        assert "broken" not in running.survey.topics
        assert running.problems() == []


def test_an_address_in_use_is_told_by_name(server: Redis, prefix: str) -> None:
    with serving(server.url, prefix) as running:
        taken = running.url.removeprefix("http://")
        from rmq.server.config import Address

        with (
            pytest.raises(rmq.ConfigurationError, match="set another one: --listen"),
            serving(server.url, prefix, listen=Address.parse(taken)),
        ):
            raise AssertionError


def test_the_command_stops_at_a_signal_and_reads_its_file_again(
    server: Redis, prefix: str, tmp_path, spawn
) -> None:
    file = tmp_path / "rmq.toml"
    file.write_text('[server]\nlisten = "127.0.0.1:0"\n')
    process = spawn("server", "--url", server.url, "--prefix", prefix, "--config", str(file))
    process.wait_for("this server leads")

    file.write_text('[server]\nlisten = "127.0.0.1:1"\nlog_level = "debug"\n')
    process.send_signal(signal.SIGHUP)
    process.wait_for("change at the next start: listen")
    file.write_text("[server\n")
    process.send_signal(signal.SIGHUP)
    process.wait_for("the settings were not changed")

    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert "stopped" in process.text()


def _metrics(running) -> str:
    return str(get(running.url + "/metrics")[1])


def _done(running, name: str) -> int:
    return {status.name: status.done for status in running.services()}[name]


def _follower(*servers):
    return next(running for running in servers if not running.leadership.leads())
