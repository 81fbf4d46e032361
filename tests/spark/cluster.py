"""A standalone Spark of our own: a master and two workers, on two addresses of the loopback.

Speculation wants two hosts: Spark starts the copy of a slow task on another one.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from tests.servers import die_with_parent
from tests.spark.conftest import QUICK, ROOT, environment, jvm

HOSTS = ("127.0.0.1", "127.0.0.2")
START_S = 60.0


def spark_home() -> Path:
    """Return the directory of PySpark's Spark."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def submission(
    python: Path, master: str, archive: Path | None = None, path: str = ""
) -> tuple[list[str], dict[str, str]]:
    """Return the command of spark-submit up to its job, and its environment.

    Args:
        python: the interpreter of driver and executors.
        master: where the job runs.
        archive: RMQ for --py-files.
        path: PYTHONPATH of the driver.
    """
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", master]
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": jvm(),
        "spark.driver.memory": "768m",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": jvm(),
        # Both executors before the first task: without `cores.max` the ratio has nothing to count.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.sql.shuffle.partitions": "1",
    }
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--py-files", str(archive)] if archive else []
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK", "RMQ"))}
    return command, clean | {
        "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": HOSTS[0], "PYTHONPATH": path,
        "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python),
    }  # fmt: skip


def executors() -> dict[str, str]:
    """Return the settings of a session whose executors run this checkout."""
    return {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK,
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # both, before the first task
    } | {
        f"spark.executorEnv.{name}": value
        for name, value in environment().items()
        if name != "SPARK_LOCAL_IP"
    }


class Cluster:
    """Master and workers, each a process group of its own that dies with the tests.

    What they say goes to files in `home`: no pipe of theirs can hold the tests up.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.started: list[subprocess.Popen[bytes]] = []
        try:
            master = self._start("master.Master", HOSTS[0])
            self.url = self._told(master, r"Starting Spark master at (spark://\S+)")
            workers = [self._start("worker.Worker", host, self.url) for host in HOSTS]
            for log in workers:
                self._told(log, r"(Successfully registered with master)")
        except BaseException:
            self.stop()
            raise

    def _start(self, what: str, host: str, *words: str) -> Path:
        log = self.home / f"{what}-{host}.log"
        size = ["--cores", "1", "--memory", "512m", "--work-dir", str(self.home / f"work-{host}")]
        given = {
            "SPARK_HOME": str(spark_home()), "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "SPARK_DAEMON_MEMORY": "160m", "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self.home / "local"),
            "PYTHONPATH": "",  # of executors: a job brings its own RMQ
        }  # fmt: skip
        with log.open("wb") as out:
            self.started.append(
                subprocess.Popen(
                    [
                        str(spark_home() / "bin" / "spark-class"),
                        f"org.apache.spark.deploy.{what}",
                        "--host", host, "--port", "0", "--webui-port", "0",
                        *(size if words else []), *words,
                    ],
                    cwd=self.home, env=os.environ | environment() | given, stdin=subprocess.DEVNULL,
                    stdout=out, stderr=out, start_new_session=True, preexec_fn=die_with_parent,
                )
            )  # fmt: skip
        return log

    def _told(self, log: Path, words: str) -> str:
        until = time.monotonic() + START_S
        while not (found := re.search(words, log.read_text())):
            ended = any(one.poll() is not None for one in self.started)
            assert not ended and time.monotonic() < until, log.read_text()[-3000:]  # noqa: PT018
            time.sleep(0.05)
        return found[1]

    def run(self, module: str, *words: str, for_s: float = 400) -> str:
        """Run a driver to its end; what it said, where it failed."""
        log = self.home / f"{module}.log"
        command = [sys.executable, "-m", module, self.url, *words]
        driver = self.start(command, log, os.environ | environment())
        code = driver.wait(for_s)
        return "" if code == 0 else f"exit code {code}: {log.read_text()[-4000:]}"

    def start(self, command: list[str], log: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start a driver."""
        with log.open("wb") as out:
            self.started.append(
                subprocess.Popen(
                    command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL,
                    stdout=out, stderr=out, start_new_session=True, preexec_fn=die_with_parent,
                )
            )  # fmt: skip
        return self.started[-1]

    def stop(self) -> None:
        """kill -9 of everything; executors belong to the groups of their workers."""
        for one in reversed(self.started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
