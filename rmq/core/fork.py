"""Detect forks: a child must not use connections and replay sessions of its parent."""

from __future__ import annotations

import os

generation = 0  # how many forks separate this process from the process that imported RMQ


def _forked() -> None:
    global generation
    generation += 1


os.register_at_fork(after_in_child=_forked)
