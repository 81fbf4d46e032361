"""Lifespans under `rmq worker`: exit codes, signals during the start, and the end."""

from __future__ import annotations

import signal

import pytest

from tests.cli.program import write

PROGRAM = """
import time, rmq
client = rmq.Client({url!r})
@client.lifespan
def life():
    {before}
    yield
    {after}
@client.topic({name!r}).handler()
def handle(body: dict) -> None:
    print("begin", body, flush=True)
    time.sleep(body.get("sleep", 0))
    print("end", body, flush=True)
"""


@pytest.fixture
def program(tmp_path, server, name, client, start):
    client.topic(name).open()

    def begin(*options: str, before: str = "pass", after: str = "pass"):
        write(tmp_path, PROGRAM.format(url=server.url, name=name, before=before, after=after))
        return start("shop", *options)

    return begin


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
def test_a_lifespan_that_fails_ends_the_worker_with_71_and_receives_nothing(
    program, client, name, options
):
    client.topic(name).send({})
    ended = program(*options, before="raise OSError('no database')")

    assert ended.end() == 71
    assert "nothing was received: life raised OSError: no database" in ended.err
    assert "Traceback" in ended.err
    assert "begin" not in ended.out
    assert "a lifespan failed" in ended.err
    (message,) = client.admin.peek(name)
    assert message.deliveries == 0


def test_it_ends_after_the_last_handler(program, client, name):
    running = program(before="print('up', flush=True)", after="print('down', flush=True)").ready()
    client.topic(name).send({"sleep": 0.5})
    running.wait_for("begin")
    running.ask(signal.SIGTERM)

    assert running.end() == 0
    words = [line.split()[0] for line in running.out.splitlines()]
    assert words == ["up", "begin", "end", "down"]


def test_a_signal_during_its_start_ends_the_worker_and_still_closes_it(program):
    running = program(
        before="print('starting', flush=True); time.sleep(1)", after="print('down', flush=True)"
    )
    running.wait_for("starting")
    running.ask(signal.SIGTERM)

    assert running.end() == 0
    assert "down" in running.out
    assert "begin" not in running.out


def test_an_end_that_hangs_is_given_up_and_told_by_71(program):
    running = program("--grace", "300ms", after="time.sleep(1000)").ready()
    running.ask(signal.SIGTERM)

    assert running.end() == 71
    assert "was not closed in time" in running.err


def test_an_end_that_raises_is_told_by_71(program):
    running = program(after="raise OSError('no end')").ready()
    running.ask(signal.SIGTERM)

    assert running.end() == 71
    assert "no end" in running.err


def test_a_check_runs_no_lifespan(program):
    checked = program("--check", before="raise OSError('no database')")

    assert checked.end() == 0
