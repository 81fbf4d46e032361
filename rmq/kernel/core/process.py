"""Run functions in forked children.

A child must not use the connections and replay sessions of its parent.
"""

from __future__ import annotations

import os
from collections.abc import Callable

FORKS = hasattr(os, "fork")  # POSIX only; Windows does not inherit descriptors either
generation = 0  # number of forks between this process and the process that imported RMQ


def call_in_child(function: Callable[[], None]) -> None:
    """Register a function that RMQ calls in every child process forked later."""
    if FORKS:
        os.register_at_fork(after_in_child=function)


def _forked() -> None:
    global generation
    generation += 1


call_in_child(_forked)
