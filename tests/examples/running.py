"""Programs of examples/, run in a directory on an embedded server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import any_binary
from tests.forkserver import Forked

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 280


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "RMQ_URL"}
    return kept | {"RMQ_REDIS_SERVER": any_binary()}


def run(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python, as a user does."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip


def run_forked(
    cwd: Path, *words: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the same in a process that starts in a moment."""
    process = Forked(
        "tests.examples.script", *words, cwd=cwd, env=env or environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, errors = process.communicate(timeout=TIMEOUT_S)
    return subprocess.CompletedProcess(words, process.wait(), out, errors)
