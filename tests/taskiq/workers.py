"""Workers of taskiq as processes."""

from __future__ import annotations

import subprocess
from typing import Any

from tests.adapters import Workers as Processes


class Workers(Processes):
    """Starts `taskiq worker` for `tests.taskiq.shop`, each with one child that runs tasks."""

    def start(
        self, *options: str, shop: str = "tests.taskiq.shop:worker"
    ) -> subprocess.Popen[bytes]:
        """Start a worker, and wait until it has begun to listen."""
        ready = len(self._ready())
        words = ["taskiq", "worker", shop, "--workers", "1", "--log-level", "WARNING", *options]
        return self.launch(words, self.environ(), lambda _: len(self._ready()) > ready)

    def _ready(self) -> list[Any]:
        return list(self.raw.scan_iter(f"{self.name}:ready:*"))
