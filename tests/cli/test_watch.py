"""--watch: again and again, in place on a terminal, one after another in a pipe."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time

import pytest

from tests.cli.conftest import ndjson


def read_lines(running, count):
    return "".join(running.stdout.readline().decode() for _ in range(count))


@pytest.mark.parametrize(
    "words", [["topic", "show"], ["dlq", "ls"], ["schedule", "ls"], ["peek"], ["query", "ls"]]
)
def test_a_listing_is_repeated_until_ctrl_c(shell, topic, words):
    running = shell.start(
        *words, topic.name, "-o", "json", "--watch", "50ms",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    documents = ndjson(read_lines(running, 3))

    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)

    assert len(documents) == 3
    assert (running.returncode, err.strip()) == (130, b"")


def test_csv_has_one_header(shell, topic):
    topic.send(1)
    running = shell.start("peek", topic.name, "-o", "csv", "--columns", "body", "--watch", "50ms",
                          stdout=subprocess.PIPE)  # fmt: skip

    assert read_lines(running, 4) == "body\n1\n1\n1\n"
    running.stdout.close()
    assert running.wait(60) == 141


def test_a_later_error_is_shown_and_the_first_one_ends_it(shell, client, topic):
    absent = shell("topic", "show", f"{topic.name}-no", "--watch", "50ms")
    running = shell.start("topic", "show", topic.name, "--json", "--watch", "50ms",
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    assert json.loads(read_lines(running, 1))["topic"] == topic.name

    client.admin.topic_delete(topic.name)
    shown = running.stderr.readline().decode()
    running.send_signal(signal.SIGINT)

    assert absent.returncode == 3
    assert shown.startswith("rmq: ")
    running.communicate(timeout=60)
    assert running.returncode == 130


def test_on_a_terminal_it_is_redrawn_in_place(shell, topic):
    ours, theirs = pty.openpty()
    running = shell.start("topic", "show", topic.name, "--watch", "100ms",
                          stdin=theirs, stdout=theirs, stderr=theirs,
                          env={"COLUMNS": "80", "LINES": "10"})  # fmt: skip
    os.close(theirs)
    shown, until = "", time.monotonic() + 60
    while shown.count("Ctrl-C ends") < 3 and time.monotonic() < until:
        if select.select([ours], [], [], 0.1)[0]:
            shown += os.read(ours, 65536).decode()
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    if select.select([ours], [], [], 1)[0]:
        shown += os.read(ours, 65536).decode()
    os.close(ours)

    assert shown.startswith("\x1b[?7l")
    assert "\x1b[9A\r" in shown  # up to the first of 8 lines and the foot
    assert "more lines; " in shown
    assert shown.rstrip().endswith("\x1b[?7h")
