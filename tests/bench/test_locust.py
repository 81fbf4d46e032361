"""The load test, as a user runs it: locust in a process of its own. It is never imported here.

Importing locust patches the process for gevent, which is not for a test suite to suffer.
"""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import rmq
from rmq.kernel.core.keys import SlotKeys
from tests.bench.refusing import refused
from tests.conftest import any_binary
from tests.servers import Server, die_with_parent

REPO = Path(__file__).resolve().parents[2]
CALLS = {"send", "send_many", "receive", "ack", "nack"}
LATE = {
    "late immediate (sent -> received)",
    "late priority (sent -> received)",
    "late delayed (due -> received)",
    "late merging (due -> received)",
}


@pytest.fixture(autouse=True)
def _locust() -> None:
    if find_spec("locust") is None:
        text = "no locust here: pip install --group load"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)


def _prepared() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever runs the tests may ignore it


class Locust:
    """A run of the locustfile. Its output goes to files: no pipe to hold open, none to fill."""

    def __init__(self, home: Path, *words: str) -> None:
        self.out, self.err = home / "out", home / "err"
        self.temporary = Path(tempfile.mkdtemp(prefix="rmq-"))  # short: it holds a unix socket
        ours = ("RMQ_", "LOCUST_", "TMPDIR")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "locust", "-f", "bench/locustfile.py", "--headless", *words],
                cwd=REPO, stdin=subprocess.DEVNULL, stdout=out, stderr=err, preexec_fn=_prepared,
                env=kept | {"RMQ_REDIS_SERVER": any_binary(), "TMPDIR": str(self.temporary)},
            )  # fmt: skip

    def wait(self) -> int:
        return self.process.wait(240)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.temporary, ignore_errors=True)

    @property
    def output(self) -> str:
        return self.out.read_text() + self.err.read_text()

    def account(self) -> dict[str, int]:
        lines = self.out.read_text().split("Account")[-1].splitlines()
        rows = [line.split() for line in lines]
        return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}

    def until(self, true: Callable[[], object]) -> None:
        end = time.monotonic() + 120
        while not true():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < end, self.output
            time.sleep(0.01)


@pytest.fixture
def locust(tmp_path: Path) -> Iterator[Callable[..., Locust]]:
    made: list[Locust] = []

    def start(*words: str) -> Locust:
        made.append(Locust(tmp_path, *words))
        return made[-1]

    yield start
    for one in made:
        one.end()


def assert_balanced(account: dict[str, int]) -> None:
    ends = ("merged", "settled", "dead", "waiting", "lost")
    assert account["sent"] == sum(account[name] for name in ends)


@pytest.mark.slow
def test_a_run_on_a_private_server_loses_nothing_and_writes_csv_and_html(
    locust: Callable[..., Locust], tmp_path: Path
) -> None:
    run = locust(
        "-u", "6", "-r", "6", "-t", "4s", "--csv", f"{tmp_path}/run", "--html", f"{tmp_path}/h",
        "--rate", "200", "--slots", "2", "--batch", "5", "--work-ms", "0.5", "--fail", "0.4",
        "--kinds", "immediate=60,priority=10,delayed=15,merging=15", "--merge-ms", "100",
    )  # fmt: skip

    assert run.wait() == 0, run.output
    with Path(tmp_path, "run_stats.csv").open(newline="") as file:
        rows = {row["Name"]: row for row in csv.DictReader(file) if row["Type"] == "rmq"}
    assert rows.keys() >= CALLS | LATE
    assert all(int(row["Request Count"]) > 0 for row in rows.values())
    assert all(int(row["Failure Count"]) == 0 for row in rows.values())
    assert all(float(row["Average Content Size"]) >= 100 for row in rows.values())
    html = Path(tmp_path, "h").read_text()
    assert all(name in html for name in CALLS)
    account = run.account()
    assert_balanced(account)
    assert account["lost"] == account["duplicates"] == account["early"] == account["waiting"] == 0
    assert account["unconfirmed"] == 0
    assert min(account[name] for name in ("sent", "merged", "nacked", "settled", "dead")) > 0
    assert account["received"] == account["settled"] + account["nacked"]
    assert not list(run.temporary.glob("rmq-load-*"))


@pytest.mark.slow
def test_producers_alone_leave_everything_to_the_drain(locust: Callable[..., Locust]) -> None:
    words = ("-t", "1s", "--rate", "0", "--batch", "50", "--drain-s", "200")
    run = locust("-u", "2", "-r", "2", *words, "Producer")

    assert run.wait() == 0, run.output
    account = run.account()
    assert account["drained"] == account["settled"] == account["received"] >= 50
    assert_balanced(account)


@pytest.mark.slow
def test_ctrl_c_still_drains_and_accounts(locust: Callable[..., Locust]) -> None:
    run = locust("-u", "3", "-r", "3")
    run.until(lambda: "All users spawned" in run.err.read_text())
    time.sleep(0.5)  # some messages are under way

    run.process.send_signal(signal.SIGINT)

    assert run.wait() == 0, run.output
    account = run.account()
    assert account["sent"] > 0
    assert account["lost"] == account["waiting"] == account["duplicates"] == 0
    assert not list(run.temporary.glob("rmq-load-*"))


@pytest.mark.slow
def test_a_message_deleted_behind_rmqs_back_is_lost(
    locust: Callable[..., Locust], server: Server, name: str
) -> None:
    keys = SlotKeys("rmq", name, 0)
    words = ("--kinds", "delayed=1", "--delay-ms", "4000", "--fail", "0")
    run = locust("-u", "3", "-r", "3", "-t", "4s", "--rmq-url", server.url, "--topic", name, *words)
    with server.raw() as raw:
        run.until(lambda: raw.zcard(keys.store) > 10)
        (last,) = raw.zrange(keys.store, -1, -1)

        assert raw.zrem(keys.store, last) == raw.hdel(keys.records, last) == 1

    assert run.wait() == 3, run.output
    account = run.account()
    assert (account["lost"], account["duplicates"], account["waiting"]) == (1, 0, 0)
    assert_balanced(account)
    assert "wrong: lost is 1" in run.err.read_text()


@pytest.mark.slow
def test_a_message_put_back_behind_rmqs_back_is_a_duplicate(
    locust: Callable[..., Locust], server: Server, name: str
) -> None:
    keys = SlotKeys("rmq", name, 0)
    words = ("--kinds", "delayed=1", "--delay-ms", "500", "--fail", "0")
    run = locust("-u", "3", "-r", "3", "-t", "4s", "--rmq-url", server.url, "--topic", name, *words)
    with server.raw() as raw:
        run.until(lambda: raw.zcard(keys.store) > 10)
        ((last, score),) = raw.zrange(keys.store, -1, -1, withscores=True)
        record = raw.hget(keys.records, last)
        assert record
        run.until(lambda: not raw.hexists(keys.records, last))

        raw.hset(keys.records, last, record)
        raw.zadd(keys.store, {last: score})

    assert run.wait() == 3, run.output
    account = run.account()
    assert (account["lost"], account["duplicates"], account["waiting"]) == (0, 1, 0)


@pytest.mark.slow
def test_what_the_drain_has_no_time_for_is_still_waiting_and_not_lost(
    locust: Callable[..., Locust], server: Server, name: str
) -> None:
    late = ("--kinds", "delayed=1", "--delay-ms", "60000", "--drain-s", "0.2")
    run = locust("-u", "1", "-t", "1s", "--rmq-url", server.url, "--topic", name, *late, "Producer")

    assert run.wait() == 3, run.output
    account = run.account()
    assert account["lost"] == 0
    assert account["waiting"] == account["sent"] > 0


@pytest.mark.slow
def test_messages_of_another_sender_are_released_and_reported(
    locust: Callable[..., Locust], server: Server, client: rmq.Client, name: str
) -> None:
    words = ("-t", "8s", "--delay-ms", "100", "--merge-ms", "100", "--fail", "0", "--drain-s", "2")
    run = locust("-u", "2", "-r", "2", "--rmq-url", server.url, "--topic", name, *words)
    run.until(lambda: "All users spawned" in run.err.read_text())

    sent = client.topic(name).send(7)

    assert run.wait() == 3, run.output
    account = run.account()
    assert account["strangers"] >= 1
    assert account["lost"] == account["duplicates"] == account["waiting"] == 0
    assert [message.id for message in client.admin.peek(name)] == [sent.id]


@pytest.mark.slow
def test_a_topic_that_holds_messages_is_refused_and_left_alone(
    locust: Callable[..., Locust], server: Server, client: rmq.Client, name: str
) -> None:
    topic = client.topic(name, max_retries=4, retry=rmq.Exponential(0.05, 1.0))
    topic.send("someone's")

    run = locust("-t", "1s", "--rmq-url", server.url, "--topic", name)

    assert run.wait() == 2
    assert "--topic: found 1 messages" in run.output
    assert [message.body for message in client.admin.peek(name)] == ["someone's"]


CANNOT_WORK = [
    ("--kinds", "immediate", "found 'immediate'; give kind=weight pairs"),
    ("--kinds", "sooner=3", "found 'sooner=3'; give kind=weight pairs"),
    ("--kinds", "immediate=0", "give at least one kind a weight above 0"),
    ("--body-bytes", "16", "found '16'; give bytes as a number or a range"),
    ("--body-bytes", "200-100", "a range with the lesser first"),
    ("--rate", "fast", "found 'fast'; give a number, 0 to"),
    ("--batch", "1001", "found '1001'; give a whole number, 1 to 1000"),
    ("--fail", "nan", "found 'nan'; give a number, 0 to 1"),
    ("--slots", "0", "found '0'; give a whole number, 1 to 1024"),
    ("--topic", "a/b", "'a/b'; use 1 to 128 of"),
    ("--rmq-url", "http://here", "found 'http://here': url: scheme 'http' is unknown"),
    ("--processes", "2", "kept in one process; leave it out, or run several"),
]


@pytest.mark.slow
def test_an_option_that_cannot_work_ends_the_program(locust: Callable[..., Locust]) -> None:
    option, value, told = CANNOT_WORK[0]

    run = locust("-t", "1s", option, value)

    assert run.wait() == 2, run.output
    assert f"argument {option}" in run.output
    assert told in run.output
    assert "Traceback" not in run.output
    assert not list(run.temporary.glob("rmq-load-*"))


@pytest.fixture(scope="module")
def refusals() -> list[dict[str, Any]]:
    return refused([["-t", "1s", option, value] for option, value, _ in CANNOT_WORK])


@pytest.mark.parametrize(
    "number", range(len(CANNOT_WORK)), ids=lambda n: " ".join(CANNOT_WORK[n][:2])
)
def test_an_option_that_cannot_work_is_named_with_what_to_do(
    refusals: list[dict[str, Any]], number: int
) -> None:
    (option, _, told), run = CANNOT_WORK[number], refusals[number]

    assert run["code"] == 2, run["told"]
    assert f"argument {option}" in run["told"]
    assert told in run["told"]
    assert "Traceback" not in run["told"]
    assert not [name for name in run["left"] if name.startswith("rmq-load-")]
