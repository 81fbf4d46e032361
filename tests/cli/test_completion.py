"""The shell completes what Redis has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest
from click.shell_completion import ShellComplete

from rmq.cli import cli
from rmq.cli.options import CommonOptions
from tests.cli.conftest import bury


@pytest.fixture
def complete(server, monkeypatch):
    monkeypatch.setenv("RMQ_URL", server.url)

    def words(*typed):
        *before, incomplete = typed
        maker = ShellComplete(cli, {"obj": CommonOptions()}, "rmq", "_RMQ_COMPLETE")
        return [item.value for item in maker.get_completions(list(before), incomplete)]

    return words


def test_commands_options_and_words(complete):
    assert complete("to") == ["topic", "top"]
    assert complete("topic", "pa") == ["pause"]
    assert complete("topic", "ls", "--wa") == ["--watch"]
    assert complete("peek", "orders", "--place", "in") == ["in-flight"]
    assert complete("topic", "ls", "-o", "nd") == ["ndjson"]


def test_topics(complete, topic):
    assert topic.name in complete("peek", topic.name[:-1])
    assert topic.name in complete("topic", "show", topic.name[:-1])
    assert topic.name in complete("worker", "ls", "--topic", topic.name[:-1])
    assert complete("topic", "create", topic.name[:-1]) == []
    assert complete("--prefix", "elsewhere", "peek", topic.name[:-1]) == []


def test_schedules_of_the_topic(complete, topic):
    topic.every("report", every=3600, body=1).declare()

    assert complete("schedule", "pause", topic.name, "re") == ["report"]
    assert complete("schedule", "pause", f"{topic.name}-no", "re") == []


def test_ids_of_dead_letters_and_of_waiting_messages(complete, topic):
    (dead,) = bury(topic, "why")
    waiting = str(topic.send(1).id)

    assert complete("dlq", "show", topic.name, "") == [dead]
    assert complete("get", topic.name, "") == [dead, waiting]


def test_it_is_silent_and_quick_where_redis_is_away(complete, monkeypatch, capfd):
    for url in ("redis://127.0.0.1:1/0", "redis://10.255.255.1/0", "nonsense", "embedded:///x"):
        monkeypatch.setenv("RMQ_URL", url)
        begun = time.monotonic()
        assert complete("peek", "") == []
        assert time.monotonic() - begun < 2  # 0.15 s, and a busy machine
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(run, shell_name):
    done = run("completion", shell_name)

    assert done.exit_code == 0
    assert "_RMQ_COMPLETE" in done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_real_bash_completes_a_topic(shell, topic, tmp_path):
    program = tmp_path / "rmq"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rmq "$@"\n')
    program.chmod(0o755)
    typed = f"rmq peek {topic.name[:-1]}"
    script = f"""eval "$(rmq completion bash)"
COMP_WORDS=({typed}) COMP_CWORD=2 COMP_LINE="{typed}" COMP_POINT={len(typed)}
_rmq_completion rmq {topic.name[:-1]} peek
printf '%s\\n' "${{COMPREPLY[@]}}"
complete -p rmq
"""

    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=60,
        env=shell.env | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip

    assert topic.name in done.stdout.splitlines()
    assert "complete -o nosort -F _rmq_completion rmq" in done.stdout
    assert done.stderr == ""
