"""`rmq worker` as its users run it: real processes, real signals, a real redis-server."""

from __future__ import annotations

import json
import re
import signal
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

import rmq
from tests.cli.program import SHOP, Program, write
from tests.patience import wait_for


def settled(topic: rmq.Topic) -> int:
    with rmq.Client(address(topic)) as client:
        return client.admin.stats(topic.name)["settled"]


def address(topic: rmq.Topic) -> str:
    return str(topic._transport.address.url)


# --- one process ---------------------------------------------------------------------------------


def test_it_tells_what_it_serves_handles_messages_and_tells_what_it_did(shop, orders, name, start):
    program = start("shop").ready()
    orders.send({"id": 7})
    program.wait_for("end {'id': 7}")
    program.ask(signal.SIGTERM)

    assert program.end() == 0
    lines = program.err.splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("TOPIC "))
    assert lines[head].split() == [
        "TOPIC", "HANDLER", "KIND", "CONCURRENCY", "PREFETCH", "ORDERED", "LEASE",
    ]  # fmt: skip
    assert lines[head + 1].split() == [name, "handle", "sync", "4", "adapts", "no", "1s"]
    assert lines[-2].split() == [name, "1", "1", "0", "0", "0", "0", "0", "0"]
    assert lines[-1].startswith("shop: stopped; everything that had started was finished")
    assert "TOPIC" not in program.out, "stdout is for what handlers print"


def test_concurrency_is_that_of_the_process(shop, orders, start):
    program = start("shop", "--concurrency", 1).ready()
    orders.send_many([rmq.Outgoing({"id": n, "sleep": 0.2}) for n in range(4)])
    wait_for(lambda: program.out.count("end") == 4)
    program.ask(signal.SIGTERM)

    assert program.end() == 0
    steps = [
        line.split()[0] for line in program.out.splitlines() if line.startswith(("begin", "end"))
    ]
    assert steps == ["begin", "end"] * 4  # its handler alone would run four at a time


def test_with_json_the_start_the_account_and_the_log_are_lines_of_json(shop, orders, name, start):
    program = start("shop", "--json", "--log-json", "--topic", name)
    program.wait_for('"event":"started"')
    orders.send({})
    program.wait_for("end {}")
    program.ask(signal.SIGINT)

    assert program.end() == 0
    told = [json.loads(line) for line in program.err.splitlines()]
    started = next(one for one in told if one.get("event") == "started")
    assert started["handlers"] == [
        {"topic": name, "handler": "handle", "types": [], "kind": "sync", "concurrency": 4,
         "prefetch": 1000, "prefetch_adapts": True, "ordered": False, "lease": 1.0}
    ]  # fmt: skip
    assert (told[-1]["event"], told[-1]["exit"], told[-1]["counts"][name]["ack"]) == ("ended", 0, 1)
    assert {one["level"] for one in told if "level" in one} == {"info"}


def test_sigterm_lets_the_running_handler_finish(shop, orders, start):
    program = start("shop").ready()
    orders.send({"sleep": 0.7})
    program.wait_for("begin")
    program.ask(signal.SIGTERM)

    assert program.end() == 0
    assert "end {'sleep': 0.7}" in program.out
    assert settled(orders) == 1


def test_after_the_grace_time_the_message_is_handed_back_and_no_retry_is_burnt(shop, orders, start):
    program = start("shop", "--grace", "300ms").ready()
    orders.send({"sleep": 1000})
    program.wait_for("begin")
    program.ask(signal.SIGTERM)

    assert program.end() == 4, "a thread that sleeps does not hold the process"
    assert "the grace time ended" in program.err
    account = dict(zip(*(line.split() for line in program.err.splitlines()[-3:-1]), strict=True))
    assert (account["RELEASE"], account["IN-FLIGHT"]) == ("1", "0")
    with orders.consumer() as consumer:
        (delivery,) = consumer.receive(1, wait=5)
        assert delivery.attempt == 1
        delivery.ack()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(shop, orders, start, number):
    program = start("shop").ready()
    orders.send({"sleep": 1000})
    program.wait_for("begin")
    program.ask(number)
    program.wait_for("stopping")
    program.ask(number)

    assert program.end() == 128 + number


def test_a_thread_pool_of_a_handler_does_not_hold_the_process(
    tmp_path, server, name, client, start
):
    write(tmp_path, f"""
import asyncio, time, rmq
client = rmq.Client({server.url!r})
@client.topic({name!r}).handler()
async def handle(body: int) -> None:
    print("begin")
    await asyncio.to_thread(time.sleep, 1000)
""")  # fmt: skip
    program = start("shop", "--grace", "0s").ready()
    client.topic(name).send(1)
    program.wait_for("begin")
    program.ask(signal.SIGTERM)

    assert program.end() == 4


def test_a_stuck_worker_ends_with_70_and_its_stacks(tmp_path, server, name, client, start):
    write(tmp_path, f"""
import threading, time, rmq
client = rmq.Client({server.url!r})
topic = client.topic({name!r})
@topic.handler()
def handle(body: int) -> None: ...

from rmq.worker.settling.settler import Settler
Settler._carry_out = lambda self, items: time.sleep(1000)
""")  # fmt: skip
    program = start("shop", "--watchdog", "1s").ready()
    client.topic(name).send(1)

    assert program.end() == 70
    assert "Thread" in program.err
    assert "shop: stuck" in program.err


# PyDLL keeps the GIL: this costs no CPU, as a regular expression that never ends would.
GREEDY = """
import ctypes, rmq
from rmq.worker import watchdog
watchdog.KILL_MIN_S = 1.0
client = rmq.Client({url!r})
topic = client.topic({topic!r}, lease=1, retry=rmq.Levels((3600,)))
@topic.handler(concurrency=4, max_runtime=0.1)
def handle(body: int) -> None:
    if body:
        ctypes.PyDLL(None).sleep(1000)
"""


def test_a_process_whose_handler_holds_the_gil_is_killed_with_its_stacks(
    tmp_path, server, name, client, start
):
    write(tmp_path, GREEDY.format(url=server.url, topic=name))
    program = start("shop", "--watchdog", "1s", "--processes", 2, from_start=True).ready()
    topic = client.topic(name)

    topic.send(1)
    program.wait_for("was killed by SIGABRT")
    topic.send_many([rmq.Outgoing(0) for _ in range(20)])
    wait_for(lambda: settled(topic) >= 20)
    program.ask(signal.SIGTERM)

    assert program.end() == 0
    assert "a handler holds the GIL; it gets SIGABRT" in program.err
    assert re.search(r'File ".*shop.py", line \d+ in handle', program.err)


FORKING = """
import os, rmq
client = rmq.Client({url!r})
topic = client.topic({topic!r})

def work(body: str) -> None:
    print(f"did {{body}} {{os.getpid()}}", flush=True)
    if body.startswith("fork"):
        child = os.fork()
        if not child and body == "fork-raise":
            raise RuntimeError("in the child")
        if child:
            print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

{handler}
"""
PLAIN = "topic.handler(concurrency=1, prefetch=100)(work)"
ASYNC = """
@topic.handler(concurrency=1, prefetch=100)
async def handle(body: str) -> None:
    work(body)
"""


@pytest.mark.parametrize("handler", [PLAIN, ASYNC], ids=["plain", "async"])
def test_a_process_that_a_handler_forks_does_not_go_on_as_a_worker(
    tmp_path, server, name, client, start, handler
):
    write(tmp_path, FORKING.format(url=server.url, topic=name, handler=handler))
    topic = client.topic(name)
    bodies = ["fork-raise", "fork-return", *map(str, range(30))]

    program = start("shop").ready()
    topic.send_many([rmq.Outgoing(body) for body in bodies])  # no other thread logs any more
    wait_for(lambda: settled(topic) == len(bodies), lambda: program.out + program.err)
    program.ask(signal.SIGTERM)

    assert program.end() == 0
    did = [line.split()[1:] for line in program.out.splitlines() if line.startswith("did ")]
    expected = sorted([body, str(program.process.pid)] for body in bodies)
    assert sorted(did) == expected, program.out + program.err
    assert program.out.count("ended 1\n") == 2
    assert program.err.count("a process that it forked came back from it") == 2
    assert "RuntimeError: in the child" in program.err


LOCKED_IN_FORKS = """
import logging
from rmq.worker.running import invoker_base
invoker_base.FORK_LOG_S = 0.2
parent, lock = os.getpid(), threading.Lock()
lock.acquire()

class Locked(logging.Handler):
    def emit(self, record):
        if os.getpid() != parent:
            lock.acquire()

logging.getLogger("rmq").addHandler(Locked())
"""


def test_a_process_that_a_handler_forks_ends_although_a_lock_of_its_log_stays_locked(
    tmp_path, server, name, client, start
):
    text = FORKING.format(url=server.url, topic=name, handler=PLAIN)
    write(tmp_path, text.replace("import os, rmq", "import os, threading, rmq") + LOCKED_IN_FORKS)
    topic = client.topic(name)

    program = start("shop")
    topic.send("fork-return")
    program.wait_for("ended 1\n")
    program.wait_for("in _end_fork")
    wait_for(lambda: settled(topic) == 1, lambda: program.out + program.err)
    program.ask(signal.SIGTERM)

    assert program.end() == 0


# --- several processes ---------------------------------------------------------------------------


def test_a_process_that_dies_is_replaced_and_the_others_go_on(shop, orders, start):
    program = start("shop", "--processes", 2).ready()
    wait_for(lambda: len(program.children()) == 2)
    orders.send({"die": 1})
    program.wait_for("exited with 1")
    for n in range(20):
        orders.send({"id": n})
    program.wait_for("end", 21)  # the one that killed its process, too: on its second attempt
    wait_for(lambda: len(program.children()) == 2 and settled(orders) == 21)
    program.ask(signal.SIGTERM)

    assert program.end() == 0
    assert "begin {'die': 1} 2" in program.out
    assert "1 restart" in program.err
    assert settled(orders) == 21


def test_a_process_that_died_before_the_stop_does_not_spoil_the_exit_code(shop, orders, start):
    program = start("shop", "--processes", 1).ready()
    orders.send({"die": 1})
    program.wait_for("exited with 1")
    program.ask(signal.SIGTERM)

    assert program.end() == 0


@pytest.mark.slow
def test_a_second_signal_reaches_all_processes(shop, orders, start):
    program = start("shop", "--processes", 2).ready()
    program.wait_for("working on", 2)
    orders.send({"sleep": 1000})
    program.wait_for("begin")
    children = program.children()
    program.ask(signal.SIGINT)
    program.wait_for("stopping", 2)
    program.ask(signal.SIGINT)

    assert program.end() == 130
    assert not any(one.is_running() for one in children)


def test_a_signal_to_the_whole_service_is_still_the_first_one(shop, orders, start):
    """As systemd stops a service: every process of it gets SIGTERM."""
    program = start("shop", "--processes", 2).ready()
    wait_for(lambda: len(program.children()) == 2)
    orders.send({"sleep": 1})
    program.wait_for("begin")
    for child in program.children():
        child.send_signal(signal.SIGTERM)
    program.ask(signal.SIGTERM)

    assert program.end() == 0
    assert "end {'sleep': 1}" in program.out


def test_the_processes_of_a_killed_supervisor_finish_and_end(shop, orders, start):
    program = start("shop", "--processes", 2).ready()
    wait_for(lambda: len(program.children()) == 2)
    orders.send({"sleep": 0.7})
    program.wait_for("begin")
    children = program.children()
    program.ask(signal.SIGKILL)
    program.end()

    program.wait_for("end {'sleep': 0.7}")
    wait_for(lambda: not any(one.is_running() for one in children))

    assert "end {'sleep': 0.7}" in program.out
    assert settled(orders) == 1


def test_a_module_that_fails_is_reported_once_and_ends_the_supervisor(tmp_path, start):
    write(tmp_path, "import nothing_of_that_name\n")
    program = start("shop", "--processes", 2)

    assert program.end() == 1
    assert program.err.count("import nothing_of_that_name") == 1


@pytest.mark.slow
def test_a_changed_file_is_picked_up(shop, orders, start):
    program = start("shop", "--reload").ready()
    write(shop, (shop / "shop.py").read_text().replace('f"end', 'f"done by the new code'))
    program.wait_for("shop.py has changed")
    program.wait_for("shop: at work", 2)
    orders.send({})
    program.wait_for("done by the new code")

    write(shop, "1 +\n")
    program.wait_for("waiting for a change")
    assert "SyntaxError" in program.err
    write(shop, SHOP.format(url=address(orders), topic=orders.name))
    program.wait_for("shop: at work", 3)
    program.ask(signal.SIGINT)
    assert program.end() == 0


def test_reload_without_its_package_says_what_to_install(shop, start):
    write(shop, "raise ImportError\n", "watchfiles.py")
    program = start("shop", "--reload", env={"PYTHONPATH": str(shop)}, from_start=True)

    assert program.end() == 2
    assert 'pip install ".[reload]"' in program.err


# --- health --------------------------------------------------------------------------------------


def probe(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, {}


def health_url(program: Program) -> str:
    program.wait_for("/readyz")
    (line,) = [one for one in program.err.splitlines() if "/readyz" in one]
    return line.rpartition(" ")[2].removesuffix("/readyz")


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param([], id="one"),
        pytest.param(["--processes", 2], id="two", marks=pytest.mark.slow),
    ],
)
def test_the_probe_follows_redis_down_and_up_again(tmp_path, own_server, name, start, processes):
    write(tmp_path, SHOP.format(url=own_server.url, topic=name))
    program = start("shop", "--health", ":0", *processes)
    url = health_url(program)
    assert url.startswith("http://127.0.0.1:")

    wait_for(lambda: probe(url + "/readyz") == (200, {"ok": True, "problems": []}))
    own_server.kill()
    wait_for(lambda: probe(url + "/readyz")[0] == 503)
    assert name in " ".join(probe(url + "/readyz")[1]["problems"])
    assert probe(url + "/livez")[0] == 200, "a new worker would not bring Redis back"
    own_server.start()
    wait_for(lambda: probe(url + "/readyz")[0] == 200)

    assert probe(url + "/else")[0] == 404
    program.ask(signal.SIGTERM)
    assert program.end() == 0


def test_metrics_of_all_processes_come_from_one_place(tmp_path, server, name, client, start):
    pytest.importorskip("prometheus_client")
    text = SHOP.format(url=server.url, topic=name)
    text += "\nfrom prometheus_client import Counter\nseen = Counter('seen', 'Seen')\nseen.inc()\n"
    write(tmp_path, text)
    program = start("shop", "--health", ":0", "--processes", 2)
    url = health_url(program)

    def metrics() -> str:
        with urllib.request.urlopen(url + "/metrics", timeout=60) as reply:
            return str(reply.read().decode())

    wait_for(lambda: "seen_total 2.0" in metrics(), metrics)

    totals = [line for line in metrics().splitlines() if line.startswith("seen_total")]
    assert totals == ["seen_total 2.0"]


def test_an_address_that_is_taken_is_reported(shop, server, start):
    program = start("shop", "--health", f":{server.port}")

    assert program.end() == 1
    assert (
        f"rmq: --health: 127.0.0.1:{server.port}: Address already in use; give another"
        in program.err
    )


@pytest.mark.parametrize(
    "options", [(), pytest.param(("--processes", "2"), marks=pytest.mark.slow)]
)
def test_no_schedules_leaves_the_schedules_of_its_topics_to_others(
    tmp_path, server, name, client, start, options
):
    write(tmp_path, f"""
import rmq
client = rmq.Client({server.url!r})
topic = client.topic({name!r})
topic.every("tick", every=0.1, body="tick")
@topic.handler
def handle(body: str) -> None:
    print("got", body, flush=True)
""")  # fmt: skip
    topic = client.topic(name)
    topic.every("other", every=0.1, body="other").declare()
    program = start("shop", "--no-schedules", *options).ready()
    time.sleep(0.5)  # for messages that must not come
    topic.send("sent")
    program.wait_for("got sent")
    program.ask(signal.SIGTERM)

    assert program.end() == 0
    assert program.out.split() == ["got", "sent"]
    assert [state.name for state in client.admin.schedules(name)] == ["other"]
    served = start("shop", *options).ready()
    served.wait_for("got tick")
    served.wait_for("got other")
    served.ask(signal.SIGTERM)
    assert served.end() == 0
