"""Shared by the tests of Celery and of taskiq: workers as processes, a Cluster and sentinels."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.clusters import Cluster
from tests.conftest import any_binary
from tests.patience import wait_for
from tests.sentinels import Sentinels


class Workers:
    """Workers as processes, and the notes of their tasks.

    Args:
        url: Redis of the notes.
        name: Name of the test, with which the keys of the notes begin.
        broker: Redis of the tasks. Default: that of the notes.
    """

    def __init__(self, url: str, name: str, broker: str = "") -> None:
        self.url, self.name, self.broker = url, name, broker or url
        self.raw = redis.Redis.from_url(url)
        self._processes: list[subprocess.Popen[bytes]] = []

    def environ(self) -> dict[str, str]:
        """Return the environment of a worker."""
        own = {"SHOP_URL": self.url, "SHOP_NAME": self.name, "SHOP_BROKER": self.broker}
        return {**os.environ, **own}

    def launch(
        self,
        words: list[str],
        environ: dict[str, str],
        is_ready: Callable[[subprocess.Popen[bytes]], object],
    ) -> subprocess.Popen[bytes]:
        """Start a module of Python with its words, and wait until it is ready."""
        process = subprocess.Popen(
            [sys.executable, "-m", *words], env=environ, start_new_session=True
        )
        self._processes.append(process)
        wait_for(lambda: is_ready(process), "no worker")
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a worker and its children with SIGKILL."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def notes(self) -> list[list[str]]:
        """Return the notes of tasks, each as words."""
        return [line.decode().split() for line in self.raw.lrange(f"{self.name}:notes", 0, -1)]

    def count(self, word: str, task: Any) -> int:
        """Return how often a task has noted a word."""
        return sum(note[:2] == [word, str(task)] for note in self.notes())

    def stop(self) -> None:
        """Kill the workers that still run."""
        for process in self._processes:
            if process.poll() is None:
                self.kill(process)
        self.raw.close()


@pytest.fixture(scope="module", params=["cluster", "sentinel"])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a Cluster, then of sentinels."""
    if request.param == "cluster":
        cluster = Cluster(any_binary(), is_calm=True)
        yield cluster.url
        cluster.stop()
    else:
        sentinels = Sentinels(any_binary())
        yield sentinels.url()
        sentinels.stop()
