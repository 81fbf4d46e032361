"""Kills around two streaming queries: `python -m tests.spark.storm [--kills 16] [--seed 1]`.

Numbered messages go to the topics a and b. One query copies both to the topics that a column of
its rows names; another one reads those two and writes a file for each batch. Both take ahead, in
one driver, and each number has to be in the files once: so either sink would show a fault.

A kill hits the JVM, a source runner, a worker of Python, the whole group, or Redis (which keeps
all that it has answered); meanwhile the topics are resized from 4 slots to 64 and to 8.

`--lease 3` adds drivers that stand still for longer than their lease, with onClaimLoss=continue:
a number may then come twice, if one of its rows was received for the second time.
`--broken settles-early` and `--broken drops-ahead` are wrong on purpose: the check has to find it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

import rmq
from spark_connector import RmqDataSource, options
from spark_connector.offset import Numbers
from spark_connector.query_lease import QueryLease
from spark_connector.stream import Part, RmqStreamReader
from tests.servers import Server, die_with_parent, engines
from tests.spark.conftest import ROOT, environment

SOURCES, COPIES = ("a", "b"), ("copy-a", "copy-b")
KINDS = ("jvm", "runner", "worker", "group", "redis")
FROZEN = "frozen"  # the kind that a short lease adds
BROKEN = ("settles-early", "drops-ahead")
SENT_AT_ONCE = 400
MOST = 2_000  # messages of a batch
PATIENCE_S = 240.0  # for a driver's next batch, and for the end


# --- the driver ----------------------------------------------------------------------------------


class SettlesEarly(RmqStreamReader):
    """Settles a batch as soon as tasks read it, whatever Spark's commit log says."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Part]:
        parts = super().partitions(start, end)
        if parts:
            self._in_background(self._settle_early, self._open(parts[0].run), parts)
        return parts

    def _settle_early(self, lease: QueryLease, parts: list[Part]) -> None:
        for held in [held for part in parts for held in part.parts]:
            while not lease.was_read(held.topic, held.slot, held.after):
                time.sleep(0.005)
            lease.query(held.topic).settle({held.slot: held.upto})


class DropsAhead(RmqStreamReader):
    """Settles what was taken ahead, as if its tasks had run."""

    def _finish_taking(self) -> dict[str, Numbers]:
        is_ahead, newest = self._taking is not None, super()._finish_taking()
        if is_ahead and self._query_lease is not None:
            for topic, numbers in newest.items():
                self._query_lease.query(topic).settle(numbers)
        return newest


def _source(broken: str) -> type[RmqDataSource]:
    reader = {"settles-early": SettlesEarly, "drops-ahead": DropsAhead}.get(broken, RmqStreamReader)

    class Source(RmqDataSource):
        """The data source, with such readers."""

        def streamReader(self, schema: StructType) -> RmqStreamReader:
            return reader(options.stream(self.options), schema)

    return Source


def drive(url: str, home: Path, lease_s: float, loss: str, broken: str) -> None:
    """Run both queries until one of them fails."""
    from tests.spark.conftest import session

    os.environ.update(environment())
    spark = session("local[2]")
    spark.dataSource.register(_source(broken))

    def read(topics: tuple[str, ...]) -> DataFrame:
        asked = {
            "url": url, "subscribe": ",".join(topics), "maxMessagesPerTrigger": str(MOST),
            "leaseSeconds": str(lease_s), "ownerLeaseSeconds": "1", "onClaimLoss": loss,
            "rowsPerTask": "100",
        }  # fmt: skip
        return spark.readStream.format("rmq").options(**asked).load()

    def keep(rows: DataFrame, batch: int) -> None:
        values = sorted(row.value for row in rows.collect())
        path = home / "batches" / str(batch)
        if path.exists():
            # A replayed batch is the same batch, but for what a lapse has taken from it.
            if loss == "fail" and json.loads(path.read_text()) != values:
                (home / "differs").touch()
            if broken != "settles-early":
                values = sorted({*values, *json.loads(path.read_text())})
        path.with_suffix(".new").write_text(json.dumps(values))
        path.with_suffix(".new").rename(path)

    copy = read(SOURCES).selectExpr(
        "'copy-' || topic as topic",
        "to_json(struct(cast(cast(value as string) as int) as n, attempt as first)) as value",
    )
    text = "cast(value as string)"
    end = read(COPIES).selectExpr(
        f"to_json(struct(get_json_object({text}, '$.n') as n, attempt as second,"
        f" get_json_object({text}, '$.first') as first)) as value"
    )
    copies = copy.writeStream.format("rmq").options(url=url, codec="json")
    queries = [
        writer.option("checkpointLocation", str(home / "checkpoints" / name)).start()
        for name, writer in (("copy", copies), ("end", end.writeStream.foreachBatch(keep)))
    ]
    while all(query.isActive for query in queries):
        time.sleep(0.1)
    errors = [str(query.exception()) for query in queries if not query.isActive]
    print("\n".join(errors), flush=True)
    os._exit(1)  # at once: a broken query would only be stopped slowly


# --- what happens to it --------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a storm left.

    Attributes:
        sent: messages.
        missing: numbers that are in no batch.
        double: numbers that are in two rows, none of which says that a message was received again.
        lapsed: numbers that are in two rows, of which one says so.
        differs: whether a batch came back with other rows.
        kills: by kind.
        batches: files.
    """

    sent: int
    missing: int
    double: int
    lapsed: int
    differs: bool
    kills: Counter[str]
    batches: int

    @property
    def is_exact(self) -> bool:
        """Whether nothing is lost, and nothing double but after a lapse."""
        return not (self.missing or self.double or self.differs)


class Storm:
    """One storm, with a Redis and drivers of its own."""

    def __init__(self, home: Path, kills: int, seed: int, lease_s: float, broken: str) -> None:
        self._home, self._kills, self._lease_s, self._broken = home, kills, lease_s, broken
        self._random = random.Random(seed)
        self._loss = "continue" if broken or lease_s < 60 else "fail"
        self._server = Server(next(iter(engines().values())), aof=True)
        self._driver: subprocess.Popen[bytes] | None = None
        self._sent = 0
        self._drivers = self._struck = 0
        self._ended = threading.Event()
        (home / "batches").mkdir(parents=True)

    def play(self, tell: Callable[[str], object] = print) -> Outcome:
        """Let everything happen; wait until the topics are empty; compare."""
        kinds = (*KINDS, FROZEN) if self._lease_s < 60 else KINDS
        kills: Counter[str] = Counter()
        with rmq.Client(self._server.url, retry_for=30) as client:
            topics = [client.topic(name, slots=4, retry="immediate") for name in SOURCES + COPIES]
            for topic in topics:
                topic.open()
            producer = threading.Thread(target=self._produce, args=(topics[:2],), daemon=True)
            resizer = threading.Thread(target=self._resize, args=(client, tell), daemon=True)
            producer.start()
            resizer.start()
            try:
                for _ in range(self._kills):
                    self._progress(2)
                    time.sleep(self._random.uniform(0, 1.5))
                    kind = self._random.choice(kinds)
                    self._strike(kind)
                    kills[kind] += 1
                    self._struck += 1
                    tell(f"{kind}: {self._sent} sent, {self._batches()} batches")
                self._ended.set()
                producer.join()
                self._drain(client, resizer)
            finally:
                self._ended.set()
                self._end_driver()
                producer.join(70)
                self._server.stop()
        return self._compare(kills)

    def _produce(self, topics: list[rmq.Topic]) -> None:
        """Send numbers until the end; what may have arrived is sent again with the same id."""
        while not self._ended.is_set():
            first, self._sent = self._sent, self._sent + SENT_AT_ONCE
            for place, topic in enumerate(topics):
                numbers = range(first + place, first + SENT_AT_ONCE, 2)
                batch = [
                    rmq.Outgoing(n, id=topic.new_id(str(n)), slot_basis=str(n)) for n in numbers
                ]
                while True:
                    with contextlib.suppress(rmq.StorageError):
                        topic.send_many(batch)
                        break
                    time.sleep(0.1)
            self._ended.wait(0.4)

    def _resize(self, client: rmq.Client, tell: Callable[[str], object]) -> None:
        for third, slots in ((1, 64), (2, 8)):
            while self._struck < third * self._kills // 3 and not self._ended.is_set():
                time.sleep(0.1)
            for name in SOURCES + COPIES:
                while True:
                    with contextlib.suppress(rmq.StorageError):
                        client.admin.topic_resize(name, slots)
                        break
                    time.sleep(0.1)
            tell(f"{slots} slots")

    def _batches(self) -> int:
        return sum(1 for path in (self._home / "batches").iterdir() if not path.suffix)

    def _progress(self, batches: int) -> None:
        """Wait until a driver has written so many more batches; start it where none runs."""
        wanted, until = self._batches() + batches, time.monotonic() + PATIENCE_S
        while self._batches() < wanted:
            self._keep_driver()
            if time.monotonic() > until:
                raise TimeoutError(f"no batch for {PATIENCE_S:g} s: see {self._home}/driver-*.log")
            time.sleep(0.05)

    def _keep_driver(self) -> None:
        if self._driver is not None and self._driver.poll() is None:
            return
        self._end_driver()
        self._drivers += 1
        log = self._home / f"driver-{self._drivers}.log"
        words = [self._server.url, str(self._home), str(self._lease_s), self._loss, self._broken]
        with log.open("wb") as out:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.storm", "--driver", *words],
                cwd=ROOT, env=os.environ | environment(), stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip

    def _end_driver(self) -> None:
        if self._driver is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait()

    def _strike(self, kind: str) -> None:
        assert self._driver is not None
        if kind == "redis":
            self._server.kill()
            time.sleep(self._random.uniform(0, 1))
            self._server.start()
        elif kind == "group":
            self._end_driver()
        elif kind == FROZEN:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._driver.pid, signal.SIGSTOP)
                time.sleep(self._lease_s + 1)
                os.killpg(self._driver.pid, signal.SIGCONT)
        else:
            mark = {
                "jvm": "java",
                "runner": "python_streaming_source_runner",
                "worker": "pyspark.daemon",
            }[kind]
            found = [pid for pid, words in self._processes() if mark in words]
            if found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._random.choice(found), signal.SIGKILL)

    def _processes(self) -> Iterator[tuple[int, str]]:
        """Yield the processes of the driver; workers have a group of their own in its session."""
        assert self._driver is not None
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                session = int((path / "stat").read_text().rpartition(")")[2].split()[3])
                words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if session == self._driver.pid:
                    yield int(path.name), words

    def _drain(self, client: rmq.Client, resizer: threading.Thread) -> None:
        """Wait until nothing waits and nothing is in flight, for a whole second."""
        until, quiet = time.monotonic() + PATIENCE_S, 0
        while quiet < 5:
            self._keep_driver()
            stats = [client.admin.stats(name) for name in SOURCES + COPIES]
            busy = sum(each["records"] for each in stats)
            quiet = 0 if busy or resizer.is_alive() else quiet + 1
            if time.monotonic() > until:
                raise TimeoutError(f"{busy} messages are left: see {self._home}/driver-*.log")
            time.sleep(0.2)

    def _compare(self, kills: Counter[str]) -> Outcome:
        rows: dict[int, list[int]] = {}  # by number, the attempt of each of its rows
        files = [path for path in (self._home / "batches").iterdir() if not path.suffix]
        for path in files:
            for text in json.loads(path.read_text()):
                row = json.loads(text)
                rows.setdefault(int(row["n"]), []).append(max(int(row["first"]), row["second"]))
        twice = [attempts for attempts in rows.values() if len(attempts) > 1]
        lapsed = sum(max(attempts) > 1 for attempts in twice)
        return Outcome(
            self._sent, self._sent - len(rows), len(twice) - lapsed, lapsed,
            (self._home / "differs").exists(), kills, len(files),
        )  # fmt: skip


def storm(
    home: Path, *, kills: int, seed: int, lease_s: float = 600.0, broken: str = "",
    tell: Callable[[str], object] = print,
) -> Outcome:  # fmt: skip
    """Play one storm."""
    return Storm(home, kills, seed, lease_s, broken).play(tell)


def main() -> None:
    """Play one, and exit with 1 if its check fails; a broken variant has to fail."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lease", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--broken", choices=BROKEN, default="")
    parser.add_argument("--home", type=Path, help="where files and logs go")
    parser.add_argument("--driver", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.driver:
        url, home, lease_s, loss, broken = given.driver
        drive(url, Path(home), float(lease_s), loss, broken)
    home = given.home or Path(tempfile.mkdtemp(prefix="rmq-storm-"))
    outcome = storm(
        home, kills=given.kills, seed=given.seed, lease_s=given.lease, broken=given.broken
    )
    print(f"kills: {', '.join(f'{kind} {count}' for kind, count in sorted(outcome.kills.items()))}")
    print(
        f"{outcome.sent} sent, {outcome.batches} batches: missing {outcome.missing}, "
        f"double {outcome.double}, double after a lapse {outcome.lapsed}"
        + (", a batch came back with other rows" if outcome.differs else "")
    )
    sys.exit(outcome.is_exact == bool(given.broken))


if __name__ == "__main__":
    main()
