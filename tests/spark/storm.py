"""Kills around two streaming queries: `python -m tests.spark.storm [--kills 16] [--seed 1]`.

Numbered messages go to the topics a and b. One query copies both to the topics that a column of
its rows names; another one reads those two and writes a file for each batch. Both take ahead, in
one driver, and each number has to be in the files once: so either sink would show a fault.

A kill hits the JVM, a source runner, a worker of Python, the whole group, or Redis (which keeps
all that it has answered); meanwhile the topics are resized from 4 slots to 64 and to 8. Each of
these options makes every second kill one of its own:

    --executors  an executor of a standalone cluster with two workers
    --cluster    a master of a Redis Cluster: its replica has all of its writes, and takes over
    --stale      the same, but the replica was cut off before, and lacks the last writes. Sends and
                 commits wait for a replica (durability), so nothing may be missing. What the
                 queries took and settled is lost with them, so what was not settled at the cut may
                 come twice. A driver that stops with a lost lease is followed by one with
                 onClaimLoss=continue.
    --lease 3    a driver that stands still for longer than its lease, when it has written a batch
                 that is not settled; a consumer takes its messages. With onClaimLoss=continue they
                 come twice: one of the rows was received for the second time, and the progress of
                 the query has counted a lapse.

With --losses each strike hits a topic or a password of the query that writes files, while it writes
a batch: a third topic of the query is deleted, or deleted and created again, or its Redis user has
another password for a while. After a whole lease a consumer takes what waits. The lease of the
other topics has to last, so nothing may come twice.

Variants that are wrong on purpose, so the check has to find them: `--broken settles-early`,
`--broken settles-logged` (on Spark 4.0 and 4.1), `--broken drops-ahead`,
`--stale --broken unreplicated`, `--lease 3 --broken uncounted` and
`--losses --broken ends-renewal`.
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
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame

import rmq
from tests import clusters
from tests.servers import Server, die_with_parent, engines
from tests.spark import broken_readers, cluster as standalone
from tests.spark.conftest import ROOT, environment, session

SOURCES, COPIES = ("a", "b"), ("copy-a", "copy-b")
KINDS = ("jvm", "runner", "worker", "group", "redis")
EXECUTOR, FAILOVER, STALE, FROZEN = "executor", "failover", "stale", "frozen"  # of the options
LOSS, LOSSES = "loss", ("deleted", "created again", "password")
EXTRA, USER, PASSWORD = "extra", "reader", "secret"  # of --losses
BROKEN = (
    "settles-early",
    "settles-logged",
    "drops-ahead",
    "unreplicated",
    "uncounted",
    "ends-renewal",
)
LOSS_LEASE_S = 8.0
SENT_AT_ONCE = 400
MOST = 2_000  # messages of a batch
AHEAD = 5  # so many batches may wait
PATIENCE_S = 240.0  # for a driver's next batch, and for the end
COUNTED_S = 30.0  # until a progress has counted a lapse
REPLICA_S = 5.0  # for which sends and commits wait for a replica


# --- the driver ----------------------------------------------------------------------------------


def drive(url: str, home: Path, lease_s: float, loss: str, broken: str, master: str) -> None:
    """Run both queries until one of them fails."""
    os.environ.update(environment())
    spark = session(master, settings=standalone.executors())
    spark.dataSource.register(broken_readers.source_with(broken))

    has_losses = (home / LOSS).exists()
    has_figures = not spark.version.startswith(("4.0.", "4.1."))  # in the progress of a query

    def read(topics: tuple[str, ...], at: str = url) -> DataFrame:
        asked = {
            "url": at, "subscribe": ",".join(topics), "maxMessagesPerTrigger": str(MOST),
            "onTopicLoss": "continue",
            "leaseSeconds": str(lease_s), "ownerLeaseSeconds": "1", "onClaimLoss": loss,
            "rowsPerTask": "100",
        }  # fmt: skip
        return spark.readStream.format(broken_readers.NAME).options(**asked).load()

    def keep(rows: DataFrame, batch: int) -> None:
        values = sorted(row.value for row in rows.collect())
        spark.conf.get("spark.app.id")  # raises if the JVM died, so that rows may be missing
        path = home / "batches" / str(batch)
        if path.exists():
            # A replayed batch is the same batch, but for what a lapse has taken from it.
            if loss == "fail" and json.loads(path.read_text()) != values:
                (home / "differs").touch()
            if broken != "settles-early":
                values = sorted({*values, *json.loads(path.read_text())})
        path.with_suffix(".new").write_text(json.dumps(values))
        path.with_suffix(".new").rename(path)
        if values and (home / "freeze").exists():
            (home / "freeze").rename(home / "written")
            while (home / "written").exists():  # until the storm has let us stand still
                time.sleep(0.02)

    copy = read(SOURCES).selectExpr(
        "'copy-' || topic as topic",
        "to_json(struct(cast(cast(value as string) as int) as n, attempt as first)) as value",
    )
    text = "cast(value as string)"
    losing = read((*COPIES, EXTRA), url.replace("://", f"://{USER}:{PASSWORD}@"))
    end = (losing.where(f"topic <> '{EXTRA}'") if has_losses else read(COPIES)).selectExpr(
        f"to_json(struct(get_json_object({text}, '$.n') as n, attempt as second,"
        f" get_json_object({text}, '$.first') as first)) as value"
    )
    copies = copy.writeStream.format("rmq").options(url=url, codec="json")
    queries = [
        writer.option("checkpointLocation", str(home / "checkpoints" / name)).start()
        for name, writer in (("copy", copies), ("end", end.writeStream.foreachBatch(keep)))
    ]
    counted = home / "lapses" / str(os.getpid())
    while all(query.isActive for query in queries):
        progress, latest = queries[-1].lastProgress, None
        if progress and has_figures:
            latest = json.loads(progress.sources[0].latestOffset)
        counted.with_suffix(".new").write_text(str((latest or {}).get("lapses", 0)))
        counted.with_suffix(".new").rename(counted)
        time.sleep(0.2)
    errors = [str(query.exception()) for query in queries if not query.isActive]
    print("\n".join(errors), flush=True)
    os._exit(1)  # at once: a broken query would only be stopped slowly


# --- what happens to it --------------------------------------------------------------------------


class CheckpointRefused(RuntimeError):
    """The source would not start from its checkpoint: more was settled than that says."""


class Outcome(NamedTuple):
    """What a storm left.

    Attributes:
        sent: messages.
        missing: numbers that are in no batch.
        double: numbers that are in two rows, none of which says that a message was received again.
        lapsed: numbers that are in two rows, of which one says so.
        failed_over: the other numbers in two rows that were on their way when a failover lost
            writes.
        differs: whether a batch came back with other rows.
        kills: by kind.
        batches: files.
        lapses: of the lease of the query that writes files, as its progress counted them.
        told: drivers that have stopped with the word that messages are no longer held.
    """

    sent: int
    missing: int
    double: int
    lapsed: int
    failed_over: int
    differs: bool
    kills: Counter[str]
    batches: int
    lapses: int
    told: int

    @property
    def is_exact(self) -> bool:
        """Whether nothing is lost, and nothing double without a cause that was told."""
        return (
            not (self.missing or self.double or self.differs)
            and self.lapses >= self.kills[FROZEN]
            and (not self.lapsed or (self.lapses > 0 and not self.kills[LOSS]))
            and (not self.told or self.kills[STALE] > 0)
        )


def compare(
    home: Path, sent: int, kills: Counter[str], exposed: Collection[int] = (), told: int = 0
) -> Outcome:
    """Compare what was sent with what the files of a storm have.

    Args:
        home: the directory of the storm.
        sent: the numbers below were sent.
        kills: by kind.
        exposed: numbers that were on their way when a failover lost writes.
        told: drivers that have stopped with a lost lease.
    """
    rows: dict[int, list[int]] = {}  # by number, the attempt of each of its rows
    files = batches(home)
    for path in [*files, *home.glob("taken-*")]:
        for text in json.loads(path.read_text()):
            row = json.loads(text)
            rows.setdefault(int(row["n"]), []).append(max(int(row["first"]), row["second"]))
    twice = {n: attempts for n, attempts in rows.items() if len(attempts) > 1}
    lapsed = {n for n, attempts in twice.items() if max(attempts) > 1}
    failed_over = (set(twice) - lapsed) & set(exposed)
    return Outcome(
        sent, sent - len(rows), len(twice) - len(lapsed) - len(failed_over), len(lapsed),
        len(failed_over), (home / "differs").exists(), kills, len(files), lapses(home), told,
    )  # fmt: skip


def batches(home: Path) -> list[Path]:
    """Return the files of whole batches."""
    return [path for path in (home / "batches").iterdir() if not path.suffix]


def lapses(home: Path) -> int:
    """Return how many lapses the progress of all drivers has counted."""
    return sum(int(path.read_text()) for path in (home / "lapses").glob("*[0-9]"))


class Storm:
    """One storm, with a Redis and drivers of its own.

    Args:
        home: for files and logs.
        kills: how many.
        seed: which, and when.
        own: the kind of every second kill; '': there is none.
        lease_s: of the queries.
        broken: a variant.
    """

    MODULE = "tests.spark.storm"  # of its drivers
    TOPICS: tuple[str, ...] = SOURCES + COPIES  # that are resized
    KINDS = KINDS

    def __init__(
        self, home: Path, kills: int, seed: int, own: str, lease_s: float, broken: str
    ) -> None:
        self._home, self._kills, self._lease_s, self._broken = home, kills, lease_s, broken
        self._random, self._own = random.Random(seed), own
        self._loss = "continue" if broken or own == FROZEN else "fail"
        self._driver: subprocess.Popen[bytes] | None = None
        self._log = home / "driver-0.log"
        self._sent = self._drivers = self._struck = self._told = 0
        self._taken = 0  # messages that the storm's own consumer has received
        self._exposed: set[int] = set()
        self._continues = False  # the driver that runs, after a lost lease
        self._ended = threading.Event()
        for name in ("batches", "lapses"):
            (home / name).mkdir(parents=True)
        binary = next(iter(engines().values()))
        self._cluster = clusters.Cluster(binary) if own in (FAILOVER, STALE) else None
        self._server = None if self._cluster else Server(binary, aof=True)
        self._spark = standalone.Cluster(home) if own == EXECUTOR else None

    @property
    def _url(self) -> str:
        return self._cluster.url if self._cluster else self._redis.url

    @property
    def _redis(self) -> Server:
        assert self._server is not None
        return self._server

    def play(self, tell: Callable[[str], object] = print) -> Outcome:
        """Let everything happen; wait until the topics are empty; compare."""
        others = [kind for kind in self.KINDS if self._server or kind != "redis"]
        if self._own == LOSS:
            others = [LOSS]
        replicated = self._cluster and self._broken != "unreplicated"
        durability = rmq.Replicated(1, REPLICA_S) if replicated else "memory"
        kills: Counter[str] = Counter()
        with rmq.Client(self._url, retry_for=30) as client:
            topics = [
                client.topic(name, slots=4, retry="immediate", durability=durability)
                for name in SOURCES + COPIES
            ]
            for topic in topics:
                topic.open()
            if self._own == LOSS:
                (self._home / LOSS).touch()
                client.topic(EXTRA).open()
                self._set_password(PASSWORD)
            producer = threading.Thread(target=self._produce, args=(topics[:2],), daemon=True)
            resizer = threading.Thread(target=self._resize, args=(client, tell), daemon=True)
            producer.start()
            resizer.start()
            try:
                for number in range(self._kills):
                    self._progress(2)
                    time.sleep(self._random.uniform(0, 1.5))
                    is_own = self._own and number % 2 == 0
                    kind = self._own if is_own else self._random.choice(others)
                    self._strike(kind, client)
                    kills[kind] += 1
                    self._struck += 1
                    tell(f"{kind}: {self._sent} sent, {len(batches(self._home))} batches")
                self._ended.set()
                producer.join()
                self._drain(client, resizer)
            finally:
                self._ended.set()
                self._end_driver()
                producer.join(70)
                for service in (self._spark, self._cluster, self._server):
                    if service is not None:
                        service.stop()
        return compare(self._home, self._sent, kills, self._exposed, self._told)

    def _produce(self, topics: list[rmq.Topic]) -> None:
        """Send numbers until the end; what may have arrived is sent again with the same id."""
        while not self._ended.is_set():
            # A driver writes no batch of what the storm's consumer has taken.
            if self._sent - self._taken > MOST * (len(batches(self._home)) + AHEAD):
                self._ended.wait(0.1)  # a driver starts slowly on a busy machine
                continue
            first, self._sent = self._sent, self._sent + SENT_AT_ONCE
            for place, topic in enumerate(topics):
                numbers = range(first + place, first + SENT_AT_ONCE, len(topics))
                batch = [
                    rmq.Outgoing(n, id=topic.new_id(str(n)), slot_basis=str(n)) for n in numbers
                ]
                while True:
                    with contextlib.suppress(rmq.StorageError, rmq.NotDurable):
                        topic.send_many(batch)
                        break
                    time.sleep(0.1)
            self._ended.wait(0.4)

    def _resize(self, client: rmq.Client, tell: Callable[[str], object]) -> None:
        for third, slots in ((1, 64), (2, 8)):
            while self._struck < third * self._kills // 3 and not self._ended.is_set():
                time.sleep(0.1)
            for name in self.TOPICS:
                while True:
                    try:
                        client.admin.topic_resize(name, slots)
                        break
                    except rmq.StorageError:
                        time.sleep(0.1)
                    except rmq.ConfigurationError:  # the storm has failed, and closed the client
                        return
            tell(f"{slots} slots")

    def _progress(self, more: int) -> None:
        """Wait until a driver has written so many more batches; start it where none runs."""
        wanted = len(batches(self._home)) + more
        self._await(lambda: len(batches(self._home)) >= wanted, "no batch")

    def _await(self, is_so: Callable[[], bool], otherwise: str) -> None:
        """Wait, and keep a driver running meanwhile."""
        until = time.monotonic() + PATIENCE_S
        while not is_so():
            self._keep_driver()
            if time.monotonic() > until:
                raise TimeoutError(f"{otherwise} for {PATIENCE_S:g} s: see {self._log}")
            time.sleep(0.05)

    def _keep_driver(self) -> None:
        if self._driver is not None and self._driver.poll() is None:
            return
        self._end_driver()
        said = self._log.read_text() if self._log.exists() else ""
        if "checkpoint: it is an older copy" in said:
            raise CheckpointRefused(said[said.index("checkpoint: it is an older copy") :][:300])
        words = "restart with onClaimLoss=continue"  # a driver that continues says so, too
        told = not self._continues and words in said
        self._told += told
        self._continues = told or self._loss == "continue"
        loss = "continue" if self._continues else "fail"
        self._drivers += 1
        self._log = self._home / f"driver-{self._drivers}.log"
        master = self._spark.url if self._spark else "local[2]"
        given = [self._url, str(self._home), str(self._lease_s), loss, self._broken, master]
        with self._log.open("wb") as out:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", self.MODULE, "--driver", *given],
                cwd=ROOT, env=os.environ | environment(), stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip

    def _end_driver(self) -> None:
        if self._driver is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait()

    def _strike(self, kind: str, client: rmq.Client) -> None:
        assert self._driver is not None
        if kind == "redis":
            self._redis.kill()
            time.sleep(self._random.uniform(0, 1))
            self._redis.start()
        elif kind == "group":
            self._end_driver()
        elif kind == "driver":
            self._driver.kill()
        elif kind == FROZEN:
            self._freeze(client)
        elif kind == LOSS:
            self._lose(client)
        elif kind in (FAILOVER, STALE):
            self._fail_over(kind == STALE)
        else:
            mark = {
                "jvm": "SparkSubmit",
                "runner": "python_streaming_source_runner",
                "worker": "pyspark.daemon",
                EXECUTOR: "CoarseGrainedExecutorBackend",
            }[kind]
            found: list[int] = []
            while not found:  # Spark starts another executor, which may take a moment
                self._keep_driver()
                found = [pid for pid, words in self._processes() if mark in words]
                time.sleep(0.05)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(found), signal.SIGKILL)

    def _lose(self, client: rmq.Client) -> None:
        """Take a topic or the password from the query in a batch; let a consumer look for more."""
        (self._home / "freeze").touch()
        self._await((self._home / "written").exists, "no batch was written")
        loss = self._random.choice(LOSSES)
        if loss == "password":
            self._set_password("another")
            time.sleep(self._lease_s / 2)
            self._set_password(PASSWORD)
        else:
            client.topic(EXTRA).send_many(map(rmq.Outgoing, range(10)))
            client.admin.topic_delete(EXTRA, force=True)
            if loss == "created again":
                client.topic(EXTRA).send("new")
        time.sleep(self._lease_s + 2)
        self._consume(client)
        (self._home / "written").unlink()

    def _set_password(self, password: str) -> None:
        with self._redis.raw() as redis:
            rights = ("on", "resetpass", f">{password}", "~*", "&*", "+@all")
            redis.execute_command("ACL", "SETUSER", USER, *rights)
            redis.execute_command("CLIENT", "KILL", "USER", USER)

    def _freeze(self, client: rmq.Client) -> None:
        """Let the driver stand still beyond its lease, a batch being written and not settled.

        A consumer takes what the query of the copies holds, and the copies that wait.
        """
        assert self._driver is not None
        before = lapses(self._home)
        (self._home / "freeze").touch()
        self._await((self._home / "written").exists, "no batch was written")
        os.killpg(self._driver.pid, signal.SIGSTOP)
        (self._home / "written").unlink()
        time.sleep(self._lease_s + 1)
        self._consume(client)
        os.killpg(self._driver.pid, signal.SIGCONT)
        until = time.monotonic() + COUNTED_S
        while lapses(self._home) == before and time.monotonic() < until:
            time.sleep(0.1)

    def _consume(self, client: rmq.Client) -> None:
        rows: list[str] = []
        for name in COPIES:
            with client.topic(name).consumer() as consumer:
                while deliveries := consumer.receive(1000, wait=1):
                    rows += [json.dumps({**d.body, "second": d.attempt}) for d in deliveries]
                    consumer.ack(deliveries)
        (self._home / f"taken-{self._struck}").write_text(json.dumps(rows))
        self._taken += len(rows)

    def _fail_over(self, is_stale: bool) -> None:
        """kill -9 of a master; wait until its replica has taken over, and it follows that one."""
        assert self._cluster is not None
        master = self._random.choice(self._cluster.masters())
        replica = next(
            node for node in self._cluster.running() if node.call("ROLE")[2:3] == [master.port]
        )
        if is_stale:
            ended = sorted(batches(self._home), key=lambda path: int(path.name))[:-3]
            done = {int(json.loads(t)["n"]) for path in ended for t in json.loads(path.read_text())}
            replica.call("CONFIG SET", "masterauth", "refused, since there is none")
            master.call("CLIENT KILL", "TYPE", "replica")
            time.sleep(self._random.uniform(1, 5))
            self._exposed |= set(range(self._sent)) - done
        else:
            master.call("CLIENT PAUSE", 60_000, "WRITE")
            clusters.until(lambda: len({_writes(master), _writes(replica)}) == 1)
        lost = _writes(master) - _writes(replica)
        assert (lost > 0) == is_stale, lost
        master.kill()
        clusters.until(lambda: clusters.is_master(replica), text="the replica takes over")
        replica.call("CONFIG SET", "masterauth", "")
        master.start()
        self._cluster.wait_ok()

    def _processes(self) -> Iterator[tuple[int, str]]:
        """Yield the processes of Spark; workers have a group of their own in a session."""
        assert self._driver is not None
        sessions = (
            {self._driver.pid, *(p.pid for p in self._spark.started)}
            if self._spark
            else {self._driver.pid}
        )
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                session = int((path / "stat").read_text().rpartition(")")[2].split()[3])
                words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if session in sessions:
                    yield int(path.name), words

    def _drain(self, client: rmq.Client, resizer: threading.Thread) -> None:
        """Wait until nothing waits and nothing is in flight, for a whole second."""
        until, quiet, left = time.monotonic() + PATIENCE_S, 0, -1
        while quiet < 5:
            self._keep_driver()
            busy = sum(client.admin.stats(name)["records"] for name in SOURCES + COPIES)
            quiet = 0 if busy or resizer.is_alive() else quiet + 1
            if busy != left:
                until, left = time.monotonic() + PATIENCE_S, busy
            if time.monotonic() > until:
                raise TimeoutError(f"{busy} messages are left: see {self._log}")
            time.sleep(0.2)


def _writes(node: clusters.Node) -> int:
    """Return how much of a master's writes a node has, in bytes."""
    told = node.call("INFO", "replication")
    return int(told["master_repl_offset" if told["role"] == "master" else "slave_repl_offset"])


def storm(
    home: Path, *, kills: int, seed: int, own: str = "", broken: str = "",
    lease_s: float = 600.0, tell: Callable[[str], object] = print,
) -> Outcome:  # fmt: skip
    """Play one storm."""
    return Storm(home, kills, seed, own, lease_s, broken).play(tell)


def main() -> None:
    """Play one, and exit with 1 if its check fails; a broken variant has to fail."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    own = parser.add_mutually_exclusive_group()
    for name, kind in (("executors", EXECUTOR), ("cluster", FAILOVER), ("stale", STALE)):
        own.add_argument(f"--{name}", dest="own", action="store_const", const=kind)
    own.add_argument("--losses", dest="own", action="store_const", const=LOSS)
    own.add_argument("--lease", type=float, metavar="SECONDS")
    parser.add_argument("--broken", choices=BROKEN, default="")
    parser.add_argument("--home", type=Path, help="where files and logs go")
    parser.add_argument("--driver", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.driver:
        url, home, lease_s, loss, broken, master = given.driver
        drive(url, Path(home), float(lease_s), loss, broken, master)
    try:
        outcome = storm(
            given.home or Path(tempfile.mkdtemp(prefix="rmq-storm-")),
            kills=given.kills, seed=given.seed, broken=given.broken,
            own=FROZEN if given.lease else given.own or "",
            lease_s=given.lease or (LOSS_LEASE_S if given.own == LOSS else 600.0),
        )  # fmt: skip
    except CheckpointRefused as error:
        print(error)
        sys.exit(not given.broken)
    print(f"kills: {', '.join(f'{kind} {count}' for kind, count in sorted(outcome.kills.items()))}")
    print(
        f"{outcome.sent} sent, {outcome.batches} batches: missing {outcome.missing}, "
        f"double {outcome.double}, double after a lapse {outcome.lapsed}, "
        f"after a failover that lost writes {outcome.failed_over}; "
        f"lapses counted {outcome.lapses}, drivers that stopped with a lost lease {outcome.told}"
        + (", a batch came back with other rows" if outcome.differs else "")
    )
    sys.exit(outcome.is_exact == bool(given.broken))


if __name__ == "__main__":
    main()
