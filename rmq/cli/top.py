"""`rmq top`: topics, queries and workers on the whole screen, once a second; what a frame shows."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import click

import rmq
from rmq.client.client import DEFAULT_URL
from rmq.errors import AccessDenied
from rmq.features.queries import held as query_flow
from rmq.features.queries.held import HeldQuery, WatchedQuery
from rmq.features.topic_admin.cli.listing import read_topics
from rmq.features.workers.cli import running
from rmq.kernel.core import process, telemetry
from rmq.kernel.core.slo import Slo
from rmq.kernel.core.telemetry import Counts
from rmq.terminal import output
from rmq.terminal.app import Command, redact
from rmq.terminal.options import CommonOptions, common_options
from rmq.terminal.param_types import DURATION
from rmq.terminal.tables import cells, shorten, styled, terminal_width
from rmq.terminal.text import neutral, plural, span

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
    """Show topics, queries and workers on the whole screen until q is pressed.

    PRIO, DUE, RETRY: waiting, by family. LATER: not due yet. LATE: how long the oldest message
    that may be taken has waited. IN/S and OUT/S: accepted and settled from one read to the next.
    P50 and P99, on 100 columns or more: how late at most half, or 99 of 100, of the messages were
    taken in the last 15 s; red while that misses the topic's slo. Of queries (Spark): the messages
    that they HOLD, and what their drivers told in the last seconds: LAG, the age of the oldest
    message that nobody holds, and since they started ROWS, BYTES, REPLAYS of batches, and COMMANDS
    to Redis. Keys: q quit, s sort by the next column, / filter, arrows scroll, p pause.
    """
    if interval < 1:
        raise click.UsageError("--interval: give at least 1 second")
    common = common_options()
    if not once and (common.json or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise click.UsageError("it needs a terminal; give --once for one frame")
    if not once and not process.FORKS:
        raise click.UsageError("it reads keys as POSIX systems do; give --once for one frame here")
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
    try:
        readable = [topic for topic in found if not topic.error]
        queries = client._transport.run(query_flow.watch(readable, QUERIES_MOST))
    except AccessDenied:  # of a user with an older set of rules
        queries = {}
    at = time.monotonic()
    lateness = {topic.name: topic.lateness for topic in found}
    slos = {
        topic.name: objective
        for topic in found
        if not topic.error and (objective := topic.settings.objective)
    }
    return Reading(at, topics, workers, at - begun, lateness, slos, queries)


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
    import termios  # not on Windows
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


KEYS = "q quit  s sort  / filter  arrows scroll  p pause"
WORKERS_LEAST = 3  # lines for workers, where there are so many
QUERIES_LEAST = 3  # and for queries
QUERIES_MOST = 50  # that are read of a topic
CELL = 6  # of a column, with a space before its figure

# The head of each column, and the figure in it; IN/S and OUT/S are rates.
COLUMNS = {
    "PRIO": "priority", "DUE": "due", "RETRY": "retries", "LATER": "later", "FLIGHT": "in_flight",
    "DEAD": "dead", "HELD": "held", "LATE": "late_ms", "P50": "late_p50_ms", "P99": "late_p99_ms",
    "IN/S": "accepted", "OUT/S": "settled",
}  # fmt: skip
RATES = ("accepted", "settled")
PERCENTILES = {"late_p50_ms": 0.50, "late_p99_ms": 0.99}
LATENESS_S = 15.0  # percentiles are those of so long: consumers report every few seconds
WIDE = 100  # cells of a line that has the percentiles
DURATIONS = ("LATE", "P50", "P99")
SORTS = ("TOPIC", *COLUMNS)


class Reading(NamedTuple):
    """The counts and the workers that were read at one moment.

    Attributes:
        at: seconds, by the monotonic clock.
        topics: the counts of each topic; empty where they could not be read.
        workers: the worker processes.
        took_s: how long reading took.
        lateness: how many messages of each topic were taken how late, since it was created.
        slos: of the topics that have one.
        queries: by topic, its queries.
    """

    at: float
    topics: Mapping[str, Mapping[str, int]]
    workers: Sequence[rmq.WorkerStatus]
    took_s: float
    lateness: Mapping[str, Counts] = {}
    slos: Mapping[str, Slo] = {}
    queries: Mapping[str, Sequence[HeldQuery]] = {}


def rates(before: Reading | None, now: Reading) -> dict[str, dict[str, float]]:
    """Return the events a second of each topic between two readings."""
    found: dict[str, dict[str, float]] = {}
    for topic, counts in now.topics.items():
        earlier = before.topics.get(topic) if before else None
        if before and earlier and counts:
            seconds = max(0.001, now.at - before.at)
            # A topic that was deleted and made again counts from 0.
            found[topic] = {
                name: max(0.0, (counts[name] - earlier[name]) / seconds) for name in RATES
            }
    return found


def percentiles(first: Reading, now: Reading) -> dict[str, dict[str, float | None]]:
    """Return how late messages of each topic were taken between two readings, in ms."""
    found: dict[str, dict[str, float | None]] = {}
    for topic, counts in now.lateness.items():
        taken = telemetry.growth(counts, first.lateness.get(topic, ()))
        late_s = {name: telemetry.percentile_s(taken, share) for name, share in PERCENTILES.items()}
        found[topic] = {name: None if s is None else s * 1000 for name, s in late_s.items()}
    return found


def missed(first: Reading, now: Reading) -> set[str]:
    """Return the topics whose messages were taken later between two readings than their slo."""
    found = set()
    for topic, objective in now.slos.items():
        taken = telemetry.growth(now.lateness.get(topic, ()), first.lateness.get(topic, ()))
        if objective.is_missed(objective.lateness_s(taken, 0)):
            found.add(topic)
    return found


def short(value: float) -> str:
    """Return a number in at most 5 cells."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            scaled = value / (1e3 if unit == "k" else size)
            return f"{scaled:.1f}{unit}" if scaled < 100 else f"{scaled:.0f}{unit}"
    return f"{value:.1f}" if 0 < value < 10 and value != int(value) else f"{value:.0f}"


@dataclass
class Top:
    """The state of `rmq top`.

    Attributes:
        sort: the head of the column by which topics are sorted; by a figure the largest first.
        pattern: topics, queries and workers have this in their line.
        typing: whether keys go to the pattern.
        paused: whether nothing is read.
        offset: how many topics are above the first one shown.
        error: why the last read failed.
        recent: what was read within LATENESS_S.
    """

    where: str
    now: Reading | None = None
    before: Reading | None = None
    sort: str = "TOPIC"
    pattern: str = ""
    typing: bool = False
    paused: bool = False
    offset: int = 0
    error: str = ""
    ended: bool = field(default=False)
    recent: list[Reading] = field(default_factory=list)

    def update(self, reading: Reading) -> None:
        """Take what was read."""
        self.before, self.now, self.error = self.now, reading, ""
        self.recent.append(reading)
        while len(self.recent) > 2 and self.recent[1].at <= reading.at - LATENESS_S:
            del self.recent[0]

    def lateness(self) -> dict[str, dict[str, float | None]]:
        """Return how late messages of each topic were taken of late, in ms."""
        return percentiles(self.recent[0], self.recent[-1]) if self.recent else {}

    def key(self, key: str) -> None:
        """Do what a key says."""
        if self.typing:
            if key in ("enter", "escape"):
                self.typing = False
                self.pattern = "" if key == "escape" else self.pattern
            elif key == "backspace":
                self.pattern = self.pattern[:-1]
            elif len(key) == 1 and key.isprintable():
                self.pattern += key
            self.offset = 0
        elif key in ("q", "Q"):
            self.ended = True
        elif key == "s":
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        elif key == "/":
            self.typing, self.pattern = True, ""
        elif key == "p":
            self.paused = not self.paused
        elif key in ("up", "down"):
            self.offset = max(0, self.offset + (1 if key == "down" else -1))

    # --- what is shown ---

    def rows(self) -> list[tuple[str, dict[str, float | None]]]:
        """Return the topics that are shown, with the values of the columns."""
        if self.now is None:
            return []
        per_second, late = rates(self.before, self.now), self.lateness()
        found: list[tuple[str, dict[str, float | None]]] = []
        for topic, counts in self.now.topics.items():
            if self.pattern in topic:
                known = {**counts, **dict.fromkeys(RATES), **per_second.get(topic, {})}
                known |= late.get(topic, {})
                figures = {head: known.get(name) for head, name in COLUMNS.items()}
                found.append((topic, figures))
        if self.sort == "TOPIC":
            return sorted(found, key=lambda row: row[0])
        return sorted(found, key=lambda row: (-(row[1][self.sort] or 0), row[0]))

    def workers(self) -> list[rmq.WorkerStatus]:
        """Return the workers that are shown, those that run most first."""
        found = [
            worker
            for worker in (self.now.workers if self.now else ())
            if self.pattern in " ".join((worker.id, worker.host, *worker.topics))
        ]
        return sorted(found, key=lambda worker: (-running(worker), worker.id))

    def queries(self) -> list[WatchedQuery]:
        """Return the queries that are shown, those that hold most first."""
        return [
            query
            for query in query_flow.over_topics(self.now.queries if self.now else {})
            if self.pattern in " ".join((query.run, query.owner or "", *query.held))
        ]

    def frame(self, width: int, height: int | None = None) -> list[str]:
        """Return the lines of a frame.

        Args:
            width: cells of a line.
            height: lines; None: as many as it takes, without the line of keys.
        """
        topics, workers, queries = self.rows(), self.workers(), self.queries()
        room = len(topics) + len(workers) if height is None else max(0, height - 5)
        if queries and height is not None:
            room = max(0, room - 2)  # for a head and a line between
            queries = queries[: max(min(QUERIES_LEAST, room // 2), room // 4)]
            room -= len(queries)
        for_workers = min(len(workers), max(WORKERS_LEAST, room // 3, room - len(topics)))
        for_topics = max(0, room - for_workers)
        self.offset = min(self.offset, max(0, len(topics) - for_topics))
        lines = [self._title(width, len(topics), len(workers)), _head(width, self.sort)]
        late = missed(self.recent[0], self.recent[-1]) if self.recent else set[str]()
        lines += [
            _topic_line(topic, figures, width, topic in late)
            for topic, figures in topics[self.offset : self.offset + for_topics]
        ]
        if not topics:
            lines.append("no topics" + (f" with {neutral(self.pattern)!r}" * bool(self.pattern)))
        if queries:
            lines += ["", styled(_query_cells(QUERY_HEADS, "TOPICS", "DRIVER", width), "bold")]
            lines += [_query_line(query, width) for query in queries]
        lines += [
            "",
            styled(_worker_cells("WORKER", "HOST", "RUNS", "OLDEST", "HANDLES", width), "bold"),
        ]
        lines += [_worker_line(worker, width) for worker in workers[:for_workers]]
        if height is None:
            return [line.rstrip() for line in lines]
        lines = [*lines[: height - 1], *[""] * (height - 1 - len(lines))]
        return [*lines, self._foot(width, len(topics) - for_topics - self.offset)]

    def _title(self, width: int, topics: int, workers: int) -> str:
        state = f"{plural(topics, 'topic')}  {plural(workers, 'worker')}"
        if self.now is not None:
            state += f"  read in {span(self.now.took_s * 1000)}"
        if self.paused:
            state = f"PAUSED  {state}"
        text = f"rmq top  {neutral(self.where)}"
        room = width - cells(state) - 2
        return styled(f"{shorten(text, room):<{max(0, room)}}  {state}", "bold")

    def _foot(self, width: int, below: int) -> str:
        if self.typing:
            return shorten(f"/{neutral(self.pattern)}_  Enter keeps it, Esc clears it", width)
        if self.error:
            return styled(shorten(self.error, width), "red")
        more = f"  {below} below" if below > 0 else ""
        pattern = f"  filter {neutral(self.pattern)!r}" if self.pattern else ""
        return shorten(f"{KEYS}  by {self.sort}{pattern}{more}", width)


def _shown(width: int) -> list[str]:
    """Return the heads of the columns that a line has room for."""
    is_wide = width >= WIDE
    return [head for head, name in COLUMNS.items() if is_wide or name not in PERCENTILES]


def _cell(head: str) -> int:
    """Return the cells of a column; a space stands before the longest head, too."""
    return max(CELL, len(head) + 1)


def _name_width(width: int) -> int:
    return max(8, width - sum(map(_cell, _shown(width))))


def _head(width: int, sort: str) -> str:
    heads = "".join(f"{head:>{_cell(head)}}" for head in _shown(width))
    text = f"{'TOPIC':<{_name_width(width)}}{heads}"
    return styled(text, "bold")


def _topic_line(topic: str, figures: Mapping[str, float | None], width: int, is_late: bool) -> str:
    room = _name_width(width)
    name = shorten(neutral(topic), room - 1)
    line = name + " " * (room - cells(name))
    for head in _shown(width):
        value = figures[head]
        if value is None:
            text = "-"
        elif head in DURATIONS:
            text = span(value).split(" ")[0] if value else "-"
        else:
            text = short(value)
        cell = f"{text:>{_cell(head)}}"
        is_red = head in ("DEAD", "LATE") or (is_late and head in ("P50", "P99"))
        line += styled(cell, "red") if value and is_red else cell
    return line


QUERY_HEADS = ("QUERY", "HELD", "LAG", "ROWS", "BYTES", "REPLAYS", "COMMANDS")
# The figures of its driver that a line shows, in this order.
TOLD = ("rows", "bytes", "replays", "commands")


def _query_cells(figures: Sequence[str], topics: str, driver: str, width: int) -> str:
    run, held, lag, rows, size, replays, commands = figures
    head = f"{run:<8} {held:>6} {lag:>6} {rows:>6} {size:>6} {replays:>7} {commands:>8}  "
    room = max(8, width - len(head))
    named = shorten(topics, max(6, room - 2 - cells(driver)))
    rest = room - cells(named) - 2
    return head + named + (f"  {shorten(driver, rest)}" if rest >= 6 else "")


def _query_line(query: WatchedQuery, width: int) -> str:
    lag_ms = query.report.get("lag_ms")
    # Nobody corrects the lag of a driver that is gone.
    lag = "-" if lag_ms is None or query.owner is None else span(lag_ms).split(" ")[0]
    told = [short(query.report[name]) if name in query.report else "-" for name in TOLD]
    topics = neutral(", ".join(query.held))
    figures = [query.run[:8], short(query.messages), lag, *told]
    return _query_cells(figures, topics, neutral(query.owner or "no driver"), width)


def _worker_cells(id: str, host: str, runs: str, oldest: str, handles: str, width: int) -> str:
    head = f"{id:<9} {shorten(host, 18):<18} {runs:>7} {oldest:>7}  "
    return head + shorten(handles, max(8, width - len(head)))


def _worker_line(worker: rmq.WorkerStatus, width: int) -> str:
    most = sum(handler.concurrency for handler in worker.handlers)
    oldest = span(worker.running[0].seconds * 1000).split(" ")[0] if worker.running else "-"
    busy = [handler for handler in worker.handlers if handler.running]
    handles = ", ".join(
        f"{handler.topic} {handler.name}" + (f" x{handler.running}" if handler.running else "")
        for handler in busy or worker.handlers
    )
    return _worker_cells(
        worker.id,
        neutral(worker.host),
        f"{running(worker)}/{most}",
        oldest,
        neutral(handles),
        width,
    )


def document(top: Top) -> dict[str, Any]:
    """Return what a frame shows, for JSON."""
    assert top.now is not None
    per_second, late = rates(top.before, top.now), top.lateness()
    return {
        "topics": [
            {
                "topic": topic, **top.now.topics[topic],
                **(late.get(topic) or dict.fromkeys(PERCENTILES)),
                "accepted_per_s": per_second.get(topic, {}).get("accepted"),
                "settled_per_s": per_second.get(topic, {}).get("settled"),
            }
            for topic, _ in top.rows()
        ],
        "queries": [
            {"query": query.run, "held": query.messages, "topics": list(query.held),
             "owner": query.owner, "report": dict(query.report)}
            for query in top.queries()
        ],
        "workers": [
            {"id": worker.id, "host": worker.host, "running": running(worker),
             "topics": list(worker.topics)}
            for worker in top.workers()
        ],
    }  # fmt: skip
