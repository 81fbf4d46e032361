from __future__ import annotations

import json
import re

import pytest

import rmq
from tests.integration.auditing import lose


@pytest.fixture
def sent(server, name):
    with rmq.Client(server.url, interceptors=[rmq.Audit()]) as client:
        topic = client.topic(name)
        return [topic.send(n).id for n in range(8)]


def test_table_of_a_topic_where_nothing_is_missing(run, client, name, sent):
    with client.topic(name).consumer() as consumer:
        consumer.ack(consumer.receive(3))

    done = run("audit", name, "--older-than", "0s")

    assert done.exit_code == 0
    head, row = done.stdout.splitlines()
    assert head.split() == [
        "TOPIC", "PRODUCERS", "NUMBERED", "SEEN", "ACCOUNTED", "WAITING", "IN-FLIGHT", "DEAD",
        "MISSING",
    ]  # fmt: skip
    assert row.split() == [name, "1", "8", "3", "0", "5", "0", "0", "0"]
    assert [head.index("MISSING") + 7, len(head)] == [len(row), len(row)]


def test_missing_messages_are_named_and_the_exit_code_is_1(shell, raw, name, sent):
    number, *_ = (lose(raw, name, sent[n]) for n in (2, 3, 7))

    done = shell("audit", name, "--older-than", "0")

    assert done.returncode == 1
    assert re.search(rf"^{name} +0 +{number[0]} +3-4$", done.stdout, re.MULTILINE)
    assert re.search(rf"^{name} +0 +{number[0]} +8$", done.stdout, re.MULTILINE)
    assert done.stderr == f"rmq: 3 messages of {name} missing\n"


def test_json_of_a_topic(run, raw, name, sent):
    producer, slot, _ = lose(raw, name, sent[0])
    lose(raw, name, sent[1])

    done = run("audit", name, "--older-than", "0", "--json")

    assert done.exit_code == 1
    assert json.loads(done.stdout) == {
        "topic": name, "producers": 1, "numbered": 8, "seen": 0, "accounted": 0, "waiting": 6,
        "in_flight": 0, "dead": 0, "missing": 2,
        "lost": [{"producer": producer, "slot": slot, "first": 1, "last": 2}],
    }  # fmt: skip
    told = json.loads(done.stderr)["error"]
    assert (told["type"], told["exit"]) == ("Missing", 1)


def test_younger_losses_wait_for_their_time(run, raw, name, sent):
    lose(raw, name, sent[0])

    assert run("audit", name).exit_code == 0
    assert run("audit", name, "--older-than", "0").exit_code == 1


def test_forget_reports_once_more(run, raw, name, sent):
    lose(raw, name, sent[0])

    done = run("audit", name, "--older-than", "0", "--forget")

    assert done.exit_code == 1
    assert "forgotten" in done.stderr
    assert run("audit", name, "--older-than", "0").exit_code == 0


def test_forget_needs_a_topic(run, name, sent):
    assert run("audit", "--forget").exit_code == 2


def test_all_topics_and_only_those_that_are_audited(run, server, name):
    ours = {"prefix": name}  # what other tests have done to their topics is not asked
    with rmq.Client(server.url, interceptors=[rmq.Audit()], **ours) as client:
        client.topic("numbered").send("a")
    with rmq.Client(server.url, **ours) as client:
        client.topic("plain").send("a")

    done = run("audit", "--older-than", "0", "--prefix", name)
    found = json.loads(run("audit", "--json", "--prefix", name).stdout)

    assert "numbered" in done.stdout
    assert "plain" not in done.stdout
    assert {one["topic"] for one in found} == {"numbered", "plain"}


def test_a_topic_that_is_broken_hides_no_loss_of_another(shell, raw, server, name):
    with rmq.Client(server.url, prefix=name, interceptors=[rmq.Audit()]) as client:
        client.topic("broken").send("a")
        ids = [client.topic("whole").send(n).id for n in range(3)]
    raw.delete(f"{name}:{{broken_0}}:slot")
    raw.zrem(f"{name}:{{whole_0}}:store", ids[1].member)

    done = shell("audit", "--older-than", "0", "--prefix", name)
    told = json.loads(shell("audit", "--older-than", "0", "--prefix", name, "--json").stdout)

    assert done.returncode == 1
    assert re.search(r"^whole +1 +3 .* 1$", done.stdout, re.MULTILINE)
    assert done.stderr.startswith("rmq: 1 message of whole missing; broken: ")
    assert "has vanished" in done.stderr
    assert {one["topic"]: one.get("missing") for one in told} == {"whole": 1, "broken": None}


def test_topic_that_nobody_audits_says_so(run, client, name):
    client.topic(name).send("a")

    done = run("audit", name)

    assert done.exit_code == 0
    assert "rmq.Audit" in done.stderr


def test_missing_topic_is_exit_code_3(run, name):
    assert run("audit", name).exit_code == 3


def test_many_ranges_are_cut_in_the_table_and_whole_in_json(run, server, raw, name):
    with rmq.Client(server.url, interceptors=[rmq.Audit()]) as client:
        ids = [one.id for one in client.topic(name).send_many([rmq.Outgoing(n) for n in range(60)])]
    for id in ids[::2]:
        lose(raw, name, id)

    done = run("audit", name, "--older-than", "0")
    told = json.loads(run("audit", name, "--older-than", "0", "--json").stdout)

    assert len(done.stdout.splitlines()) == 2 + 1 + 1 + 20
    assert "20 of 30 ranges" in done.stderr
    assert len(told["lost"]) == 30
