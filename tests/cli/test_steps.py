"""`rmq get` shows the steps of a handler, and `rmq dlq redrive --fresh` deletes them."""

from __future__ import annotations

import json

import pytest

import rmq


@pytest.fixture
def dead(topic: rmq.Topic) -> rmq.MessageId:
    """A dead letter with a step that is done, a step that has begun, and a cursor."""
    id: rmq.MessageId = topic.send({"id": 7}).id

    def fail() -> None:
        raise OSError("away")

    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.step("charge\x1b[31m", lambda: {"payment": "p-7"})
        d.save([1, 2])
        with pytest.raises(OSError, match="away"):
            d.step("mail", fail)
        d.reject("no")
    return id


def test_get_shows_steps_and_their_values(run, topic, dead):
    shown = run("get", topic.name, dead).stdout
    fields = json.loads(run("get", topic.name, dead, "--json").stdout)["steps"]

    lines = shown[shown.index("steps") :].splitlines()[1:4]
    assert [line.split()[1:] for line in lines] == [
        ["done", "charge\\x1b[31m", '{"payment":"p-7"}'],
        ["cursor", "[1,2]"],
        ["begun", "mail"],
    ]
    assert [(each["name"], each["state"], each.get("value")) for each in fields] == [
        ("charge\x1b[31m", "done", {"payment": "p-7"}),
        ("", "cursor", [1, 2]),
        ("mail", "begun", None),
    ]


def test_a_redrive_keeps_steps_unless_it_is_fresh(run, topic, dead):
    kept = run("dlq", "redrive", topic.name, "--yes")
    assert kept.exit_code == 0, kept.stderr
    assert len(topic.get(dead).steps) == 3
    with topic.consumer() as consumer:
        consumer.receive()[0].reject("again")

    fresh = run("dlq", "redrive", topic.name, "--fresh", "--yes", "--json")
    assert (fresh.exit_code, json.loads(fresh.stdout)["sent"]) == (0, 1)
    assert topic.get(dead).steps == ()
    jobs = json.loads(run("job", "ls", "--json").stdout)
    mine = [job["fresh"] for job in jobs if job["topic"] == topic.name]
    assert sorted(mine) == [False, True]  # they began in the same second


def test_fresh_is_refused_with_another_topic(run, topic, dead, client):
    client.topic("other").open()

    refused = run("dlq", "redrive", topic.name, "--fresh", "--to", "other", "--yes")

    assert (refused.exit_code, "fresh: " in refused.stderr) == (2, True)
