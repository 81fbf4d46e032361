"""Limits of `rmq worker` after which a process is replaced, with real processes."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest

import rmq
from tests.cli.program import write
from tests.cli.test_worker import address, settled
from tests.patience import wait_for

HEAD = """
import os, time, threading
import rmq

client = rmq.Client({url!r}, retry_for=0.3, timeout=2)
orders = client.topic({topic!r}, lease=5, retry=rmq.Levels((3600,)))
"""
STEADY = (
    HEAD
    + """
@orders.handler(concurrency=4)
def handle(body: int) -> None:
    time.sleep(0.02)
    os.write(1, f"end {{body}} {{os.getpid()}}\\n".encode())  # one write: threads share stdout
"""
)
GROWING = (
    HEAD
    + """
kept = []

@orders.handler(concurrency=1)
def handle(body: int) -> None:
    kept.append(b"x" * body)
    os.write(1, f"end {{body}} {{os.getpid()}}\\n".encode())  # one write: threads share stdout
"""
)
HANGING = (
    HEAD
    + """
@orders.handler(concurrency=4, max_runtime={limit})
def handle(body: str, d: rmq.Delivery) -> None:
    os.write(1, f"begin {{body}} {{d.attempt}}\\n".encode())
    if body == "hang" or (body == "busy" and d.attempt == 1 and not os.path.exists("again")):
        open("again", "w").close() if body == "busy" else None
        time.sleep(1000)
    os.write(1, f"end {{body}} {{d.attempt}}\\n".encode())
"""
)


@pytest.fixture
def make(tmp_path: Any, server: Any, name: str, start: Any) -> Any:
    def run(text: str, *options: object, **facts: object) -> Any:
        write(tmp_path, text.format(url=server.url, topic=name, **facts))
        return start("shop", *options)

    return run


@pytest.fixture
def orders(client: rmq.Client, name: str) -> rmq.Topic:
    return client.topic(name)


def stats_of(topic: rmq.Topic) -> Any:
    with rmq.Client(address(topic)) as client:
        return client.admin.stats(topic.name)


def ended(program: Any) -> list[tuple[str, str]]:
    """The body and the pid of each run that has ended."""
    return [(body, pid) for body, pid in re.findall(r"^end (\S+) (\d+)$", program.out, re.M)]


def account(program: Any) -> dict[str, str]:
    """The last table on stderr, by its head."""
    lines = program.err.splitlines()
    at = max(n for n, line in enumerate(lines) if line.startswith("TOPIC "))
    return dict(zip(lines[at].split(), lines[at + 1].split(), strict=True))


def test_after_max_messages_a_process_is_replaced_and_each_message_is_handled_once(make, orders):
    count = 80
    program = make(STEADY, "--max-messages", 40).ready()
    orders.send_many([rmq.Outgoing(n) for n in range(count)])
    wait_for(lambda: len(ended(program)) >= count, lambda: program.out + program.err)
    wait_for(lambda: settled(orders) == count)
    wait_for(lambda: "was recycled" in program.err)  # one has reached its limit, and may look late
    program.ask(signal.SIGTERM)

    assert program.end() == 0
    assert sorted(int(body) for body, _ in ended(program)) == list(range(count))
    by_pid: dict[str, int] = {}
    for _, pid in ended(program):
        by_pid[pid] = by_pid.get(pid, 0) + 1
    recycled = program.err.count("was recycled")
    assert recycled >= 1
    assert len(by_pid) in (recycled, recycled + 1)  # the last one may have had nothing to do
    # all that were replaced had reached their limit
    assert sorted(by_pid.values())[-recycled:][0] >= 40
    assert "restart" not in program.err.splitlines()[-1]
    assert f"{recycled} recycled" in program.err.splitlines()[-1]
    assert "starting another in" not in program.err
    assert "ERROR" not in program.err
    totals = account(program)
    assert (totals["ACK"], totals["NACK"], totals["LOST"], totals["IN-FLIGHT"]) == (
        str(count), "0", "0", "0",
    )  # fmt: skip


@pytest.mark.slow
def test_without_a_limit_a_process_stays(make, orders):
    program = make(STEADY, "--processes", 1).ready()
    orders.send_many([rmq.Outgoing(n) for n in range(120)])
    wait_for(lambda: len(ended(program)) == 120)

    assert len({pid for _, pid in ended(program)}) == 1
    assert "recycled" not in program.err


@pytest.mark.slow
def test_a_process_above_max_memory_is_replaced(make, orders):
    program = make(GROWING, "--max-memory", "300M").ready()
    orders.send(100)
    wait_for(lambda: len(ended(program)) == 1)
    first = ended(program)[0][1]
    orders.send(400_000_000)
    program.wait_for("was recycled")
    assert "bytes of memory, of 314572800 (max_memory)" in program.err
    orders.send(100)
    wait_for(lambda: len(ended(program)) == 3)
    program.ask(signal.SIGTERM)

    assert program.end() == 0
    pids = [pid for _, pid in ended(program)]
    assert pids[:2] == [first, first]
    assert pids[2] != first
    assert settled(orders) == 3


@pytest.mark.slow
def test_a_limit_that_leaves_no_room_to_work_is_an_error_with_growing_pauses(make, orders):
    program = make(STEADY, "--max-memory", "2M").ready()

    program.wait_for("starting another in 0.5 s")
    program.wait_for("starting another in 1 s")
    assert "was recycled" not in program.err


def test_a_hanging_handler_has_its_process_replaced_and_other_deliveries_are_not_counted(
    make, orders
):
    program = make(HANGING, "--timeout-kill", "1s", "--grace", "300ms", limit=4).ready()
    orders.send("hang")
    program.wait_for("begin hang 1")
    first = program.children()[0].pid
    wait_for(lambda: stats_of(orders)["later"] == 1)  # it has failed at its max_runtime
    orders.send("busy")
    program.wait_for("begin busy 1")
    program.wait_for("exited with 70")

    # its first delivery was handed back: the second is attempt 1 again
    program.wait_for("end busy 1")
    wait_for(lambda: settled(orders) == 1)
    assert "beyond its max_runtime (timeout_kill)" in program.err
    assert "; starting another in" not in program.err
    assert [child.pid for child in program.children()] != [first]
    assert program.out.count("begin hang") == 1
    stats = stats_of(orders)
    assert (stats["later"], stats["dead"], stats["in_flight"]) == (1, 0, 0)
    program.ask(signal.SIGTERM)
    assert program.end() == 0


@pytest.mark.slow
def test_without_timeout_kill_a_process_with_a_hanging_handler_goes_on(make, orders):
    program = make(HANGING, "--processes", 1, limit=0.3).ready()
    orders.send("hang")
    wait_for(lambda: stats_of(orders)["later"] == 1)
    for n in range(3):
        orders.send(f"other{n}")
    program.wait_for("end other", 3)

    assert "exited with" not in program.err
