"""`rmq worker` as a process, for tests: its files, its output, its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from tests.forkserver import Forked
from tests.patience import wait_for
from tests.servers import die_with_parent

PATIENCE_S = 60.0  # on a machine that is busy with other things
COMMAND = [sys.executable, "-m", "rmq"]

SHOP = """
import os, time
import rmq

client = rmq.Client({url!r}, retry_for=0.3, timeout=2)
orders = client.topic({topic!r}, lease=1, retry="immediate")

@orders.handler(concurrency=4)
def handle(body: dict, d: rmq.Delivery) -> None:
    print(f"begin {{body}} {{d.attempt}} {{os.getpid()}}")  # in one write: threads share stdout
    if body.get("die") and d.attempt == 1:
        os._exit(1)
    while not os.path.exists(body.get("until", "/")):
        time.sleep(0.01)
    time.sleep(body.get("sleep", 0))
    print(f"end {{body}}")
"""


class Program:
    """`rmq worker` with its output in two files: a process that outlives it holds no pipe.

    A fork that has RMQ's modules; `from_start` is for what an interpreter does when it starts.
    """

    def __init__(
        self, home: Path, *words: object, env: dict[str, str] | None = None,
        from_start: bool = False,
    ) -> None:  # fmt: skip
        self.home = home
        self.paths = home / "out.txt", home / "err.txt"
        clean = {k: v for k, v in os.environ.items() if k not in ("RMQ_URL", "RMQ_PREFIX")}
        clean |= {"PYTHONUTF8": "1", "COLUMNS": "120"} | (env or {})
        told = ["worker", *map(str, words)]
        self.process: subprocess.Popen[bytes] | Forked
        with self.paths[0].open("ab") as out, self.paths[1].open("ab") as err:
            if from_start:
                self.process = subprocess.Popen(
                    [*COMMAND, *told], cwd=home, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                    env=clean, preexec_fn=die_with_parent,
                )  # fmt: skip
            else:
                self.process = Forked(
                    "tests.cli.command", *told, cwd=home, stdout=out, stderr=err, env=clean
                )

    @property
    def out(self) -> str:
        return self.paths[0].read_text()

    @property
    def err(self) -> str:
        return self.paths[1].read_text()

    def wait_for(self, text: str, count: int = 1) -> None:
        wait_for(lambda: (self.out + self.err).count(text) >= count, lambda: self.out + self.err)

    def ready(self) -> Program:
        self.wait_for("shop: at work")
        return self

    def ask(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = PATIENCE_S) -> int:
        return self.process.wait(seconds)

    def children(self) -> list[psutil.Process]:
        """The worker processes of a supervisor."""
        return [
            one
            for one in psutil.Process(self.process.pid).children()
            if "worker" in one.cmdline() and "--control-fd" in one.cmdline()
        ]


def write(home: Path, text: str, file: str = "shop.py") -> None:
    (home / file).write_text(text)
