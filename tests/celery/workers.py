"""Workers of Celery as processes, and the app that they and their callers share."""

from __future__ import annotations

import subprocess

import kombu.pools

from tests.adapters import Workers as Processes
from tests.celery import shop


class Workers(Processes):
    """Starts workers of `tests.celery.shop` on one queue, and reads what their tasks have noted."""

    def __init__(self, url: str, name: str, broker: str = "") -> None:
        super().__init__(url, name, broker)
        self.app = shop.make(url, name, broker=self.broker)

    def environ(self, lease: float = 30.0) -> dict[str, str]:
        """Return the environment of processes that have the app."""
        return {**super().environ(), "SHOP_LEASE": str(lease), "C_FORCE_ROOT": "1"}

    def start(self, *options: str, lease: float = 30.0) -> subprocess.Popen[bytes]:
        """Start a worker, and wait until it consumes."""
        words = ["celery", "-A", "tests.celery.shop", "worker", "-l", "WARNING", *options]
        words += ["-n", f"w{len(self._processes)}@{self.name}"]
        return self.launch(
            words, self.environ(lease),
            lambda process: self.raw.exists(f"{self.name}:ready:{process.pid}"),
        )  # fmt: skip

    def ended(self) -> int:
        """How many workers have ended."""
        return sum(process.poll() is not None for process in self._processes)

    def stop(self) -> None:
        super().stop()
        kombu.pools.reset()
        self.app.close()
