"""The stream of `rmq send TOPIC -`: lines of stdin, sent in batches.

A whole batch is read and checked before any of it is sent, so a bad line stops the stream between
two batches, and the error can say from which line to continue.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import rmq
from rmq.cli import output
from rmq.cli.app import ERROR, PARTLY, UNREACHABLE, USAGE, Failed
from rmq.cli.send_input import BadMessage

BATCH = 1000
PIPE_WAIT_S = 0.2  # how long a batch waits for the next line of a slow pipe


def _lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """Yield lines without their ends, and None when the stream pauses."""
    try:
        number = stream.fileno()
        slow = not stat.S_ISREG(os.fstat(number).st_mode) and os.name == "posix"
    except (OSError, ValueError, AttributeError):
        number, slow = -1, False
    if not slow:
        for line in stream:
            yield line.rstrip(b"\r\n")
        return
    partial: list[bytes] = []  # of a line whose end has not come yet
    while True:
        if not select.select([number], [], [], PIPE_WAIT_S)[0]:
            yield None
            select.select([number], [], [])
        data = os.read(number, 1 << 16)
        if not data:
            break
        *complete, rest = data.split(b"\n")
        if complete:
            complete[0] = b"".join(partial) + complete[0]
            partial = []
        partial.append(rest)
        for line in complete:
            yield line.rstrip(b"\r")
    if last := b"".join(partial):
        yield last


@dataclass
class Stream:
    """A stream being sent: the batch that is being filled, and the results of earlier ones."""

    client: rmq.Client
    topic: rmq.Topic
    read: Callable[[bytes], rmq.Outgoing]
    how: dict[str, Any]
    tell: Callable[[rmq.SendResult], None] | None
    sent: int = 0
    last_sent_line: int = 0
    sending: bool = False  # the batch is being sent
    counts: dict[str, int] = field(
        default_factory=lambda: {"stored": 0, "merged": 0, "duplicate": 0}
    )
    lines: list[int] = field(default_factory=list)
    batch: list[rmq.Outgoing] = field(default_factory=list)

    def run(self, stream: BinaryIO, progressed: Callable[[int, int], None]) -> None:
        """Send all lines of the stream."""
        number = size = 0
        for line in _lines(stream):
            if line is None:
                self.flush()
                progressed(self.sent, size)
                continue
            number += 1
            size += len(line) + 1
            if not line.strip():
                continue
            try:
                self.batch.append(self.read(line))
            except BadMessage as error:
                raise self._bad(number, str(error), USAGE) from None
            self.lines.append(number)
            if len(self.batch) == BATCH:
                self.flush()
                progressed(self.sent, size)
        self.flush()
        progressed(self.sent, size)

    def flush(self) -> None:
        """Send the batch."""
        if not self.batch:
            return
        position, all_read = -1, False

        def each() -> Iterator[rmq.Outgoing]:
            nonlocal position, all_read
            for position, outgoing in enumerate(self.batch):  # noqa: B007 - says where reading stopped
                yield outgoing
            all_read = True

        self.sending = True
        try:
            results = self.topic.send_many(each(), **self.how)
        except (rmq.ConfigurationError, rmq.SendError) as error:
            # Messages are checked as they are read: reading stopped at the faulty one.
            if not all_read and position >= 0:
                code = ERROR if isinstance(error, rmq.SendError) else USAGE
                raise self._bad(self.lines[position], str(error), code) from error
            raise self._stopped(error) from error
        except rmq.StorageError as error:
            raise self._stopped(error) from error
        self._count(results)
        self.last_sent_line = self.lines[-1]
        self.batch, self.lines, self.sending = [], [], False

    def _count(self, results: Sequence[rmq.SendResult]) -> None:
        for result in results:
            self.counts[result.status] += 1
            self.sent += 1
            if self.tell:
                self.tell(result)

    def _so_far(self) -> str:
        if not self.sent:
            return "nothing was sent"
        return (
            f"{output.plural(self.sent, 'message')} before it "
            f"{'was' if self.sent == 1 else 'were'} sent (to line {self.last_sent_line})"
        )

    def interrupted(self) -> str:
        """Return the note for a user who pressed Ctrl-C."""
        text = f"stopped: {output.plural(self.sent, 'message')} sent"
        if self.sending:
            text += f" and, of lines {self.lines[0]} to {self.lines[-1]}, perhaps some more"
        next_line = self.last_sent_line + 1
        return f"{text}; continue from line {next_line}: tail -n +{next_line}"

    def _bad(self, line: int, why: str, code: int) -> Failed:
        hint = (
            f", none from line {self.last_sent_line + 1} on; fix it and continue from there: "
            f"tail -n +{self.last_sent_line + 1}"
            if self.sent
            else ""
        )
        return Failed(
            f"line {line}: {why}; {self._so_far()}{hint}",
            PARTLY if self.sent else code,
            "BadLine",
        )

    def _stopped(self, error: rmq.RMQError) -> Failed:
        """Return the error for a batch that failed while it was sent."""
        results = [result for result in getattr(error, "results", []) if result is not None]
        where = f"lines {self.lines[0]} to {self.lines[-1]}"
        so_far = self._so_far()
        if isinstance(error, rmq.OutcomeUnknown):
            batch_outcome = f"of {where} some or all may have been sent"
            code = UNREACHABLE
        elif isinstance(error, rmq.Unavailable):
            batch_outcome = f"{where} were not sent"
            code = UNREACHABLE
        else:
            batch_outcome = f"of {where}, {output.plural(len(results), 'message')} went through"
            self._count(results)
            code = PARTLY if self.sent else ERROR
        return Failed(f"{where}: {error}; {so_far}; {batch_outcome}", code, type(error).__name__)


@contextmanager
def progress_bar(stream: BinaryIO, wanted: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr if that is a terminal; yields a callback (messages, bytes)."""
    if not wanted or not sys.stderr.isatty():
        yield lambda sent, size: None
        return
    from rich.console import Console  # they take long to import, and pipes need none of them
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    total = None
    try:
        about = os.fstat(stream.fileno())
        total = about.st_size if stat.S_ISREG(about.st_mode) else None
    except (OSError, ValueError, AttributeError):
        pass
    columns = (
        TextColumn("sending"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[sent]}", markup=False),
        TimeElapsedColumn(),
    )
    started = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, sent="")

        def moved(sent: int, size: int) -> None:
            rate = sent / max(0.001, time.monotonic() - started)
            text = f"{output.plural(sent, 'message')}, {output.number(round(rate))}/s"
            bar.update(task, completed=size, sent=text)

        yield moved
