"""A run of the part `growth`: all points, and the backlog on a separate server."""

from __future__ import annotations

import shutil
import tempfile

import psutil

from bench.growth.backlog import backlog
from bench.growth.points import measure_points
from bench.measurement import Measurement
from tests.servers import Server

MESSAGES = 1_000_000  # largest number of waiting messages
QUICK_MESSAGES, LEAST_MESSAGES = 20_000, 10_000
MEMORY_EACH = 500  # bytes of a waiting message, including pages copied during a rewrite
DISK_EACH = 700  # bytes of its commands in the AOF, before a rewrite and after


def refusal(messages: int) -> str | None:
    """Return why this machine cannot measure that many messages, or None."""
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
    """Measure a plain life at each point, and how a backlog affects calls, restart and AOF.

    Args:
        server: Server of the points; the backlog has its own server of the same binary.
        rounds: Rounds of each point; the backlog is measured once.
        quick: True for few points and few messages.
        messages: Largest number of waiting messages.
    """
    rows = measure_points(server, rounds, quick, messages)
    return rows + backlog(server.binary, QUICK_MESSAGES if quick else messages, quick)
