"""Plan the tasks of a batch, and the messages that each task reads.

A task may read messages of several slots (parts of topics). Spark needs about 20 ms for a task, so
a small batch has few tasks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from spark_connector.offset import Numbers


class Share(NamedTuple):
    """A part of a batch, with messages from one slot (part of a topic).

    Attributes:
        topic: Name of the topic.
        slot: Index of the slot.
        after: Sequence number before the part's first message.
        upto: Sequence number of the part's last message.
        held: Number of messages in the part.
    """

    topic: str
    slot: int
    after: int
    upto: int
    held: int


def shares(topic: str, after: Numbers, upto: Numbers, held: Numbers) -> list[Share]:
    """Divide the messages of a topic in a batch. Each slot (part of the topic) gives one part."""
    return [
        Share(topic, slot, after.get(slot, 0), upto[slot], count)
        for slot, count in sorted(held.items())
        if count
    ]


def tasks(parts: Sequence[Share], count: int) -> list[list[Share]]:
    """Divide a batch among at most `count` tasks. A small batch gets fewer tasks.

    If sequence numbers of a slot are missing, one task reads the whole slot, because the positions
    of the messages are unknown.
    """
    total = sum(part.held for part in parts)
    count = max(1, min(count, total))
    planned: list[list[Share]] = []
    task: list[Share] = []
    done = 0  # messages in the parts that are already planned
    for part in parts:
        while part.held:
            left = total * (len(planned) + 1) // count - done  # messages that this task still needs
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
    """Return how many tasks a batch gets.

    Args:
        messages: Number of messages in the batch.
        tasks: Value of the option minPartitions.
        rows: Value of the option rowsPerTask, the minimum number of messages per task.
        cores: Number of tasks that the cluster runs at the same time.
    """
    most = tasks or cores
    if tasks and rows is None:
        return most
    return max(1, min(most, messages // (rows or ROWS)))


PROC = Path("/proc")
ROWS = 10_000  # minimum number of messages per task, unless minPartitions requires more tasks
_SETTING = re.compile(r"^(spark\.[\w.]+)=(.*)$")


def cores_of_cluster(jvm: int | None = None) -> int:
    """Return how many tasks the cluster runs at the same time.

    Spark does not pass its settings to a data source. So the function reads the settings from the
    command line of the JVM, which is the parent of this process. If the command line has no such
    settings, the result is the number of cores of this machine.

    Args:
        jvm: Process id of the JVM. Default: the parent of this process.
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
