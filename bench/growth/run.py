"""A run of the part `growth`: all points, then the backlog on a server of its own."""

from __future__ import annotations

import shutil
import tempfile

import psutil

from bench.growth.backlog import backlog
from bench.growth.points import measure_points
from bench.measurement import Measurement
from tests.servers import Server

MESSAGES = 1_000_000  # that wait at most
QUICK_MESSAGES, LEAST_MESSAGES = 20_000, 10_000
MEMORY_EACH = 500  # bytes of a waiting message, and of the copies that a rewrite makes of its pages
DISK_EACH = 700  # bytes of its commands in the AOF, before it is rewritten and after


def refusal(messages: int) -> str | None:
    """Return why so many messages cannot be measured on this machine, or None."""
    if messages < LEAST_MESSAGES:
        return f"{messages:,} messages; give at least {LEAST_MESSAGES:,}"
    folder = tempfile.gettempdir()
    needs = (
        ("memory", messages * MEMORY_EACH, psutil.virtual_memory().available, ""),
        ("disk", messages * DISK_EACH, shutil.disk_usage(folder).free, f" in {folder} (TMPDIR)"),
    )
    for name, need, free, where in needs:
        if free < need:
            text = f"{messages:,} messages need {need / 1e9:.1f} GB of {name}"
            return f"{text}, {free / 1e9:.1f} free{where}"
    return None


def growth(server: Server, rounds: int, quick: bool, messages: int = MESSAGES) -> list[Measurement]:
    """Measure a plain life at each point, then what a backlog does to calls, restart and AOF.

    Args:
        server: The server of the points; the backlog has its own, of the same binary.
        rounds: Rounds of each point; the backlog is measured once.
        quick: Measure few points and few messages.
        messages: Maximum number of messages that wait.
    """
    rows = measure_points(server, rounds, quick, messages)
    return rows + backlog(server.binary, QUICK_MESSAGES if quick else messages, quick)
