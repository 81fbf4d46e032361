"""Workers of taskiq as processes, and what their tasks have noted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import redis

from tests.patience import wait_for


class Workers:
    """Starts `taskiq worker` for `tests.taskiq.shop`, each with one child that runs tasks."""

    def __init__(self, url: str, name: str, broker: str = "") -> None:
        self.url, self.name, self.broker = url, name, broker or url
        self.raw = redis.Redis.from_url(url)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(
        self, *options: str, shop: str = "tests.taskiq.shop:worker"
    ) -> subprocess.Popen[bytes]:
        """Start a worker, and wait until it has begun to listen."""
        ready = len(self._ready())
        environ = {
            **os.environ, "SHOP_URL": self.url, "SHOP_NAME": self.name,
            "SHOP_BROKER": self.broker,
        }  # fmt: skip
        words = ["-m", "taskiq", "worker", shop, "--workers", "1", "--log-level", "WARNING"]
        process = subprocess.Popen(
            [sys.executable, *words, *options], env=environ, start_new_session=True
        )
        self._processes.append(process)
        wait_for(lambda: len(self._ready()) > ready, "no worker")
        return process

    def _ready(self) -> list[Any]:
        return list(self.raw.scan_iter(f"{self.name}:ready:*"))

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a worker and its child with SIGKILL."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def notes(self) -> list[list[str]]:
        """What tasks have noted, each as words."""
        return [line.decode().split() for line in self.raw.lrange(f"{self.name}:notes", 0, -1)]

    def count(self, word: str, number: int) -> int:
        """How often a task has noted a word."""
        return sum(note[:2] == [word, str(number)] for note in self.notes())

    def stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                self.kill(process)
        self.raw.close()
