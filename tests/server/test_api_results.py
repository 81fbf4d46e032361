"""`GET .../result`: the progress and the result of a message over HTTP and in the console."""

from __future__ import annotations

import threading

import pytest
from click.testing import CliRunner

import rmq
from rmq.cli import cli
from rmq.server import api as server_api
from tests.cli.conftest import OWN_STDERR
from tests.server.conftest import Ask
from tests.server.console.fetching import fetch
from tests.server.running import serving
from tests.servers import Server as Redis


def _sent(client: rmq.Client) -> tuple[rmq.Topic, str, str]:
    """Send a message that keeps its result. Return its topic, id and path."""
    topic = client.topic("imports")
    id = str(topic.send(1, keep_result=60).id)
    return topic, id, f"/topics/imports/messages/{id}"


def test_a_result_has_the_progress_and_then_the_value(api: Ask, client: rmq.Client) -> None:
    topic, id, path = _sent(client)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.progress(0.25, "page 1")
        running = api(path + "/result")
        d.ack(result=[1, 2])
    ended = api(path + "/result")

    assert (running.status, running.body["place"], running.body["outcome"]) == (
        200, "in_flight", None,
    )  # fmt: skip
    assert (running.body["progress"]["fraction"], running.body["progress"]["text"]) == (
        0.25, "page 1",
    )  # fmt: skip
    outcome = ended.body["outcome"]
    assert (outcome["id"], outcome["outcome"], outcome["value"]["text"]) == (
        id, "succeeded", "[1, 2]",
    )  # fmt: skip


def test_wait_answers_when_the_message_has_ended(
    api: Ask, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_api, "ANSWER_S", 0.5)  # the wait is longer than other requests
    topic, _, path = _sent(client)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(api(path + "/result?wait=30")))
    asking.start()
    asking.join(1)
    assert asking.is_alive()
    with topic.consumer() as consumer:
        consumer.receive()[0].ack(result="done")
    asking.join()

    assert (answers[0].status, answers[0].body["outcome"]["value"]["text"]) == (200, "done")


def test_wait_answers_without_an_outcome_at_the_time_limit(api: Ask, client: rmq.Client) -> None:
    answer = api(_sent(client)[2] + "/result?wait=0.05")

    assert (answer.status, answer.body["place"], answer.body["outcome"]) == (200, "waiting", None)


def test_a_message_that_kept_no_result_is_not_found(api: Ask, client: rmq.Client) -> None:
    topic = client.topic("imports")
    id = topic.send(1).id
    with topic.consumer() as consumer:
        consumer.receive()[0].ack()

    answer = api(f"/topics/imports/messages/{id}/result")

    assert (answer.status, answer.body["type"]) == (404, "urn:rmq:error:not-found")


def test_a_send_keeps_its_result(api: Ask, client: rmq.Client) -> None:
    topic = client.topic("imports")
    topic.open()
    sent = api("/topics/imports/messages", "POST", {"body": 1, "keep_result": 60})

    assert topic.result(sent.body["id"]).read().keeps


def test_the_console_shows_the_progress_and_then_the_result(
    server: Redis, prefix: str, client: rmq.Client
) -> None:
    topic, _, path = _sent(client)
    with serving(server.url, prefix) as running:
        page = f"{running.url}/console{path}"
        with topic.consumer() as consumer:
            (d,) = consumer.receive()
            d.progress(0.4, "<page 12>")
            in_flight = fetch(page).text
            d.ack(result={"rows": 3})
        ended = fetch(page).text

    assert 'value="0.4"' in in_flight
    assert "&lt;page 12&gt;" in in_flight
    assert "succeeded" in ended
    assert "rows" in ended


def test_a_value_that_is_not_stored_has_its_reason(
    server: Redis, prefix: str, client: rmq.Client
) -> None:
    topic, id, path = _sent(client)
    with topic.consumer() as consumer:
        consumer.receive()[0].ack(result="x" * 300_000)
    with serving(server.url, prefix) as running:
        page = fetch(f"{running.url}/console{path}").text
    shown = CliRunner(**OWN_STDERR).invoke(
        cli, ["result", topic.name, id, "--url", server.url, "--prefix", prefix]
    )

    assert "Not stored: it is larger than 256 KiB." in page
    assert "(not stored: it is larger than 256 KiB)" in shown.stdout
