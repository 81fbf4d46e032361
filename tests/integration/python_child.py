"""A process of Python code, as `python -c`: a fork of the fork server, which has these modules."""

from __future__ import annotations

import sys

import redis  # noqa: F401 - imported once, for all forks

import rmq
import rmq.kernel.transport.embedded.embedded  # noqa: F401


def main(code: str, *words: str) -> None:
    sys.argv = ["-c", *words]
    exec(code, {"__name__": "__main__"})
