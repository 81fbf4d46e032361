"""The shell completes what Redis has."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time

import pytest
from click.shell_completion import ShellComplete

import rmq
from rmq.cli import cli
from rmq.cli_framework import names
from rmq.cli_framework.options import CommonOptions
from tests.cli.conftest import bury

ANSWER_S = names.ANSWER_S
PATIENCE_S = 60.0  # a completion gives up after 0.15 s, which a busy machine may need to answer


@pytest.fixture
def client(server, name):
    """A client whose topics are this test's alone: 100 names are completed, and no more."""
    with rmq.Client(server.url, prefix=name) as made:
        yield made


@pytest.fixture
def complete(server, name, monkeypatch):
    monkeypatch.setenv("RMQ_URL", server.url)
    monkeypatch.setenv("RMQ_PREFIX", name)
    monkeypatch.setattr(names, "ANSWER_S", PATIENCE_S)

    def words(*typed):
        *before, incomplete = typed
        maker = ShellComplete(cli, {"obj": CommonOptions()}, "rmq", "_RMQ_COMPLETE")
        return [item.value for item in maker.get_completions(list(before), incomplete)]

    return words


def test_commands_options_and_words(complete):
    assert complete("to") == ["topic", "top", "token"]
    assert complete("topic", "pa") == ["pause"]
    assert complete("topic", "ls", "--wa") == ["--watch"]
    assert complete("peek", "orders", "--queue", "in") == ["in-flight"]
    assert complete("topic", "ls", "-o", "nd") == ["ndjson"]
    assert complete("topic", "set", "orders", "--timed-priority", "") == ["first"]
    assert complete("topic", "set", "orders", "--expires", "o") == ["off"]


def test_topics(complete, topic):
    assert topic.name in complete("peek", topic.name[:-1])
    assert topic.name in complete("topic", "show", topic.name[:-1])
    assert topic.name in complete("worker", "ls", "--topic", topic.name[:-1])
    assert complete("topic", "create", topic.name[:-1]) == []
    assert complete("--prefix", "elsewhere", "peek", topic.name[:-1]) == []


def test_names_behind_a_password_in_a_database(complete, server, name, monkeypatch):
    with server.raw(db=3) as raw:
        raw.sadd(f"{name}:topics", "orders")
        raw.execute_command("ACL", "SETUSER", name, "on", ">p@ss/w:", "~*", "&*", "+@all")
    try:
        monkeypatch.setenv("RMQ_URL", f"redis://{name}:p%40ss%2Fw%3A@127.0.0.1:{server.port}/3")
        assert complete("peek", "ord") == ["orders"]

        monkeypatch.setenv("RMQ_URL", f"redis://{name}:wrong@127.0.0.1:{server.port}/3")
        assert complete("peek", "ord") == []
    finally:
        with server.raw(db=3) as raw:
            raw.delete(f"{name}:topics")
            raw.execute_command("ACL", "DELUSER", name)


@pytest.mark.parametrize("reply", [None, b"", b"*2\r\n$1\r\na\r\n", b"HTTP/1.1 400\r\n\r\n"])
def test_what_is_no_redis_offers_nothing_in_time(complete, monkeypatch, reply):
    monkeypatch.setattr(names, "ANSWER_S", ANSWER_S)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            with contextlib.suppress(OSError):  # the listener is closed at the end
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(4096)
                        connection.sendall(reply)

        if reply is not None:  # else nobody answers ever
            threading.Thread(target=answer, daemon=True).start()
        monkeypatch.setenv("RMQ_URL", f"redis://127.0.0.1:{listener.getsockname()[1]}/0")
        begun = time.monotonic()

        assert complete("peek", "") == []

        assert time.monotonic() - begun < PATIENCE_S
        listener.shutdown(socket.SHUT_RDWR)


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
    monkeypatch.setattr(names, "ANSWER_S", ANSWER_S)
    assert ANSWER_S < 0.2
    for url in ("redis://127.0.0.1:1/0", "redis://10.255.255.1/0", "nonsense", "embedded:///x"):
        monkeypatch.setenv("RMQ_URL", url)
        begun = time.monotonic()
        assert complete("peek", "") == []
        assert time.monotonic() - begun < PATIENCE_S  # to connect may take two minutes
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(run, shell_name):
    done = run("completion", shell_name)

    assert done.exit_code == 0
    assert "_RMQ_COMPLETE" in done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_real_bash_completes_a_topic(shell, topic, name, tmp_path):
    program = tmp_path / "rmq"
    imports = "from rmq.cli import main; from rmq.cli_framework import names"
    patient = f"{imports}; names.ANSWER_S = {PATIENCE_S}; main()"
    program.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c '{patient}' \"$@\"\n")
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
        env=shell.env | {"RMQ_PREFIX": name, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip

    assert topic.name in done.stdout.splitlines()
    assert "complete -o nosort -F _rmq_completion rmq" in done.stdout
    assert done.stderr == ""
