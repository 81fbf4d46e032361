"""A copy from topic to topic whose drivers are killed again and again, and a copied checkpoint.

The copy with more rows: RMQ_TEST_SPARK_ROWS=100000 .venv/bin/python -m pytest -s
tests/spark/test_copy.py -k distinct
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

import rmq
from tests.servers import Server
from tests.spark.conftest import MISSING, ROOT, environment
from tests.spark.copy_driver import REFUSED
from tests.spark.driver import POINT
from tests.spark.long import long
from tests.spark.target import taken

pytestmark = pytest.mark.timeout(2400)  # many cold drivers on a busy machine

ROWS = int(os.environ.get("RMQ_TEST_SPARK_ROWS", "10000"))
KILLS = int(os.environ.get("RMQ_TEST_SPARK_KILLS", "6"))
BATCHES = 20  # of a copy
OWNER_S = 3
PATIENCE_S = 400.0


class Killed(NamedTuple):
    """The progress of a copy when its driver was killed."""

    planned: int  # the last batch in Spark's offset log
    committed: int  # the last one in its commit log
    in_flight: int
    accepted: int  # by the target, so far

    @property
    def is_open(self) -> bool:
        return self.planned > self.committed


class Drivers:
    """Drivers with JVMs of their own, which die with the test."""

    def __init__(self, url: str, home: Path) -> None:
        self.url, self.home = url, home
        self.started: list[subprocess.Popen[bytes]] = []

    def start(
        self, source: str, target: str, checkpoint: Path, *,
        sink: str = "rmq", trigger: str = "now", most: int = 1000, point: str = "end",
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        if MISSING:
            pytest.fail(MISSING)
        with self.log(len(self.started)).open("wb") as out:
            self.started.append(
                subprocess.Popen(
                    [
                        sys.executable, "-m", "tests.spark.copy_driver", self.url, source, target,
                        str(checkpoint), sink, trigger, str(most), str(OWNER_S),
                    ],
                    cwd=ROOT, env=os.environ | environment() | {POINT: point},
                    stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                )
            )  # fmt: skip
        return self.started[-1]

    def log(self, number: int) -> Path:
        return self.home / f"driver-{number}.log"

    def output(self) -> str:
        """Return the output of the newest driver."""
        return self.log(len(self.started) - 1).read_text()

    def until(
        self, what: Callable[[], bool], driver: subprocess.Popen[bytes] | None = None
    ) -> bool:
        """Wait for something; whether it came before the driver's end."""
        end = time.monotonic() + PATIENCE_S
        while not what():
            if driver is not None and driver.poll() is not None:
                return what()
            assert time.monotonic() < end, self.output()[-3000:]
            time.sleep(0.02)
        return True

    def kill(self, driver: subprocess.Popen[bytes]) -> None:
        """kill -9 of driver and JVM."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


@pytest.fixture
def drivers(server: Server, tmp_path: Path) -> Iterator[Drivers]:
    made = Drivers(server.url, tmp_path)
    yield made
    for one in made.started:
        made.kill(one)


@pytest.fixture
def source(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, slots=4)
    made.open()
    return made


@pytest.fixture
def target(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(f"{name}-copy", slots=4, dedup_window=0)  # no id is remembered
    made.open()
    return made


def fill(topic: rmq.Topic, numbers: range) -> None:
    for first in range(numbers.start, numbers.stop, 1000):
        some = range(first, min(first + 1000, numbers.stop))
        topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in some])


def last(checkpoint: Path, log: str) -> int:
    """The last batch in Spark's offset or commit log; -1: none."""
    return max((int(one.name) for one in (checkpoint / log).glob("[0-9]*")), default=-1)


def is_beyond(checkpoint: Path, batch: int) -> bool:
    return last(checkpoint, "commits") > batch


def state(client: rmq.Client, topic: rmq.Topic) -> tuple[int, int]:
    """In flight, settled."""
    stats = client.admin.stats(topic.name)
    return stats["in_flight"], stats["settled"]


@long("test_copy.py")
def test_copy_whose_drivers_are_killed_again_and_again_has_each_row_once_and_distinct(
    client: rmq.Client, source: rmq.Topic, target: rmq.Topic, drivers: Drivers, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    chance, checkpoint = random.Random(seed), tmp_path / "checkpoint"
    fill(source, range(ROWS))
    began, killed = time.monotonic(), list[Killed]()
    for number in itertools.count():
        driver = drivers.start(source.name, target.name, checkpoint, most=ROWS // BATCHES)
        before = max(0, last(checkpoint, "commits"))
        if number < KILLS:
            # Once it has got something done, at any moment of a batch.
            drivers.until(partial(is_beyond, checkpoint, before), driver)
            time.sleep(chance.uniform(0, 1.5))  # anywhere in a batch
            if driver.poll() is None:
                drivers.kill(driver)
                stats = client.admin.stats(target.name)
                killed.append(
                    Killed(
                        last(checkpoint, "offsets"), last(checkpoint, "commits"),
                        state(client, source)[0], stats["accepted"],
                    )
                )  # fmt: skip
                continue
        assert driver.wait(PATIENCE_S) == 0, drivers.output()[-3000:]
        break
    took = time.monotonic() - began

    print(f"\nseed {seed}; {ROWS} rows, {len(killed)} kills, {took:.0f} s")
    for one in killed:
        print(f"  {one}, {'in' if one.is_open else 'between'} batches")
    found = taken(target)
    assert found == Counter(range(ROWS)), seed
    assert len(killed) >= min(KILLS, 3), "it was done before it could be killed"
    assert any(one.is_open for one in killed), seed  # else nothing was replayed
    assert state(client, source) == (0, ROWS)
    assert client.admin.stats(target.name)["accepted"] == ROWS


@long("test_copy.py")
def test_naive_sink_has_rows_twice_when_its_driver_is_killed_before_the_commit(
    client: rmq.Client, source: rmq.Topic, target: rmq.Topic, drivers: Drivers, tmp_path: Path
) -> None:
    """The control of the test above: the same source, the same kill, another sink."""
    fill(source, range(200))
    given: dict[str, Any] = {"sink": "naive", "most": 50}
    first = drivers.start(source.name, target.name, tmp_path / "c", point="sunk", **given)
    assert first.wait(PATIENCE_S) == -signal.SIGKILL, drivers.output()[-3000:]
    again = drivers.start(source.name, target.name, tmp_path / "c", **given)
    assert again.wait(PATIENCE_S) == 0, drivers.output()[-3000:]

    found = taken(target)
    assert set(found) == set(range(200))
    assert found.total() == 250  # the batch that was sent, and not committed
    assert state(client, source) == (0, 200)


def brought(home: Path, run: str) -> Counter[int]:
    """Return the rows that the sink of a run has received."""
    files = home.glob(f"{run}-*.json")
    return Counter(n for one in files for n in json.loads(one.read_text()))


def java(driver: subprocess.Popen[bytes]) -> int:
    """The process id of a driver's JVM."""
    children = psutil.Process(driver.pid).children()
    return int(next(one.pid for one in children if one.name() == "java"))


@long("test_copy.py")
def test_copied_checkpoint_is_refused_while_its_driver_lives_and_then_since_it_is_older(
    client: rmq.Client, source: rmq.Topic, drivers: Drivers, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"sink": "files", "trigger": "default"}
    ours, copied = tmp_path / "ours" / "checkpoint", tmp_path / "copied" / "checkpoint"
    ours.parent.mkdir()
    fill(source, range(30))
    first = drivers.start(source.name, "first", ours, **given)
    assert drivers.until(lambda: state(client, source) == (0, 30), first), drivers.output()[-3000:]
    assert last(ours, "offsets") == last(ours, "commits")
    shutil.copytree(ours, copied)
    fill(source, range(30, 60))

    second = drivers.start(source.name, "second", copied, **given)
    for begin in itertools.count(60, 10):  # messages that the second one might take
        fill(source, range(begin, begin + 10))
        time.sleep(0.2)  # until there are some more
        if second.poll() is not None:
            break
    sent = begin + 10

    assert second.returncode == REFUSED, drivers.output()[-3000:]
    who = f"{socket.gethostname()[:100]}:{java(first)}:"
    sentence = f"is run by {who}"
    told = [line for line in drivers.output().splitlines() if "QueryOwned" in line]
    assert any(sentence in line and "cannot share one checkpoint" in line for line in told), told
    assert brought(copied.parent, "second") == Counter()
    assert drivers.until(lambda: state(client, source) == (0, sent), first)  # unharmed
    assert brought(ours.parent, "first") == Counter(range(sent))

    drivers.kill(first)
    fill(source, range(sent, sent + 20))
    third = drivers.start(source.name, "third", copied, **given)
    assert third.wait(PATIENCE_S) == REFUSED, drivers.output()[-3000:]
    assert "older copy" in drivers.output()
    assert brought(copied.parent, "third") == Counter()
    assert state(client, source) == (0, sent)

    fourth = drivers.start(source.name, "fourth", ours, **given)
    assert drivers.until(lambda: state(client, source) == (0, sent + 20), fourth), drivers.output()
    assert brought(ours.parent, "fourth") == Counter(range(sent, sent + 20))
