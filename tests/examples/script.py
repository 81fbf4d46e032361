"""Run a program of examples/, or `-c CODE`, in a fork that need not import what it uses."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import rich.progress
import sqlalchemy

import rmq.worker

# Imported for forks: their server imports this module.
__all__ = ["main", "rich", "rmq", "sqlalchemy"]


def main(*words: str) -> None:
    if words[0] == "-c":
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        return
    sys.argv[:] = words
    sys.path[0] = str(Path(words[0]).parent)
    runpy.run_path(words[0], run_name="__main__")
