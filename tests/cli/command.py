"""`rmq` in a fork: what it and its commands import is there already."""

from __future__ import annotations

import rmq.cli
import rmq.outbox


def main(*words: str) -> None:
    rmq.cli.main()  # it reads sys.argv
