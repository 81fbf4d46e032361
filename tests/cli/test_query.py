"""`rmq query`: who holds messages, and giving them back."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

import rmq
from tests.cli.conftest import Shell

RUN, TWIN, OTHER = "3f2a9c0d" * 4, "3f2a0000" * 4, "77aa" * 8


@pytest.fixture
def busy(client: rmq.Client, name: str) -> rmq.Topic:
    """A query that is run and holds 12 of 15 messages."""
    topic = client.topic(name, slots=2, retry="immediate")
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(15)])
    topic.query(RUN, "spark-1:4711:88").take({}, 12)
    return topic


@pytest.fixture
def held(busy: rmq.Topic) -> rmq.Topic:
    """The same, and another one whose driver is gone holds the other 3."""
    busy.query(OTHER, "spark-2:9:1", owner_lease=1).take({})
    time.sleep(1.05)  # until its owner lease has ended
    return busy


def in_flight(client: rmq.Client, topic: rmq.Topic) -> int:
    return client.admin.stats(topic.name)["in_flight"]


def test_queries_are_listed_in_columns_that_align(run: Any, held: rmq.Topic) -> None:
    shown = run("query", "ls", held.name)

    assert shown.exit_code == 0
    head, first, second = shown.stdout.splitlines()
    assert head.split() == [
        "RUN", "MESSAGES", "SLOTS", "ROWS", "BYTES", "REPLAYS", "LAG", "LEASE", "OWNED", "OWNER",
    ]  # fmt: skip
    assert (first[:32], second[:32]) == (RUN, OTHER)
    assert (first[34:42].strip(), second[34:42].strip()) == ("12", "3")
    assert first.endswith("  spark-1:4711:88")
    for title, ours, theirs in (("LEASE", " left", " left"), ("OWNED", " left", "ended ")):
        at = head.index(title)
        assert ours in first[at : at + 16]
        assert theirs in second[at : at + 16]


def test_what_a_driver_told_is_listed_and_blank_where_it_told_nothing(
    run: Any, held: rmq.Topic
) -> None:
    told = {"rows": 1234, "bytes": 56789, "replays": 2, "lag_ms": 1500}
    held.query(RUN, "spark-1:4711:88").keep((), told)

    head, *lines = run("query", "ls", held.name).stdout.splitlines()

    shown = {line[:32]: line for line in lines}
    at = slice(head.index("SLOTS") + 5, head.index("LEASE"))
    assert shown[RUN][at].split()[:3] == ["1234", "56789", "2"]
    assert "1.5s" in shown[RUN][at]
    assert shown[OTHER][at].strip() == ""
    documents = json.loads(run("query", "ls", held.name, "--json").stdout)
    assert {document["run"]: document["report"] for document in documents} == {
        RUN: told, OTHER: {},
    }  # fmt: skip


def test_queries_are_one_json_document(run: Any, held: rmq.Topic) -> None:
    first, second = json.loads(run("query", "ls", held.name, "--json").stdout)

    assert (first["run"], first["owner"], first["messages"]) == (RUN, "spark-1:4711:88", 12)
    assert sum(first["slots"].values()) == 12
    assert set(first["slots"]) == {"0", "1"}
    assert 0 < first["owner_left_s"] <= 15
    assert 0 < first["lease_left_s"] <= 600
    assert second["owner_left_s"] < 0


def test_no_query_is_no_error(run: Any, topic: rmq.Topic) -> None:
    shown = run("query", "ls", topic.name)

    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "no query holds messages" in shown.stderr
    assert json.loads(run("query", "ls", topic.name, "--json").stdout) == []
    assert run("query", "ls", f"{topic.name}-none").exit_code == 3


def test_a_person_gives_back_what_a_silent_query_held(
    shell: Shell, client: rmq.Client, held: rmq.Topic
) -> None:
    code, shown = shell.on_terminal("query", "release", held.name, "77aa", typed=f"{held.name}\n")

    assert code == 0
    assert f"This will give back 3 messages that query {OTHER} holds" in shown
    assert "the batch that it had begun is gone" in shown
    assert f"{held.name}: 3 messages of query {OTHER} given back" in shown
    assert in_flight(client, held) == 12


def test_nothing_is_given_back_unless_a_person_confirms(
    run: Any, shell: Shell, client: rmq.Client, held: rmq.Topic
) -> None:
    refused = run("query", "release", held.name, OTHER)
    code, shown = shell.on_terminal("query", "release", held.name, OTHER, typed="other\n")
    dry = run("query", "release", held.name, OTHER, "--dry-run")

    assert (refused.exit_code, "nothing was done" in refused.stderr) == (6, True)
    assert (code, "that is not the name of the topic" in shown) == (6, True)
    assert (dry.exit_code, "would give back 3 messages" in dry.stdout) == (0, True)
    assert in_flight(client, held) == 15

    done = run("query", "release", held.name, OTHER, "--yes", "--json")

    assert json.loads(done.stdout) == {
        "topic": held.name, "run": OTHER, "dry_run": False, "released": 3,
    }  # fmt: skip


def test_a_query_that_is_run_is_refused_before_anybody_is_asked(
    run: Any, client: rmq.Client, busy: rmq.Topic
) -> None:
    refused = run("query", "release", busy.name, RUN)
    told = run("query", "release", busy.name, RUN, "--yes", "--json")

    assert (refused.exit_code, "is run by spark-1:4711:88" in refused.stderr) == (6, True)
    assert json.loads(told.stderr)["error"]["type"] == "QueryOwned"
    assert in_flight(client, busy) == 12

    assert run("query", "release", busy.name, RUN, "--yes", "--force").exit_code == 0
    assert in_flight(client, busy) == 0


def test_a_run_may_be_given_by_how_it_begins_if_that_is_one(run: Any, busy: rmq.Topic) -> None:
    busy.query(TWIN, "spark-3:1:1").renew({})

    both = run("query", "release", busy.name, "3f2a", "--yes", "--force")
    none = run("query", "release", busy.name, "3f2b", "--yes")
    short = run("query", "release", busy.name, "3f2", "--yes")
    one = run("query", "release", busy.name, "3f2a9", "--yes", "--force")

    assert (both.exit_code, f"begins 2 queries, {TWIN}, {RUN}" in both.stderr) == (2, True)
    assert (none.exit_code, "has no query 3f2b" in none.stderr) == (3, True)
    assert (short.exit_code, "use 4 to 32" in short.stderr) == (2, True)
    assert (one.exit_code, f"12 messages of query {RUN} given back" in one.stdout) == (0, True)
