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
    assert busy.split() == ["busy", "4", "1", "0", "0", "-", "7", "2"]
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
