"""`rmq top`: topics and workers, on the whole screen, once a second."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

import rmq
from rmq.cli import output
from rmq.cli.app import Command, CommonOptions, common_options, redact
from rmq.cli.param_types import DURATION
from rmq.cli.tables import terminal_width
from rmq.cli.top_frame import Reading, Top, document
from rmq.cli.topic_list import read_topics
from rmq.client.client import DEFAULT_URL

SHARE = 10  # reading takes at most one tenth of the time, however many topics there are
LOOK_S = 0.25  # how soon a new size of the terminal is noticed
# The other screen, no cursor, no wrapping of lines; and back.
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
# A terminal that knows it shows the frame at once; others ignore it.
BEGIN, END = "\x1b[?2026h\x1b[H", "\x1b[J\x1b[?2026l"
ESCAPES = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down", b"\x1b": "escape",
    b"\r": "enter", b"\n": "enter", b"\x7f": "backspace", b"\x08": "backspace",
}  # fmt: skip


@click.command(cls=Command, examples=("rmq top", "rmq top --once", "rmq top --once -o json"))
@click.option(
    "--interval", type=DURATION, default="1s", show_default=True, help="Time between reads."
)
@click.option("--once", is_flag=True, help="Read twice, print one frame, and end.")
def top(interval: float, once: bool) -> None:
    """Show topics and workers on the whole screen until q is pressed.

    PRIO, DUE, RETRY: waiting, by family. LATER: not due yet. LATE: how long the oldest message
    that may be taken has waited. IN/S and OUT/S: accepted and settled from one read to the next.
    P50 and P99, on 100 columns or more: how late at most half, or 99 of 100, of the messages were
    taken in the last 15 s. Keys: q quit, s sort by the next column, / filter, arrows scroll,
    p pause.
    """
    if interval < 1:
        raise click.UsageError("--interval: give at least 1 second")
    common = common_options()
    if not once and (common.json or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise click.UsageError("it needs a terminal; give --once for one frame")
    where = redact(common.url_asked or DEFAULT_URL, common.url_asked)
    with common.client() as client:
        state = Top(where)
        state.update(_read(client))
        if once:
            time.sleep(interval)
            state.update(_read(client))
            _print(common, state)
        else:
            _show(client, state, interval)


def _read(client: rmq.Client) -> Reading:
    begun = time.monotonic()
    found = read_topics(client)
    topics = {
        # One with an error was deleted meanwhile, or is broken: rmq stats says how.
        topic.name: {} if topic.error else topic.total
        for topic in found
    }
    workers = client.admin.workers()
    at = time.monotonic()
    lateness = {topic.name: topic.lateness for topic in found}
    return Reading(at, topics, workers, at - begun, lateness)


def _print(common: CommonOptions, state: Top) -> None:
    if common.json:
        shown = document(state)
        output.document(shown, rows=shown["topics"])
        return
    for line in state.frame(min(terminal_width(), 160)):
        click.echo(line, color=True)


def _show(client: rmq.Client, state: Top, interval: float) -> None:
    assert state.now is not None
    next_at, drawn = state.now.at + interval, ((0, 0), "")
    with _screen() as fd:
        while not state.ended:
            if not state.paused and time.monotonic() >= next_at:
                begun = time.monotonic()
                try:
                    state.update(_read(client))
                except rmq.RMQError as error:
                    state.error = redact(" ".join(str(error).split()), client.url)
                took = time.monotonic() - begun
                next_at = time.monotonic() + max(interval, took * SHARE)
            drawn = _draw(state, drawn)
            wait = LOOK_S if state.paused else min(LOOK_S, max(0, next_at - time.monotonic()))
            if select.select([fd], [], [], wait)[0]:
                for key in keys(os.read(fd, 1024)):
                    state.key(key)


def keys(data: bytes) -> Iterator[str]:
    """Yield the keys in what a terminal sent."""
    while data:
        sequence = next((each for each in ESCAPES if data.startswith(each)), b"")
        if sequence == b"\x1b" and data[1:2] in (b"[", b"O"):  # a key that means nothing here
            data = data[3:]
            continue
        if sequence:
            yield ESCAPES[sequence]
            data = data[len(sequence) :]
        else:
            text = data.decode(errors="ignore")
            if not text:
                return
            yield text[0]
            data = text[1:].encode()


def _draw(state: Top, drawn: tuple[tuple[int, int], str]) -> tuple[tuple[int, int], str]:
    """Draw a frame in one write, if it differs from what is drawn."""
    size = _size()
    # Each line is cleared before it is written: after a full one that would clear its last cell.
    frame = "\r\n".join(f"\x1b[K{line}" for line in state.frame(*size))
    if (size, frame) != drawn:
        sys.stdout.write(f"{BEGIN}{frame}{END}")
        sys.stdout.flush()
    return size, frame


def _size() -> tuple[int, int]:
    try:
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        columns = lines = 0
    usual = shutil.get_terminal_size()
    return columns or usual.columns, lines or usual.lines


@contextmanager
def _screen() -> Iterator[int]:
    """Take the whole screen and each key as it is pressed; give both back."""
    import termios  # not on every platform
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        sys.stdout.write(ENTER)
        yield fd
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
