"""Detect forks: a child must not use connections and replay sessions of its parent."""

from __future__ import annotations

import os
from collections.abc import Callable

generation = 0  # how many forks separate this process from the process that imported RMQ


def call_in_child(function: Callable[[], None]) -> None:
    """Call a function in each child that is forked from now on; nothing forks on Windows."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def _forked() -> None:
    global generation
    generation += 1


call_in_child(_forked)
