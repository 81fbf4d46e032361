"""A process of a scene, which kills or stops itself where its plan says so."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.forkserver import Forked
from tests.patience import wait_for

PATIENCE_S = 60.0  # for what takes a second when nobody else is on this machine


class Process:
    """The `main` of a module with its task, whose stderr goes to a file; it dies with the tests.

    `plan` tells what it is to do to itself, and where.
    """

    def __init__(self, module: str, task: dict[str, Any], errors: Path, plan: list[str]) -> None:
        self.plan = plan
        self._errors = errors
        with errors.open("wb") as file:
            self.process = Forked(module, json.dumps(task), stderr=file)
        self.pid = self.process.pid

    def is_gone(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    def dies(self) -> None:
        """Wait until it has killed itself."""
        wait_for(self.is_gone, lambda: f"{self.plan}: {self.stderr_text()}", PATIENCE_S)
        assert self.process.returncode == -signal.SIGKILL, self.stderr_text()

    def ends(self) -> None:
        """SIGTERM: what is at work comes to its end."""
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == 0, self.stderr_text()

    def close(self) -> None:
        """End it, whatever it does."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait()

    def stderr_text(self) -> str:
        """Return its stderr."""
        return self._errors.read_text()
