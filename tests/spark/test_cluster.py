"""A standalone cluster of two workers: slow tasks, killed executors, a killed driver."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

import rmq
from tests.servers import Server
from tests.spark.cluster import Cluster, submission
from tests.spark.cluster_driver import attempts
from tests.spark.conftest import MISSING, ROOT
from tests.spark.long import long
from tests.spark.target import taken

pytestmark = pytest.mark.timeout(600)  # six cold JVMs on a busy machine

ROWS = 400
PAUSE_S = 0.03  # at each row of a job that is killed
PATIENCE_S = 200.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if MISSING:
        pytest.fail(MISSING)
    made = Cluster(tmp_path)
    yield made
    made.stop()


class Copy:
    """Submissions of cluster_job.py, one after the other, on one checkpoint."""

    def __init__(self, cluster: Cluster, url: str, name: str, home: Path) -> None:
        self.cluster, self.home = cluster, home
        self.words = [url, name, f"{name}-copy", str(home / "checkpoint"), str(home / "rows")]
        (home / "rows").mkdir()

    def start(self, python: Path, archive: Path | None, pause_s: float) -> subprocess.Popen[bytes]:
        """Submit the job; spark-submit becomes the JVM of the driver."""
        path = str(archive) if archive else ""
        command, env = submission(python, self.cluster.url, archive, path)
        job = str(ROOT / "tests" / "spark" / "cluster_job.py")
        return self.cluster.start([*command, job, *self.words, str(pause_s)], self.log, env)

    @property
    def log(self) -> Path:
        return self.home / f"job-{len(self.cluster.started)}.log"

    def run(self, python: Path, archive: Path | None) -> None:
        log = self.log
        assert self.start(python, archive, 0).wait(PATIENCE_S) == 0, log.read_text()[-4000:]

    def attempts(self) -> dict[int, list[set[int]]]:
        """Return the rows that each attempt of a task has begun, by executor."""
        found: dict[int, list[set[int]]] = defaultdict(list)
        for file in (self.home / "rows").iterdir():
            found[int(file.name.split("-")[2])].append(set(map(int, file.read_text().split())))
        return found

    def part(self, after: Collection[Path]) -> int | None:
        """Return the pid of an executor with an attempt in its first rows that is none of these."""
        for file in set((self.home / "rows").iterdir()) - set(after):
            if len(file.read_text().split()) in range(5, 15):
                return int(file.name.split("-")[2])
        return None

    def in_the_middle(self, driver: subprocess.Popen[bytes], is_on: Callable[[], bool]) -> int:
        """Wait until a task of a later batch is in its middle; return the pid of its executor."""
        until = time.monotonic() + PATIENCE_S
        while not is_on():
            assert driver.poll() is None and time.monotonic() < until  # noqa: PT018
            time.sleep(0.02)
        done = list((self.home / "rows").iterdir())
        while not (found := self.part(done)):
            assert driver.poll() is None and time.monotonic() < until  # noqa: PT018
            time.sleep(0.02)
        return found


@pytest.fixture
def source(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, slots=2)
    made.open()
    made.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(ROWS)])
    return made


@pytest.fixture
def target(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(f"{name}-copy", slots=3, dedup_window=0)
    made.open()
    return made


@pytest.fixture
def copy(
    cluster: Cluster, server: Server, source: rmq.Topic, target: rmq.Topic, tmp_path: Path
) -> Copy:
    return Copy(cluster, server.url, source.name, tmp_path)


def copied(target: rmq.Topic) -> list[dict[str, Any]]:
    """Take all rows of a copy."""
    found: list[dict[str, Any]] = []
    with target.consumer() as consumer:
        while some := consumer.receive(1000, wait=0):
            found += [one.body for one in some]
            consumer.ack(some)
    return found


def check_once(client: rmq.Client, source: rmq.Topic, rows: list[dict[str, Any]]) -> None:
    """Check that nothing is missing, nothing is double, and the source is empty."""
    assert Counter(row["number"] for row in rows) == Counter(range(ROWS))
    stats = client.admin.stats(source.name)
    assert (stats["in_flight"], stats["settled"], stats["rolled_back"]) == (0, ROWS, 0)


@pytest.mark.parametrize("way", ["py-files", pytest.param("wheel", marks=long("test_cluster.py"))])
def test_a_submitted_job_copies_each_row_once_with_tasks_on_both_executors(
    client: rmq.Client, copy: Copy, source: rmq.Topic, target: rmq.Topic,
    bare: Path, archive: Path, way: str,
) -> None:  # fmt: skip
    if way == "wheel":
        (site,) = bare.parents[1].glob("lib/python*/site-packages")
        shutil.unpack_archive(archive, site)  # as pip does it

    copy.run(bare, archive if way == "py-files" else None)

    rows = copied(target)
    check_once(client, source, rows)
    assert len({row["executor"] for row in rows}) == 2
    homes = {row["home"] for row in rows}
    assert all(
        ("rmq.zip/" if way == "py-files" else f"{bare.parents[1]}/lib") in at for at in homes
    )


@long("test_cluster.py")
def test_a_killed_executor_loses_nothing_and_doubles_nothing(
    client: rmq.Client, copy: Copy, source: rmq.Topic, target: rmq.Topic, bare: Path, archive: Path
) -> None:
    driver = copy.start(bare, archive, PAUSE_S)
    executor = copy.in_the_middle(driver, lambda: client.admin.stats(source.name)["settled"] > 0)

    os.kill(executor, signal.SIGKILL)

    assert driver.wait(PATIENCE_S) == 0
    rows = copied(target)
    check_once(client, source, rows)
    attempts = copy.attempts()
    assert len(attempts) == 3  # Spark has started another one
    others = [attempt for pid, some in attempts.items() if pid != executor for attempt in some]
    # The control: rows that a task had begun on the killed executor were begun once more elsewhere.
    assert any(attempt & other for attempt in attempts[executor] for other in others)


@long("test_cluster.py")
def test_a_driver_whose_jvm_is_killed_continues_with_the_same_rows(
    client: rmq.Client, copy: Copy, source: rmq.Topic, target: rmq.Topic, bare: Path, archive: Path
) -> None:
    driver = copy.start(bare, archive, PAUSE_S)
    copy.in_the_middle(driver, lambda: client.admin.stats(source.name)["settled"] > 0)

    driver.kill()

    driver.wait()
    stats = client.admin.stats(source.name)
    assert stats["in_flight"] > 0  # a batch was open
    before = copy.attempts()
    copy.run(bare, archive)
    rows = copied(target)
    check_once(client, source, rows)
    after = copy.attempts()
    assert len(after) == 4
    again = [attempt for pid, some in after.items() if pid not in before for attempt in some]
    assert any(attempt & other for some in before.values() for attempt in some for other in again)


@long("test_cluster.py")
def test_rows_of_a_task_that_its_speculative_copy_overtook_are_not_published(
    server: Server, client: rmq.Client, name: str, cluster: Cluster, tmp_path: Path
) -> None:
    source = client.topic(name, slots=2)
    target = client.topic(f"{name}-copy", slots=4, dedup_window=0)
    naive = client.topic(f"{name}-naive", slots=4, dedup_window=0)
    for one in (target, naive):
        one.open()
    source.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(ROWS)])

    failed = cluster.run(
        "tests.spark.cluster_driver",
        server.url, source.name, target.name, naive.name, str(tmp_path),
    )  # fmt: skip

    assert not failed, failed
    told = attempts(tmp_path, "staged")
    straggler, copy = [one for one in told if one["partition"] == 0]
    assert straggler["rows"] == copy["rows"] > 0  # both have staged all of them
    assert copy["rival_alive"]  # at the same time
    assert straggler["executor"] != copy["executor"]
    assert sum(one["rows"] for one in told) == ROWS + straggler["rows"]

    assert taken(target) == Counter(range(ROWS))
    stats = client.admin.stats(source.name)
    assert (stats["in_flight"], stats["settled"]) == (0, ROWS)
    with server.raw() as raw:
        left = raw.keys(f"*{{{target.name}_*}}:stage:*")
        assert all(0 < raw.ttl(key) <= 86_400 for key in left)
        assert left  # of the loser, whom Spark killed: it goes by itself

    # The control: a sink without stages has the rows of both attempts.
    doubled = taken(naive)
    told = attempts(tmp_path, "naive")
    (extra,) = [one["rows"] for one in told if one["partition"] == 0 and one["attempt"] == 0]
    assert set(doubled) == set(range(ROWS))
    assert doubled.total() == ROWS + extra > ROWS
