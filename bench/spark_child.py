"""A process with its own Spark that reads topics and peers, for `bench.spark_source`.

It imports no other module of the bench except `bench.spark_peers`, and that only in its own
checkout, so that it can measure any checkout. Its parent puts the checkout's directory into
PYTHONPATH. Each input line names a method of `Measured` and its arguments; the answer has the
result.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pyspark
import redis
from pyspark.sql import DataFrame, SparkSession

import rmq
from spark_connector import RmqDataSource

# Commands from clients; all others are called by scripts. A stream's reader sends the last command.
SENT = (
    "evalsha", "eval", "fcall", "script|load", "function|load", "hello", "auth", "select", "ping",
    "subscribe", "ssubscribe", "smembers", "client|setinfo", "client|setname", "xrange",
    "xrevrange",
)  # fmt: skip
SCRIPTS = ("evalsha", "eval", "fcall")
SEND, XADDS = 10_000, 5_000  # messages per call
READY_S = 90.0  # a query that has not started by then never will
Found = dict[str, Any]


def _end_ms(progress: Any) -> float:
    """Return the end of a batch, ms since the epoch."""
    began = datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00"))
    return began.timestamp() * 1000 + float(progress.durationMs["triggerExecution"])


class Usage:
    """Processor time and commands since its creation."""

    def __init__(self, raw: redis.Redis, jvm: psutil.Process) -> None:
        self._raw, self._jvm = raw, jvm
        self._began, self._cpu, self._calls = time.monotonic(), self._cpu_s(), self._commands()

    def _commands(self) -> dict[str, int]:
        info: Any = self._raw.info("commandstats")
        return {name[8:]: one["calls"] for name, one in info.items() if name != "cmdstat_info"}

    def _cpu_s(self) -> dict[str, float]:
        info: Any = self._raw.info("cpu")
        jvm = self._jvm.cpu_times()
        python = jvm.children_user + jvm.children_system  # processes that have ended
        for process in self._jvm.children(recursive=True):
            try:
                of = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            python += of.user + of.system + of.children_user + of.children_system
        redis_s = float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
        return {"Redis": redis_s, "JVM": jvm.user + jvm.system, "Python": python}

    def cpu_s(self) -> dict[str, float]:
        """Return the processor time of Redis, the JVM, its Python processes, and in total."""
        spent = {name: now - self._cpu[name] for name, now in self._cpu_s().items()}
        return {**spent, "all": sum(spent.values())}

    def commands(self) -> dict[str, float]:
        """Return the numbers of client commands, of scripts among them, and of all commands."""
        calls = {name: count - self._calls.get(name, 0) for name, count in self._commands().items()}
        return {
            "sent": sum(calls.get(name, 0) for name in SENT),
            "scripts": sum(calls.get(name, 0) for name in SCRIPTS),
            "all": sum(calls.values()),
        }

    def seconds(self) -> float:
        """Return the time since its creation, s."""
        return time.monotonic() - self._began


class TaskMemory:
    """The highest resident memory of a task's process, and of the source runner.

    Args:
        jvm: Parent of all processes. An ending process is last seen some milliseconds earlier.
    """

    PAUSE_S = 0.02

    def __init__(self, jvm: psutil.Process) -> None:
        self._jvm, self._ended = jvm, threading.Event()
        self.most = {"task": 0.0, "runner": 0.0}
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _kind(self, process: psutil.Process) -> str:
        words = " ".join(process.cmdline())
        if "source_runner" in words:
            return "runner"
        if "pyspark.daemon" not in words or "pyspark.sql.worker" in words:
            return ""
        parent = process.parent()
        return "task" if parent and "pyspark.daemon" in " ".join(parent.cmdline()) else ""

    def _watch(self) -> None:
        kinds: dict[int, str] = {}
        while not self._ended.wait(self.PAUSE_S):
            for process in self._jvm.children(recursive=True):
                try:
                    # A process without a kind may have been seen between its fork and its exec.
                    kind = kinds[process.pid] = kinds.get(process.pid) or self._kind(process)
                    if kind:
                        status = Path(f"/proc/{process.pid}/status").read_text()
                        peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
                        self.most[kind] = max(self.most[kind], peak)
                except (psutil.NoSuchProcess, OSError, IndexError):
                    kinds.pop(process.pid, None)

    def stop(self) -> dict[str, float]:
        """Return the MiB of each kind of process."""
        self._ended.set()
        self._thread.join()
        return self.most


def resident_mib(jvm: psutil.Process) -> dict[str, float]:
    """Return the resident memory of the JVM, and of its largest runner and task, MiB."""
    found = {"JVM": jvm.memory_info().rss / 2**20, "runner": 0.0, "task": 0.0}
    for process in jvm.children(recursive=True):
        try:
            kind = "runner" if "source_runner" in " ".join(process.cmdline()) else "task"
            found[kind] = max(found[kind], process.memory_info().rss / 2**20)
        except psutil.NoSuchProcess:
            continue
    return found


class Measured:
    """A Spark session, a server, and the measurements with both.

    Args:
        url: URL of the server.
        prefix: Prefix of the names of topics.
        peers: Whether it measures the peers as well.
        reuse: Whether a Python process serves one task after the other.
    """

    def __init__(self, url: str, prefix: str, peers: bool, reuse: bool = True) -> None:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        self._url, self._prefix, self._number = url, prefix, 0
        self._home = Path(tempfile.mkdtemp(prefix="rmq-bench-spark-"))
        self._spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.python.worker.reuse", str(reuse).lower())
            .getOrCreate()
        )
        self._spark.sparkContext.setLogLevel("OFF")
        if not self._spark.version.startswith("4.0."):  # it refuses a name that it has found
            self._spark.dataSource.register(RmqDataSource)
        if peers:
            from bench.spark_peers import Made, Streams

            self._spark.dataSource.register(Made)
            self._spark.dataSource.register(Streams)
        gateway: Any = self._spark.sparkContext._jvm
        self._jvm = psutil.Process(gateway.java.lang.ProcessHandle.current().pid())
        self._raw = redis.Redis.from_url(url, socket_timeout=60)
        self._client = rmq.Client(url)

    def close(self) -> None:
        """Stop Spark."""
        self._spark.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    # --- inputs --------------------------------------------------------------------------------

    def _name(self) -> str:
        self._number += 1
        return f"{self._prefix}{self._number}"

    def _checkpoint(self) -> str:
        return str(self._home / self._name())

    def _topic(self, rows: int, slots: int, body: int) -> rmq.Topic:
        """Return a new topic with messages."""
        topic = self._client.topic(self._name(), slots=slots, codec="bytes", dedup_window=0)
        topic.open()
        step = max(1, min(SEND, 32 * 1024 * 1024 // body))
        for first in range(0, rows, step):
            count = min(step, rows - first)
            topic.send_many([rmq.Outgoing(b"x" * body) for _ in range(count)])
        return topic

    def _streams(self, rows: int, slots: int, body: int) -> list[str]:
        """Return the keys of streams with `rows` entries in total; made once for each shape."""
        keys = [f"bench:streams:{rows}:{slots}:{number}" for number in range(slots)]
        if rows and not self._raw.exists(keys[0]):
            for key in keys:
                for first in range(0, rows // slots, XADDS):
                    pipe = self._raw.pipeline(transaction=False)
                    for number in range(first, min(rows // slots, first + XADDS)):
                        pipe.xadd(key, {"body": b"x" * body}, f"0-{number + 1}")
                    pipe.execute()
        return keys

    def _load(self, topic: str, **options: object) -> DataFrame:
        given = {name: str(value) for name, value in options.items()}
        reader = self._spark.readStream.format("rmq")
        return reader.options(url=self._url, subscribe=topic, **given).load()

    def _load_peer(self, side: str, keys: list[str], batch: int, rows: int = 0) -> DataFrame:
        given = {"keys": ",".join(keys), "batch": str(batch), "rows": str(rows)}
        return self._spark.readStream.format(f"bench_{side}").options(url=self._url, **given).load()

    # --- measurements --------------------------------------------------------------------------

    def batches(
        self, side: str, rows: int, batch: int, slots: int, body: int = 200, skip: int = 1
    ) -> Found:
        """Read all waiting messages in batches; return rows/s, us of processors and commands.

        Args:
            side: "rmq", "streams" or "made".
            rows: Number of waiting messages.
            batch: Rows per batch.
            slots: Number of slots of the topic, or of streams.
            body: Bytes of each body.
            skip: First batches, which start processes and count for commands only.
        """
        if side == "rmq":
            source = self._load(self._topic(rows, slots, body).name, maxMessagesPerTrigger=batch)
        elif side == "streams":
            source = self._load_peer(side, self._streams(rows, slots, body), batch)
        else:
            source = self._load_peer(side, [str(number) for number in range(slots)], batch, rows)
        usage = Usage(self._raw, self._jvm)
        query = (
            source.writeStream.format("noop")
            .option("checkpointLocation", self._checkpoint())
            .start()
        )
        query.processAllAvailable()  # on Spark 4.0, availableNow is one batch
        cpu, commands = usage.cpu_s(), usage.commands()
        query.stop()
        done: list[Any] = [one for one in query.recentProgress if one.numInputRows]
        read = sum(one.numInputRows for one in done)
        if read != rows:
            raise RuntimeError(f"{side}: {read} rows of {rows}")
        warm = done[skip:] or done
        steps = {name for one in warm for name in one.durationMs}
        if skip and done[skip:]:
            took_ms = _end_ms(done[-1]) - _end_ms(done[skip - 1])
        else:
            took_ms = sum(float(one.durationMs["triggerExecution"]) for one in done)
        return {
            "rows/s": 1000 * sum(one.numInputRows for one in warm) / took_ms,
            "rows/s in tasks": statistics.median(
                1000 * one.numInputRows / max(1, one.durationMs["addBatch"]) for one in warm
            ),
            "us": {name: 1e6 * spent / rows for name, spent in cpu.items()},
            "commands": {name: count / len(done) for name, count in commands.items()},
            "ms": {
                name: statistics.median(one.durationMs.get(name, 0) for one in warm)
                for name in sorted(steps)
            },
        }

    def idle(self, slots: int, trigger_ms: int, seconds: float, topics: int = 1) -> Found:
        """Return the commands per second of a query without messages, and % of a core.

        Args:
            slots: Slots of each topic.
            trigger_ms: Time between two triggers; 0: Spark's default, one after the other.
            seconds: Duration, s.
            topics: Number of topics.
        """
        names = [self._topic(slots, slots, 10).name for _ in range(topics)]
        writer = self._load(",".join(names)).writeStream.format("noop")
        if trigger_ms:
            writer = writer.trigger(processingTime=f"{trigger_ms} milliseconds")
        query = writer.option("checkpointLocation", self._checkpoint()).start()
        query.processAllAvailable()
        time.sleep(2 * min(3.0, seconds))  # the backlog is counted once, 5 s after the last batch
        usage = Usage(self._raw, self._jvm)
        time.sleep(seconds)
        took = usage.seconds()
        cpu, commands = usage.cpu_s(), usage.commands()
        query.stop()
        return {
            "commands/s": {name: count / took for name, count in commands.items()},
            "% of a core": {name: 100 * spent / took for name, spent in cpu.items()},
        }

    def latency(self, side: str, count: int, slots: int, trigger_ms: int) -> Found:
        """Return the times from before a send until its row has reached the driver, ms.

        Args:
            side: "rmq" or "streams".
            count: Number of messages, sent one by one at random times.
            slots: Number of slots of the topic, or of streams.
            trigger_ms: Time between two triggers.
        """
        send: Callable[[bytes], object]
        if side == "rmq":
            topic = self._topic(0, slots, 1)
            source, send = self._load(topic.name), topic.send
        else:
            keys, sent = [f"bench:{self._name()}:{number}" for number in range(slots)], 0
            source = self._load_peer(side, keys, 100_000)

            def send(body: bytes) -> None:
                nonlocal sent
                number, slot = divmod(sent, slots)
                self._raw.xadd(keys[slot], {"body": body}, f"0-{number + 1}")
                sent += 1

        late: list[float] = []

        def sink(rows: DataFrame, batch: int) -> None:
            values = rows.select("value").collect()
            now = time.time()
            late.extend(1000 * (now - float(row.value)) for row in values)

        query = (
            source.writeStream.foreachBatch(sink)
            .option("checkpointLocation", self._checkpoint())
            .trigger(processingTime=f"{trigger_ms} milliseconds")
            .start()
        )

        def all_came(sent: int) -> None:
            until = time.monotonic() + READY_S
            while len(late) < sent:
                if query.exception() or time.monotonic() > until:
                    raise RuntimeError(f"{side}: {len(late)} of {sent} came: {query.exception()}")
                time.sleep(0.02)

        try:
            for number in range(10):  # starts processes, and compiles
                send(repr(time.time()).encode())
                all_came(number + 1)
            late.clear()
            pause = random.Random(7)
            for _ in range(count):
                send(repr(time.time()).encode())
                time.sleep(pause.uniform(0.05, 0.25))
            all_came(count)
        finally:
            query.stop()
        return {"ms": late}

    def fill(self, rows: int, slots: int, body: int = 200) -> Found:
        """Make a topic with messages and return its name."""
        return {"topic": self._topic(rows, slots, body).name}

    def snapshot(self, topic: str, columns: str = "") -> Found:
        """Return rows/s of a batch read of a topic's waiting messages, and us of processors.

        Args:
            topic: Name of the topic.
            columns: Columns to read; empty: all.
        """
        reader = self._spark.read.format("rmq").options(url=self._url, topic=topic, queue="store")
        if columns:
            reader = reader.option("columns", columns)
        stats = self._client.admin.stats(topic)
        waiting = sum(stats[name] for name in ("retries", "priority", "due", "later"))
        usage = Usage(self._raw, self._jvm)
        reader.load().write.format("noop").mode("overwrite").save()
        took = usage.seconds()
        return {
            "rows/s": waiting / took,
            "us": {name: 1e6 * spent / waiting for name, spent in usage.cpu_s().items()},
        }

    def memory(self, rows: int, slots: int, body: int) -> Found:
        """Return the peak MiB of a task's process and of the source runner, in one batch."""
        watch = TaskMemory(self._jvm)
        try:
            self.batches("rmq", rows, rows, slots, body)
        finally:
            most = watch.stop()
        return {"MiB": most}

    def backlog(self, waiting: int, later: int, slots: int, batch: int = 100_000) -> Found:
        """Read a backlog and what is sent meanwhile, in one query.

        The answer has the seconds from a send behind the backlog to its sink, rows/s, and the
        resident MiB of each kind of process: after a fifth of the rows, and at the end.

        Args:
            waiting: Number of messages that wait before the query starts.
            later: Number of messages that are sent while the query runs.
            slots: Number of slots of the topic.
            batch: Rows per batch.
        """
        topic = self._topic(waiting, slots, 200)
        behind: list[float] = []
        sizes: list[tuple[int, dict[str, float]]] = []
        read = 0

        def sink(rows: DataFrame, number: int) -> None:
            nonlocal read
            rows.persist()
            read += rows.count()
            probes = rows.where("length(value) < 200").select("value").collect()
            behind.extend(time.time() - float(row.value) for row in probes)
            sizes.append((read, resident_mib(self._jvm)))
            rows.unpersist()

        topic.send_many([rmq.Outgoing(repr(time.time()).encode())] * slots)
        began = time.monotonic()
        query = (
            self._load(topic.name, maxMessagesPerTrigger=batch)
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", self._checkpoint())
            .start()
        )
        for _ in range(later // SEND):
            topic.send_many([rmq.Outgoing(b"x" * 200) for _ in range(SEND)])
        query.processAllAvailable()
        took = time.monotonic() - began
        query.stop()
        if read != waiting + later + slots or len(behind) != slots:
            raise RuntimeError(f"{read} rows and {len(behind)} of {slots} probes came")
        early = next(found for rows, found in sizes if rows >= read / 5)
        return {
            "behind s": statistics.median(behind),
            "rows/s": read / took,
            "MiB early": early,
            "MiB late": sizes[-1][1],
        }


def main() -> None:
    """Answer the parent's lines until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Java's output must not mix with the answers
    measured = Measured(**json.loads(sys.stdin.readline()))
    opened = {"rmq": str(Path(rmq.__file__).parent), "spark": pyspark.__version__}
    print(json.dumps(opened), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        method = getattr(measured, question.pop("measure"))
        print(json.dumps(method(**question)), file=answers, flush=True)
    measured.close()


if __name__ == "__main__":
    main()
