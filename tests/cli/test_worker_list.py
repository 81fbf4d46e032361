"""`rmq worker ls` and `show`, with real worker processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

import rmq
from tests.cli.program import SHOP, write
from tests.patience import wait_for

PREFIX = "prefix{}"  # each test lists only its own processes
BEAT_S = 0.2
FADING_S = 2.0  # so that a report is read before it expires, on a machine that is busy


@pytest.fixture
def prefix(name: str) -> str:
    return PREFIX.format(name)


@pytest.fixture
def plain(tmp_path: Path, server: Any, name: str, prefix: str) -> Path:
    """A module with one handler, whose reports last for 30 s."""
    text = SHOP.replace("{url!r},", f"{{url!r}}, prefix={prefix!r},")
    write(tmp_path, text.format(url=server.url, topic=name))
    return tmp_path


@pytest.fixture
def beating(plain: Path) -> Path:
    """The same module, whose processes report every BEAT_S; what they said lasts for a minute."""
    return _with(plain, HEARTBEAT_S=BEAT_S, KEEP_HEARTBEATS=300)


@pytest.fixture
def fading(plain: Path) -> Path:
    """The same module, whose reports last for three times FADING_S."""
    return _with(plain, HEARTBEAT_S=FADING_S)


def _with(home: Path, **constants: float) -> Path:
    lines = [f"reporter.{name} = {value}" for name, value in constants.items()]
    text = "\n".join(["", "from rmq.features.workers import reporter", *lines, ""])
    write(home, (home / "shop.py").read_text() + text)
    return home


@pytest.fixture
def near(server: Any, prefix: str):
    with rmq.Client(server.url, prefix=prefix) as client:
        yield client


def keys(raw: Any, prefix: str) -> list[bytes]:
    return sorted(raw.keys(f"{prefix}:worker*"))


@pytest.mark.slow
def test_two_processes_are_listed_with_their_numbers_and_vanish_when_they_stop(
    plain, near, name, prefix, raw, start, run
):
    program = start("shop", "--processes", 2).ready()
    wait_for(lambda: len(near.admin.workers()) == 2)
    children = {child.pid for child in program.children()}

    workers = near.admin.workers()
    listed = json.loads(run("worker", "ls", "--json", "--prefix", prefix).stdout)

    assert {status.pid for status in workers} == children
    assert sorted(status.process or 0 for status in workers) == [1, 2]
    assert {(status.host, status.version, status.topics) for status in workers} == {
        (socket.gethostname(), rmq.__version__, (name,))
    }
    assert [one["pid"] for one in listed] == [status.pid for status in workers]

    program.ask(signal.SIGTERM)
    assert program.end() == 0
    assert near.admin.workers() == []
    assert keys(raw, prefix) == []


def test_a_running_handler_is_shown_until_it_ends(
    beating, near, name, prefix, start, run, tmp_path
):
    start("shop").ready()
    end = tmp_path / "end"
    sent = near.topic(name).send({"until": str(end), "secret": "hidden"}).id

    (status,) = wait_for(lambda: [one for one in near.admin.workers() if one.running])
    shown = run("worker", "show", status.id[:4], "--prefix", prefix)
    text = run("worker", "ls", "--prefix", prefix, COLUMNS="80").stdout

    (running,) = status.running
    assert (running.id, running.topic, running.handler) == (str(sent), name, "handle")
    assert running.seconds > 0
    assert status.handlers[0].running == 1
    assert str(sent) in shown.stdout
    assert "hidden" not in shown.stdout + run("worker", "ls", "--json", "--prefix", prefix).stdout
    head, row = text.splitlines()
    assert head.split() == ["ID", "HOST", "PID", "TOPICS", "RUNS", "OLDEST", "SEEN", "VERSION"]
    assert row.split()[0] == status.id
    assert row[head.index("RUNS") : head.index("RUNS") + 4].strip() == "1"
    assert max(map(len, text.splitlines())) <= 80
    end.touch()
    wait_for(lambda: not near.admin.workers()[0].running)
    wait_for(lambda: near.admin.workers()[0].handlers[0].counts["ack"] == 1)


def test_a_killed_process_grows_old_and_expires(fading, near, raw, prefix, start):
    program = start("shop").ready()
    (status,) = wait_for(near.admin.workers)
    assert status.pid == program.process.pid
    os.kill(status.pid, signal.SIGKILL)
    program.end()

    ages = []
    while found := near.admin.workers():
        ages.append(found[0].heartbeat_age_s)
        time.sleep(0.05)

    assert ages, "it vanished with its process"
    assert max(ages) > FADING_S
    assert max(ages) <= 3 * FADING_S
    wait_for(lambda: keys(raw, prefix) == [])


def test_the_next_report_removes_the_id_of_a_process_that_died(near, raw, beating, prefix, start):
    raw.zadd(f"{prefix}:workers", {"deadbeef": 1})
    start("shop").ready()
    (status,) = wait_for(near.admin.workers)

    wait_for(lambda: raw.zscore(f"{prefix}:workers", "deadbeef") is None)

    assert raw.zrange(f"{prefix}:workers", 0, -1) == [status.id.encode()]


def test_nothing_to_list_is_a_note_and_an_unknown_id_is_exit_code_3(run, prefix):
    listed = run("worker", "ls", "--prefix", prefix)
    shown = run("worker", "show", "0a", "--prefix", prefix)

    assert (listed.exit_code, listed.stdout) == (0, "")
    assert "no worker process" in listed.stderr
    assert run("worker", "ls", "--json", "--prefix", prefix).stdout.strip() == "[]"
    assert shown.exit_code == 3


@pytest.mark.parametrize("module", ["ls", "show"])
def test_a_module_of_the_name_of_a_command_is_run_by_its_long_form(shop, orders, start, module):
    write(shop, (shop / "shop.py").read_text(), f"{module}.py")
    program = start("run", module)
    program.wait_for(f"{module}: at work")
    program.ask(signal.SIGTERM)

    assert program.end() == 0


def test_an_unreadable_report_is_not_listed(near, raw, prefix):
    raw.zadd(f"{prefix}:workers", {"deadbeef": 9e12})
    for text in ("", "no json", "[]", "{}", '{"at_ms": 1e99}'):
        raw.set(f"{prefix}:worker:deadbeef", text)
        assert near.admin.workers() == []
