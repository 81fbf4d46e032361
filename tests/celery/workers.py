"""Workers of Celery as processes, and the app that they and their callers share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import kombu.pools
import redis

from tests.celery import shop
from tests.patience import wait_for


class Workers:
    """Starts workers of `tests.celery.shop` on one queue, and reads what their tasks have noted."""

    def __init__(self, url: str, name: str, broker: str = "") -> None:
        self.url, self.name, self.broker = url, name, broker or url
        self.raw = redis.Redis.from_url(url)
        self.app = shop.make(url, name, broker=self.broker)
        self._processes: list[subprocess.Popen[bytes]] = []

    def environ(self, lease: float = 30.0) -> dict[str, str]:
        """Return the environment of processes that have the app."""
        own = {"SHOP_URL": self.url, "SHOP_NAME": self.name, "SHOP_BROKER": self.broker}
        return {**os.environ, **own, "SHOP_LEASE": str(lease), "C_FORCE_ROOT": "1"}

    def start(self, *options: str, lease: float = 30.0) -> subprocess.Popen[bytes]:
        """Start a worker, and wait until it consumes."""
        number = len(self._processes)
        process = subprocess.Popen(
            [
                sys.executable, "-m", "celery", "-A", "tests.celery.shop", "worker",
                "-n", f"w{number}@{self.name}", "-l", "WARNING", *options,
            ],
            env=self.environ(lease), start_new_session=True,
        )  # fmt: skip
        self._processes.append(process)
        wait_for(lambda: self.raw.exists(f"{self.name}:ready:{process.pid}"), "no worker")
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a worker and its children with SIGKILL."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def notes(self) -> list[list[str]]:
        """What tasks have noted, each as words."""
        return [line.decode().split() for line in self.raw.lrange(f"{self.name}:notes", 0, -1)]

    def count(self, word: str, task: Any) -> int:
        """How often a task has noted a word."""
        return sum(note[:2] == [word, str(task)] for note in self.notes())

    def ended(self) -> int:
        """How many workers have ended."""
        return sum(process.poll() is not None for process in self._processes)

    def stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                self.kill(process)
        kombu.pools.reset()
        self.app.close()
        self.raw.close()
