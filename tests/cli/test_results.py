"""`rmq result` and `rmq get`: how messages have ended, and how far they are."""

from __future__ import annotations

import json

import pytest

import rmq


@pytest.fixture
def kept(topic: rmq.Topic) -> rmq.ResultHandle:
    """A message that keeps its result."""
    return topic.result(topic.send({"id": 7}, keep_result=60).id)


def test_result_shows_the_value_of_a_message_that_succeeded(run, topic, kept):
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.ack(result={"rows": 3})

    shown = run("result", topic.name, kept.id)
    fields = json.loads(run("result", topic.name, kept.id, "--json").stdout)

    assert (shown.exit_code, '"rows": 3' in shown.stdout) == (0, True)
    assert (fields["place"], fields["outcome"]["outcome"]) == ("gone", "succeeded")
    assert fields["outcome"]["value"] == {"rows": 3}
    assert json.loads(run("get", topic.name, kept.id, "--json").stdout) == fields


def test_result_shows_the_error_of_a_dead_letter(run, topic, kept):
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.reject("no such order")

    shown = run("result", topic.name, kept.id)

    assert (shown.exit_code, "dead" in shown.stdout) == (1, True)


def test_result_and_get_show_the_progress_of_a_message_in_flight(run, topic, kept):
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.progress(0.4, "page 12 of 30")
        shown = [run(verb, topic.name, kept.id) for verb in ("result", "get")]
        printed = [run(verb, topic.name, kept.id, "--json").stdout for verb in ("result", "get")]
        d.ack()

    assert [each.exit_code for each in shown] == [4, 0]
    assert all("40%, page 12 of 30" in each.stdout for each in shown)
    assert [json.loads(each)["progress"]["fraction"] for each in printed] == [0.4, 0.4]


def test_wait_ends_without_an_outcome_at_the_time_limit(run, topic, kept):
    shown = run("result", topic.name, kept.id, "--wait", "50ms")

    assert (shown.exit_code, "waiting" in shown.stdout) == (4, True)


@pytest.mark.parametrize(("is_acked", "text"), [(False, "waits, and keeps"), (True, "is unknown")])
def test_a_message_without_a_result_says_so(run, topic, is_acked, text):
    id = topic.send(1).id
    if is_acked:
        with topic.consumer() as consumer:
            consumer.receive()[0].ack()

    shown = run("result", topic.name, id)

    assert (shown.exit_code, text in shown.stderr) == (3, True)


def test_send_keeps_a_result_if_it_is_asked_to(run, topic):
    id = run("send", topic.name, "1", "--keep-result", "1m", "--json")

    assert topic.result(json.loads(id.stdout)["id"]).read().keeps
