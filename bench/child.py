"""A child process that measures a checkout of RMQ and answers lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.servers import die_with_parent

ROOT = Path(__file__).parents[1]


class Child:
    """A Python process; its first input line says what to measure, its first answer has `rmq`.

    Args:
        checkout: Directory whose `rmq` the process must import.
        words: Arguments after the interpreter.
        asked: First line.
        packages: Directory of packages that replace installed packages, or None.
    """

    def __init__(
        self, checkout: Path, words: Sequence[str], asked: object, packages: Path | None = None
    ) -> None:
        path = [checkout.resolve(), *([packages.resolve()] if packages else [])]
        self._process = subprocess.Popen(
            [sys.executable, *words], cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": ":".join(map(str, path))},
            preexec_fn=die_with_parent,
        )  # fmt: skip
        self.opened = self.ask(asked)
        if Path(self.opened["rmq"]).resolve().parent != checkout.resolve():
            self.close()
            raise RuntimeError(f"{checkout}: the child imported {self.opened['rmq']}")

    def ask(self, question: object) -> dict[str, Any]:
        """Send a line and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a checkout's child ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the child."""
        self._process.communicate()
