"""Detect forks: a child must not use connections and replay sessions of its parent."""

from __future__ import annotations

import os

_generation = 0


def _forked() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_forked)


def generation() -> int:
    """Return the number of forks between this process and the one that imported RMQ."""
    return _generation
