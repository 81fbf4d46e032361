from __future__ import annotations

import json
import re
import signal
import subprocess
import time

import pytest

import rmq
from tests.cli.conftest import ndjson


def fill(topic):
    for n in range(6):
        topic.send(n)
    topic.send(9, delay=600)
    with topic.consumer() as consumer:
        consumer.ack(consumer.receive(2))


@pytest.fixture
def busy(client, name):
    made = client.topic(name, slots=2)
    fill(made)
    return made


def test_all_topics(run, server, name):
    with rmq.Client(server.url, prefix=name) as client:  # without what other tests have left
        fill(client.topic("busy", slots=2))
        client.topic("idle").open()

    shown = run("stats", "--prefix", name).stdout

    head, busy, idle = shown.splitlines()
    assert head.split() == [
        "TOPIC", "WAITING", "LATER", "IN-FLIGHT", "DEAD", "LATE", "ACCEPTED", "SETTLED",
    ]  # fmt: skip
    _, *counts, late, accepted, settled = busy.split()
    assert counts == ["4", "1", "0", "0"]
    assert late.endswith("s")
    assert (accepted, settled) == ("7", "2")
    assert idle.split()[0] == "idle"
    found = {
        one["topic"]: one for one in json.loads(run("stats", "--prefix", name, "--json").stdout)
    }
    assert found["busy"]["settled"] == 2


def test_one_topic_and_its_slots(run, busy):
    assert re.search(r"^accepted +7$", run("stats", busy.name).stdout, re.MULTILINE)
    assert json.loads(run("stats", busy.name, "--json").stdout)["waiting"] == 4
    slots = json.loads(run("stats", busy.name, "--slots", "--json").stdout)["slots"]
    assert [one["slot"] for one in slots] == [0, 1]
    assert sum(one["accepted"] for one in slots) == 7
    assert len(run("stats", busy.name, "--slots").stdout.splitlines()) == 3


def test_due_is_a_histogram_of_the_messages_that_wait_for_a_time(run, busy):
    busy.send_many([rmq.Outgoing(n, delay=30) for n in range(100)])
    busy.send("far", delay=864_000)

    shown = run("stats", busy.name, "--due").stdout

    head, *rows = shown.splitlines()
    assert head.split() == ["DUE", "MESSAGES", "HISTOGRAM"]
    assert [row[: head.index("MESSAGES")].strip() for row in rows] == [
        "now", "within 1m", "1m to 5m", "5m to 15m", "15m to 1h", "1h to 6h", "6h to 1d",
        "1d to 7d", "after 7d",
    ]  # fmt: skip
    bars = {row.split("  ")[0].strip(): row.count("█") for row in map(str.strip, rows)}
    assert bars == dict.fromkeys(bars, 0) | {"within 1m": 48, "5m to 15m": 1, "after 7d": 1}
    starts = {row.index("█") for row in rows if "█" in row}
    assert starts == {head.index("HISTOGRAM")}, "the bars stand below their head"
    assert max(map(len, shown.splitlines())) <= 80


def test_due_as_records(run, busy):
    found = json.loads(run("stats", busy.name, "--due", "--json").stdout)

    assert found["topic"] == busy.name
    assert [one["within_s"] for one in found["due"]] == [
        0, 60, 300, 900, 3600, 21_600, 86_400, 604_800, None
    ]  # fmt: skip
    assert [one["messages"] for one in found["due"]] == [0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert ndjson(run("stats", busy.name, "--due", "-o", "ndjson").stdout) == found["due"]


def test_due_of_an_idle_topic_has_no_bars(run, client, name):
    client.topic(name).open()

    assert "█" not in run("stats", name, "--due").stdout


@pytest.mark.parametrize("words", [["--due"], ["orders", "--due", "--slots"]])
def test_due_of_no_topic_or_of_slots_is_wrong_usage(run, words):
    assert run("stats", *words).exit_code == 2


def test_watch_in_a_pipe_is_a_document_each_time(shell, busy):
    running = shell.start(
        "stats", busy.name, "--watch", "100ms", "--json",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    lines = [running.stdout.readline().decode() for _ in range(3)]

    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=90)

    assert [one["accepted"] for one in ndjson("".join(lines))] == [7, 7, 7]
    assert (running.returncode, err.strip()) == (130, b"")


def test_watch_shows_the_pace(shell, busy):
    running = shell.start("stats", "--watch", "500ms", stdout=subprocess.PIPE)
    first = running.stdout.readline().decode()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        head = running.stdout.readline().decode()
        if head.startswith("TOPIC"):
            break

    running.stdout.close()

    assert "IN/S" not in first
    assert head.split()[-2:] == ["IN/S", "OUT/S"]
    assert running.wait(90) == 141


def test_watch_of_no_time_is_wrong_usage(run, busy):
    assert run("stats", "--watch", "0").exit_code == 2
