"""Replay a real day of flights in half a minute, with every kind of message that RMQ has.

842 flights left New York on 1 January 2013. Each is a fixed-time message, due at its scheduled
departure. A departure asks for a refresh of its airport's board, and range-merge turns a burst of
such requests into one refresh. Flights that left more than an hour late are also priority messages,
the latest first. Some departures fail once or twice and are retried; one fails every time and
becomes a dead letter.

    python examples/flights.py                     on a private redis-server, in .rmq/flights
    python examples/flights.py --url redis://...   on yours (or set RMQ_URL)

The program records outside of Redis which messages were sent and settled, and when each flight was
due. At the end it compares: the exit code is 1 if a message was lost or was handled before it was
due. A busy machine makes departures late; then the program says how late, and how busy it was.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import fcntl
import json
import math
import os
import shutil
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import rmq

DATA = Path(__file__).with_name("flights-2013-01-01.csv")
HOME = Path(".rmq", "flights")
EST = timezone(timedelta(hours=-5), "EST")
LEASE_S = 5.0
LATE_MS = 250.0  # a shorter lateness is not explained
TELL_S = 3.0  # time between two lines of progress, if stdout is not a terminal
REFRESH_S = 0.5  # requests for one board within this time become one refresh
VERY_LATE_MIN = 60
FAIL_SHARE = 0.03
PATIENCE_S = 30.0  # after the last delivery; unsettled messages then count as lost
WAITING = ("retries", "priority", "due", "later", "in_flight")  # of admin.stats


class Flight(NamedTuple):
    """A row of the day; `minutes_late` is 0 for a flight that left early or never left."""

    name: str
    airport: str
    scheduled: datetime
    minutes_late: int


class NotBoarded(Exception):
    """A departure that fails on purpose."""


def read_day(path: Path = DATA) -> list[Flight]:
    with path.open(newline="") as file:
        return [
            Flight(
                f"{row['carrier']}{row['flight']} {row['origin']}-{row['dest']}",
                row["origin"],
                datetime.fromisoformat(row["sched_dep_utc"]),
                max(0, int(row["dep_delay_min"] or 0)),
            )
            for row in csv.DictReader(file)
        ]


def failures_of(name: str) -> int:
    """Return how often this flight's departure fails before it succeeds; the same in every run."""
    crc = zlib.crc32(name.encode())
    return 1 + crc % 2 if crc / 2**32 < FAIL_SHARE else 0


def skew(client: rmq.Client) -> tuple[float, float]:
    """Return how far the server's clock is ahead of ours, and the error of that, both in seconds.

    RMQ uses the server's clock. A server on this machine has our clock.
    """
    if client.url.startswith(("embedded:", "unix:")):
        return 0.0, 0.0
    tries = []
    for _ in range(5):
        asked = time.time()
        server = float(client.server_info("server")["server_time_usec"]) / 1e6
        answered = time.time()
        tries.append((answered - asked, server - (asked + answered) / 2))
    round_trip, ahead = min(tries)
    return (ahead if abs(ahead) > round_trip / 2 else 0.0), round_trip / 2


class Machine:
    """Measures repeatedly how many programs want a core of this machine."""

    def __init__(self) -> None:
        has_affinity = hasattr(os, "sched_getaffinity")
        self.cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
        self._looks: list[float] = []

    def look(self) -> None:
        """Count once. Linux shows the current number, other systems the last minute's average."""
        try:
            runnable = Path("/proc/loadavg").read_text().split()[3]
            self._looks.append(float(runnable.partition("/")[0]))
        except (OSError, IndexError, ValueError):
            self._looks.append(os.getloadavg()[0])

    def load(self) -> float:
        """Return the average number of programs."""
        return sum(self._looks) / len(self._looks) if self._looks else 0.0


class Books:
    """Our own record of the run, kept without Redis so that it can check Redis."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent: dict[bytes, str] = {}  # message id -> topic
        self.due_ms: dict[bytes, int] = {}  # of a departure, epoch ms
        self.settled: Counter[bytes] = Counter()
        self.delivered = self.retried = self.merged = 0
        self.departed: dict[bytes, float] = {}  # message id -> how late its first handler began, ms

    def add_sent(self, topic: rmq.Topic, result: rmq.SendResult) -> None:
        """Record the message with the body: a new message, or the message that it merged into."""
        with self._lock:
            if result.status == "merged":
                self.merged += 1
            self.sent[result.message_id] = topic.name

    def add_delivery(self, delivery: rmq.Delivery) -> None:
        """Record that a message was delivered."""
        with self._lock:
            self.delivered += 1
            self.retried += delivery.attempt > 1

    def add_settled(self, delivery: rmq.Delivery) -> None:
        """Record that a message was handled completely."""
        with self._lock:
            self.settled[delivery.id] += 1

    def add_departure(self, id: bytes, now_ms: float) -> None:
        """Record the start of a departure's handler; only the first start counts."""
        with self._lock:
            self.departed.setdefault(id, now_ms - self.due_ms[id])

    def lost(self, dead: set[bytes]) -> list[bytes]:
        """Return the messages that are neither settled nor dead letters."""
        return [id for id in self.sent if not self.settled[id] and id not in dead]

    def duplicates(self) -> int:
        """Return how often a message was handled completely more than once."""
        return sum(self.settled[id] - 1 for id in self.sent if self.settled[id] > 1)


class Day:
    """The day on three topics of one client."""

    def __init__(self, client: rmq.Client, flights: list[Flight], seconds: float) -> None:
        self.client, self.flights, self.seconds = client, flights, seconds
        self.books = Books()
        self.doomed = max(flights, key=lambda flight: flight.minutes_late).name
        retry = rmq.Exponential(base=0.05, cap=0.4)
        self.departures = client.topic("flights.departures", slots=4, retry=retry, max_retries=5)
        self.alerts = client.topic("flights.alerts")
        self.boards = client.topic("flights.boards", slots=2)
        self.topics = (self.departures, self.alerts, self.boards)
        self.stop = threading.Event()
        self.skew_s, self.skew_error_s = skew(client)
        self.machine = Machine()

    def now(self) -> float:
        """Return the server's time, epoch s."""
        return time.time() + self.skew_s

    def clear(self) -> None:
        """Remove the dead letters of an earlier run, and all its messages if it was killed."""
        for topic in self.topics:
            topic.open()
            while True:
                self.client.admin.purge(topic.name, "store")
                self.client.admin.purge(topic.name, "dead", keep=0)
                if not self.client.admin.stats(topic.name)["in_flight"]:
                    break
                time.sleep(0.2)  # until the leases of a killed run have expired, at most LEASE_S
                self.client.admin.rollback(topic.name)

    def send(self) -> None:
        """Send every flight, due at its scheduled time on the shortened clock."""
        first = min(flight.scheduled for flight in self.flights)
        span = (max(flight.scheduled for flight in self.flights) - first) / self.seconds
        begin = self.now() + 1.0
        departures, alerts = [], []
        for flight in self.flights:
            at = begin + (flight.scheduled - first) / span
            body = {"flight": flight.name, "airport": flight.airport, "late": flight.minutes_late}
            departures.append(
                rmq.Outgoing(body, at=math.ceil(at * 1000), slot_basis=flight.airport)
            )
            if flight.minutes_late > VERY_LATE_MIN:
                alerts.append(rmq.Outgoing(body, priority=17 + flight.minutes_late))
        for topic, messages in ((self.departures, departures), (self.alerts, alerts)):
            for outgoing, result in zip(messages, topic.send_many(messages), strict=True):
                self.books.add_sent(topic, result)
                if isinstance(outgoing.at, int):
                    self.books.due_ms[result.message_id] = outgoing.at
        self.first, self.span, self.begin = first, span, begin

    def depart(self, delivery: rmq.Delivery) -> None:
        """Handle a departure: it fails, or asks for a refresh of the airport's board."""
        self.books.add_departure(delivery.id, self.now() * 1000)
        flight = delivery.body
        if flight["flight"] == self.doomed or delivery.attempt <= failures_of(flight["flight"]):
            raise NotBoarded(f"{flight['flight']} has not boarded (attempt {delivery.attempt})")
        refresh = self.boards.send(
            {"airport": flight["airport"], "newest": flight["flight"]},
            merge_key=flight["airport"],
            time_range=REFRESH_S,
            merge="last",
        )
        self.books.add_sent(self.boards, refresh)

    def announce(self, delivery: rmq.Delivery) -> None:
        """Handle an alert or a refresh; the example has no screen, so nothing is done."""

    def work(self, topic: rmq.Topic, handle: Callable[[rmq.Delivery], None]) -> None:
        """Run a consumer in its own thread."""
        try:
            with topic.consumer(lease=LEASE_S) as consumer:
                while not self.stop.is_set():
                    for delivery in consumer.receive(max_messages=4, wait=0.2):
                        self.books.add_delivery(delivery)
                        # If this machine pauses, a lease may be lost; the message comes again.
                        with contextlib.suppress(NotBoarded, rmq.LeaseLost):
                            with delivery:  # acks at its end, or nacks when the handler raises
                                handle(delivery)
                            self.books.add_settled(delivery)
        finally:
            self.stop.set()

    def waiting(self) -> int:
        """Return how many messages wait or are in flight, by Redis's count."""
        stats = [self.client.admin.stats(topic.name) for topic in self.topics]
        return sum(one[name] for one in stats for name in WAITING)

    def clock(self) -> str:
        """Return the time in New York on the shortened clock."""
        passed = min(max(0.0, self.now() - self.begin), self.seconds)
        return f"{(self.first + passed * self.span).astimezone(EST):%H:%M}"

    def run(self, show: Callable[[], None]) -> dict[str, Any]:
        """Run the day; `show` is called repeatedly to show progress."""
        started = time.monotonic()
        self.clear()
        with ThreadPoolExecutor(4) as threads:
            try:
                self.send()
                jobs = [
                    threads.submit(self.work, self.departures, self.depart),
                    threads.submit(self.work, self.departures, self.depart),
                    threads.submit(self.work, self.alerts, self.announce),
                    threads.submit(self.work, self.boards, self.announce),
                ]
                seen, until = -1, time.monotonic() + 1 + self.seconds + PATIENCE_S
                while not self.stop.is_set() and time.monotonic() < until and self.waiting():
                    show()
                    self.machine.look()
                    time.sleep(0.1)
                    if self.books.delivered > seen:  # a slow run is not a loss
                        seen = self.books.delivered
                        until = max(until, time.monotonic() + PATIENCE_S)
            finally:
                self.stop.set()
        for job in jobs:
            job.result()  # raises a consumer's exception
        show()
        return self.report(time.monotonic() - started)

    def report(self, duration_s: float) -> dict[str, Any]:
        """Return all figures of the run."""
        books, admin = self.books, self.client.admin
        dead = {
            bytes(message.id)
            for topic in self.topics
            for message in admin.peek(topic.name, 100_000, "dead")
        }
        by_topic = Counter(books.sent.values())
        late = sorted(books.departed.values()) or [math.nan]
        return {
            "sent": by_topic[self.departures.name],
            "alerts": by_topic[self.alerts.name],
            "refreshes_asked": by_topic[self.boards.name] + books.merged,
            "merged": books.merged,
            "delivered": books.delivered,
            "retried": books.retried,
            "dead": len(dead),
            "late_p50_ms": round(late[math.ceil(len(late) * 0.50) - 1], 2),
            "late_p99_ms": round(late[math.ceil(len(late) * 0.99) - 1], 2),
            "late_max_ms": round(late[-1], 2),
            "early": sum(ms < -self.skew_error_s * 1000 for ms in late),
            "duplicates": books.duplicates(),
            "lost": len(books.lost(dead)),
            "load": round(self.machine.load(), 1),
            "cores": self.machine.cores,
            "seconds": round(duration_s, 2),
        }


NOTES = {
    "sent": "departures, due at their scheduled time",
    "alerts": f"of flights over {VERY_LATE_MIN} min late, the latest first",
    "refreshes_asked": "of a board, one by each departure",
    "merged": "refreshes saved: merged into one that waited",
    "delivered": "handed to a consumer, over all topics",
    "retried": "of them, after a failure on purpose",
    "dead": "letters: the flight that fails every time",
    "late_p50_ms": "handler start after due time, the median",
    "late_p99_ms": "99 of 100 departures were sooner",
    "late_max_ms": "the worst",
    "early": "departures handled before they were due",
    "duplicates": "handled to the end more than once",
    "lost": "sent, and neither settled nor dead",
    "load": "programs that wanted a core, on average",
    "cores": "of this machine",
    "seconds": "in all",
}


def table(report: dict[str, Any]) -> Table:
    made = Table(
        box=SIMPLE_HEAD, title="Flights of 2013-01-01", title_justify="left", title_style="bold"
    )
    made.add_column("figure")
    made.add_column("count", justify="right")
    made.add_column("what it counts", style="dim")
    for name, value in report.items():
        wrong = name in ("early", "duplicates", "lost")
        style = ("red" if value else "green") if wrong else None
        made.add_row(name.replace("_", " "), str(value), NOTES[name], style=style)
    return made


def lateness(report: dict[str, Any]) -> str:
    """Return how late departures were, and why; '' if they were on time."""
    if not report["late_max_ms"] > LATE_MS:
        return ""
    load, cores = report["load"], report["cores"]
    machine = f"(load {load} on {cores} core{'s' if cores > 1 else ''})"
    if load > cores:
        why = f"this machine was busy {machine}"
    else:
        why = f"this machine was not busy {machine}; Redis, its disk or the network was slow"
    return f"Departures were late by up to {report['late_max_ms'] / 1000:.1f} s: {why}"


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One day of flights through RMQ.")
    parser.add_argument("--url", help=f"default: RMQ_URL, else a private server in {HOME}")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the day lasts (30)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--clean", action="store_true", help="leave no dead letter behind")
    asked = parser.parse_args(argv)
    if not 1 <= asked.seconds <= 86_400:
        parser.error("--seconds: give 1 to 86400")
    return asked


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    url = asked.url or os.environ.get("RMQ_URL") or f"embedded://{HOME.absolute()}"
    screen = Console()
    flights = read_day()
    with alone(), rmq.Client(url) as client, contextlib.ExitStack() as stack:
        day = Day(client, flights, asked.seconds)

        def told() -> tuple[str, int, str]:
            did = f"{day.books.merged} refreshes merged, {day.books.retried} retries"
            return f"{day.clock()} in New York", len(day.books.departed), did

        def show() -> None:
            pass

        if screen.is_terminal and not asked.json:
            bar = stack.enter_context(
                Progress(
                    TextColumn("{task.description}"),
                    BarColumn(),
                    MofNCompleteColumn(),
                    TextColumn("departed  {task.fields[told]}"),
                    console=screen,
                )
            )
            task = bar.add_task("00:00", total=len(flights), told="")

            def show() -> None:
                now, departed, did = told()
                bar.update(task, completed=departed, description=now, told=did)

        elif not asked.json:
            print(f"{len(flights)} flights in {asked.seconds:g} s on {client.url}", flush=True)
            shown = time.monotonic()

            def show() -> None:
                nonlocal shown
                if time.monotonic() - shown > TELL_S:
                    shown = time.monotonic()
                    now, departed, did = told()
                    print(f"{now}: {departed}/{len(flights)} departed, {did}", flush=True)

        report = day.run(show)
        if asked.clean:
            day.clear()
    if asked.json:
        print(json.dumps(report))
    else:
        screen.print(table(report))
        if late := lateness(report):
            print(late)
        if not asked.clean:
            print(
                "Next: look at the dead letter, then send it back\n"
                f"  {command()} --url {url} dlq ls {day.departures.name}\n"
                f"  {command()} --url {url} dlq redrive {day.departures.name}\n"
                "README.md tells the rest; this program is examples/flights.py"
            )
    wrong = [f"{report[name]} {name}" for name in ("lost", "early") if report[name]]
    if wrong:
        print(f"flights: wrong: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Allow only one run at a time: two runs would take each other's flights."""
    HOME.parent.mkdir(parents=True, exist_ok=True)
    with HOME.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("flights: another run is under way here; wait for its table, then run again")
        yield


def command() -> str:
    """Return the command that runs rmq here: its name, or its path next to this Python."""
    if shutil.which("rmq"):
        return "rmq"
    return os.path.relpath(Path(sys.executable).with_name("rmq"))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except rmq.RMQError as error:
        sys.exit(f"flights: {error}")
