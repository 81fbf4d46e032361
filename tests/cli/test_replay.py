"""rmq replay: acked messages of the history are sent again by a job."""

from __future__ import annotations

import json
from typing import Any

import pytest

import rmq
from tests.integration.test_history import settle


@pytest.fixture
def acked(topic: Any, client: rmq.Client) -> Any:
    client.admin.topic_set(topic.name, history="keep=1h,max_bytes=8MiB")
    topic.send_many([rmq.Outgoing({"n": n}, type="row") for n in range(5)])
    settle(topic, 5)
    return topic


def test_selected_messages_are_counted_and_sent_again(run, acked, client):
    name = acked.name

    dry = run("replay", name, "--since", "1h", "--filter", "body.n>=2", "--dry-run")
    unchanged = client.admin.stats(name)["accepted"]
    done = run("replay", name, "--since", "1h", "--filter", "body.n>=2", "--yes", "--json")

    assert dry.stdout == f"{name}: would send 3 acked messages again; nothing was changed\n"
    assert (dry.exit_code, unchanged, done.exit_code) == (0, 5, 0)
    shown = json.loads(done.stdout)
    job = shown.pop("job")
    assert shown == {
        "topic": name, "dry_run": False, "matched": 3, "sent": 3, "gone": 0, "unreadable": 0,
        "to": None, "refused": {}, "lost_to": None,
    }  # fmt: skip
    assert client.admin.stats(name)["accepted"] == 8
    text = run("job", "show", job).stdout
    assert f"replay of acked messages of {name}" in text
    assert "filter body.n>=2" in text


def test_a_detached_job_sends_to_another_topic(run, acked, client):
    other = client.topic(f"{acked.name}-other")
    other.open()

    started = run("replay", acked.name, "--since", "1h", "--to", other.name, "--detach", "--yes")
    resumed = run("job", "resume", started.stdout.strip())

    assert (started.exit_code, resumed.exit_code) == (0, 0)
    assert client.admin.stats(other.name)["accepted"] == 5


def test_refused_messages_make_a_partial_exit(run, acked, client):
    acked.send("x" * 3000)
    settle(acked, 1)
    other = client.topic(f"{acked.name}-other", max_body=1000)
    other.open()

    done = run("replay", acked.name, "--since", "1h", "--to", other.name, "--yes")

    assert done.exit_code == 4
    assert done.stdout == f"{acked.name}: 5 messages sent to {other.name}\n"
    assert "not all messages were sent: 1 too large; which ones: rmq job show" in done.stderr


def test_a_resumed_job_ends_like_the_command_that_began_it(run, acked, client):
    acked.send("x" * 3000)
    settle(acked, 1)
    other = client.topic(f"{acked.name}-other", max_body=1000)
    other.open()

    started = run("replay", acked.name, "--since", "1h", "--to", other.name, "--detach", "--yes")
    id = started.stdout.strip()
    resumed = run("job", "resume", id)

    assert resumed.exit_code == 4
    assert f"1 message not sent; which ones: rmq job show {id} --outcomes N" in resumed.stderr


def test_nothing_matches_and_wrong_times(run, acked, topic):
    none = run("replay", topic.name, "--since", "1h", "--filter", "type=none", "--yes")
    wrong = run("replay", topic.name, "--since", "yesterday")
    missing = run("replay", topic.name)

    assert (none.exit_code, wrong.exit_code, missing.exit_code) == (3, 2, 2)
    assert "has no such messages" in none.stderr
    assert "or give a duration before now, as 2h" in wrong.stderr


def test_a_topic_without_a_history_says_how_to_turn_it_on(run, topic):
    refused = run("replay", topic.name, "--since", "1h")

    assert refused.exit_code == 2
    assert "--history keep=7d,max_bytes=1GiB" in refused.stderr


def test_a_begin_before_the_kept_part_is_noted(run, topic, client):
    client.admin.topic_set(topic.name, history="keep=1h,max_bytes=1MiB")
    topic.send_many([rmq.Outgoing("x" * 200_000) for _ in range(8)])
    settle(topic, 8)

    dry = run("replay", topic.name, "--since", "1h", "--dry-run")

    assert "may be missing from the history" in dry.stderr
