"""A process that archives a history and kills itself before a call of the file system.

`python -m tests.faults.archiver <url> <topic> <folder> <now_us> <nth> <broken>`: before the nth
call, counted from 0; -1: it lives. `broken` is a variant that a test must find: `names` gives each
file a name of its own, `early` writes the manifest before the file, and '' breaks nothing.
"""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any

import rmq
from rmq.features.history import archive as archiving
from rmq.kernel.topic import clock

EVERY_MS = 3_600_000


class Files:
    """A file system that kills the process before one of its calls."""

    def __init__(self, files: Any, nth: int) -> None:
        self._files, self._nth, self._calls = files, nth, itertools.count()

    def die(self) -> None:
        if next(self._calls) == self._nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            self.die()
            return getattr(self._files, name)(*args, **named)

        return call


def main(url: str, topic: str, folder: str, now_us: str, nth: str, broken: str) -> None:
    clock.set_clock(int(now_us))
    archiving.PAGE, archiving.ROWS = 10, 20
    init, table = archiving._Folder.__init__, archiving._Window._table
    write, path_of = archiving._Window.write, archiving._Folder.path_of
    dying: list[Files] = []

    def open_folder(self: Any, *args: Any) -> None:
        init(self, *args)
        self._files = Files(self._files, int(nth))
        dying.append(self._files)

    def in_the_file(self: Any, *args: Any) -> Any:
        dying[-1].die()
        return table(self, *args)

    def early(self: Any, folder: Any, path: str) -> int:
        folder.write_manifest(archiving._Manifest(EVERY_MS, self._end_ms, self._after))
        return write(self, folder, path)

    archiving._Folder.__init__ = open_folder  # type: ignore[method-assign]
    archiving._Window._table = in_the_file  # type: ignore[method-assign]
    if broken == "early":
        archiving._Window.write = early  # type: ignore[method-assign]
    if broken == "names":
        archiving._Folder.path_of = (  # type: ignore[method-assign]
            lambda self, at: path_of(self, at).replace(".parquet", f"{os.getpid()}.parquet")
        )
    with rmq.Client(url) as client:
        archiving.archive(
            client.topic(topic).history, topic, folder, int(now_us) // 1000, every_ms=EVERY_MS,
            skip_lost=False,
        )  # fmt: skip
