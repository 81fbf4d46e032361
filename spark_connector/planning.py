"""The tasks of a batch: how many, and which messages each of them reads.

A task reads parts of several slots. Spark needs some 20 ms for a task, so a small batch has few.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from spark_connector.offset import Numbers


class Share(NamedTuple):
    """A part of one slot's part of a batch.

    Attributes:
        topic: its name.
        slot: its index.
        after: the number before its first message.
        upto: the number of its last message.
        held: the number of its messages.
    """

    topic: str
    slot: int
    after: int
    upto: int
    held: int


def shares(topic: str, after: Numbers, upto: Numbers, held: Numbers) -> list[Share]:
    """Return the parts of a topic's slots in a batch."""
    return [
        Share(topic, slot, after.get(slot, 0), upto[slot], count)
        for slot, count in sorted(held.items())
        if count
    ]


def tasks(parts: Sequence[Share], count: int) -> list[list[Share]]:
    """Divide a batch among so many tasks, if it has as many messages.

    A slot whose numbers have gaps stays in one part, because it is unknown where its messages are.
    """
    total = sum(part.held for part in parts)
    count = max(1, min(count, total))
    planned: list[list[Share]] = []
    task: list[Share] = []
    done = 0  # messages of the parts before
    for part in parts:
        while part.held:
            left = total * (len(planned) + 1) // count - done  # until this task is full
            taken = min(part.held, left)
            if part.upto - part.after != part.held:
                taken = part.held
            if taken > 0:
                cut = part.upto if taken == part.held else part.after + taken
                task.append(part._replace(upto=cut, held=taken))
                part = part._replace(after=cut, held=part.held - taken)
                done += taken
            if done >= total * (len(planned) + 1) // count:
                planned.append(task)
                task = []
    return [task for task in planned if task]


def wanted(messages: int, tasks: int | None, rows: int | None, cores: int) -> int:
    """Return how many tasks a batch shall have.

    Args:
        messages: of the batch.
        tasks: the option minPartitions.
        rows: the option rowsPerTask: no task is to have fewer.
        cores: of the cluster.
    """
    most = tasks or cores
    if tasks and rows is None:
        return most
    return max(1, min(most, messages // (rows or ROWS)))


PROC = Path("/proc")
ROWS = 10_000  # of a task at least, where more tasks are not asked for
_SETTING = re.compile(r"^(spark\.[\w.]+)=(.*)$")


def cores_of_cluster(jvm: int | None = None) -> int:
    """Return how many tasks the cluster runs at once, by the settings of Spark's driver.

    Spark does not tell a data source; the command line of its JVM, the parent of this process, has
    what the user has set. The cores of this machine where it does not say.

    Args:
        jvm: its process id; None: the parent.
    """
    here = os.cpu_count() or 1
    try:
        words = (PROC / str(jvm or os.getppid()) / "cmdline").read_text().split("\0")
    except (OSError, UnicodeError):
        return here
    settings = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if found := _SETTING.match(word.removeprefix("-D")):
            settings[found[1]] = found[2]
        elif word == "--master":
            settings.setdefault("spark.master", following)
    local = re.fullmatch(
        r"local(?:-cluster)?\[(\d+|\*)(?:,(\d+))?.*", settings.get("spark.master", "")
    )
    per_executor = _number(settings.get("spark.executor.cores"))
    executors = _number(settings.get("spark.executor.instances"))
    known = (
        _number(settings.get("spark.default.parallelism")),
        local and (_number(local[1]) if local[1] != "*" else here),
        1 if settings.get("spark.master") == "local" else None,
        _number(settings.get("spark.cores.max")),
        per_executor and executors and per_executor * executors,
    )
    return next((number for number in known if number), here)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None
