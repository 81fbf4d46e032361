"""Tests that start a PostgreSQL and are killed: says its process id and its segment first."""

from __future__ import annotations

import os
import signal

from tests.databases import Postgres


def main() -> None:
    server = Postgres()
    assert server.process is not None
    print(server.process.pid, server.segment(), server.dir, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
