"""`rmq sink`: what queries have published, and forgetting it."""

from __future__ import annotations

import json
from typing import Any

import pytest

import rmq
from rmq.features.spark import scripts
from tests.cli.conftest import Shell

QUERY = "5b0c1f5e-3d0a-4f86-9d0e-0d2f6c1b7a55"


@pytest.fixture
def written(topic: rmq.Topic) -> rmq.Topic:
    """A query has published batch 0 and begun batch 1; another one has published batch 41."""
    for query, batch in ((QUERY, 0), ("backfill", 41)):
        stage = topic.stage()
        stage.push([rmq.Outgoing(batch)])
        topic.publish([stage.staged], query=query, batch=batch)
    topic._transport.run((lambda: (yield scripts.sink_begin(topic._context, QUERY, 1, b"[]")))())
    return topic


def test_sinks_are_listed(run: Any, written: rmq.Topic) -> None:
    shown = run("sink", "ls", written.name)
    told = json.loads(run("sink", "ls", written.name, "--json").stdout)

    assert shown.exit_code == 0
    assert shown.stdout.splitlines() == [
        "QUERY                                 PUBLISHED  BEGUN",
        f"{QUERY}          0      1",
        "backfill                                     41      -",
    ]
    assert told == [
        {"query": QUERY, "published": 0, "begun": 1},
        {"query": "backfill", "published": 41, "begun": None},
    ]


def test_no_sink_is_no_error(run: Any, topic: rmq.Topic) -> None:
    shown = run("sink", "ls", topic.name)

    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "no query has published to it" in shown.stderr
    assert run("sink", "ls", f"{topic.name}-none").exit_code == 3


def test_the_question_says_what_forgetting_means(
    shell: Shell, client: rmq.Client, written: rmq.Topic
) -> None:
    code, shown = shell.on_terminal(
        "sink", "forget", written.name, QUERY, typed=f"{written.name}\n"
    )

    assert code == 0
    assert "A replay of its batch 0 would be published a second time." in shown
    assert "Batch 1 has begun and may be published in part" in shown
    assert client.admin.sinks(written.name) == [rmq.Sink("backfill", 41, None)]


def test_nothing_is_forgotten_unless_a_person_confirms(
    run: Any, client: rmq.Client, written: rmq.Topic
) -> None:
    refused = run("sink", "forget", written.name, QUERY)
    assert (refused.exit_code, f"see rmq sink ls {written.name} first" in refused.stderr) == (
        6, True,
    )  # fmt: skip
    assert len(client.admin.sinks(written.name)) == 2

    done = run("sink", "forget", written.name, QUERY, "--yes", "--json")

    assert json.loads(done.stdout) == {
        "topic": written.name, "query": QUERY, "published": 0, "begun": 1, "forgotten": True,
    }  # fmt: skip
    again = run("sink", "forget", written.name, QUERY, "--yes")
    assert (again.exit_code, "has no record of query" in again.stderr) == (3, True)
    assert run("sink", "forget", written.name, "*", "--yes").exit_code == 2
