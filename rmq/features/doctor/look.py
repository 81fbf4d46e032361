"""The findings of the doctor, and the data from Redis that its checks share."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from rmq.errors import OutcomeUnknown, RMQError, Unavailable
from rmq.features.workers import flows
from rmq.features.workers.status import WorkerStatus
from rmq.kernel.topic import overview
from rmq.kernel.topic.overview import TopicOverview, overview as topic_overview
from rmq.kernel.transport.flow.steps import Flow, OnEveryMaster, server_ms

T = TypeVar("T")

MIB = 1024 * 1024
HOUR_MS = 3_600_000
SLOTS_MAX = 200  # slots that a check examines individually, fullest first
_SLAVE = re.compile(r"slave\d+")


Severity = Literal["ok", "skipped", "note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # most serious last
SinceFrom = Literal["redis", "server", ""]
PROBLEMS_MAX = 10  # number of problems that `rmq doctor` and the console list first


class Finding(NamedTuple):
    """A finding of `Admin.doctor`.

    Attributes:
        check: Name of the check.
        severity: "ok" (no problem), "skipped" (the check was not possible), "note" (useful to
            know), "warning" (may become a problem) or "error" (a problem now, or a setting that RMQ
            cannot keep).
        evidence: Observed facts.
        fix: Command that fixes the problem, or an empty text.
        topics: Topics that have the problem, worst first.
        subject: Name of the group, schedule, batch, job or worker that has the problem, in the
            first topic. Empty if there is none.
        since: Start of the problem, or None if it is unknown.
        since_from: "redis" if Redis stores the start. "server" if `since` is the time at which `rmq
            server` first saw the problem. Empty if the start is unknown.
        title: A few words that name the kind of problem.
        runbook: Heading of its section in docs/runbook.md: the name of an alert or of the check.
    """

    check: str
    severity: Severity
    evidence: str
    fix: str = ""
    topics: tuple[str, ...] = ()
    subject: str = ""
    since: datetime | None = None
    since_from: SinceFrom = ""
    title: str = ""
    runbook: str = ""

    @property
    def key(self) -> str:
        """Name under which `rmq server` stores the time at which it first saw the problem."""
        return " ".join((self.check, *self.topics[:1], self.subject))


def problems(findings: Iterable[Finding]) -> list[Finding]:
    """Return only the warnings and errors of a result of `Admin.doctor`, in the same order."""
    return [each for each in findings if each.severity in ("warning", "error")]


class Sight(NamedTuple):
    """The result of a check, without the name of the check. `Finding` explains the fields."""

    severity: Severity
    evidence: str
    fix: str = ""
    topics: tuple[str, ...] = ()
    subject: str = ""
    since_ms: int | None = None


def of_topic(
    topic: str, severity: Severity, text: str, fix: str, subject: str = "",
    since_ms: float | None = None,
) -> Sight:  # fmt: skip
    """Return a result about one topic. Its evidence starts with the name of the topic."""
    since = None if since_ms is None else int(since_ms)
    return Sight(severity, f"{topic}: {text}", fix, (topic,), subject, since)


class Clock(NamedTuple):
    """The time of a master, and how far its clock is ahead of the local clock.

    The error of the difference is at most half of a round trip.
    """

    address: str  # empty if there is only one server
    ahead_s: float
    round_trip_s: float


class Info(dict[str, str]):
    """The reply of the command INFO of one server."""

    node = ""  # host:port in a cluster

    @classmethod
    def read(cls, reply: bytes) -> Info:
        """Parse the reply of INFO, or another reply with the same form."""
        lines = reply.decode().split("\r\n")
        return cls(line.split(":", 1) for line in lines if ":" in line)

    def number(self, name: str) -> int:
        """Return a field as a number, or 0 if it is missing."""
        text = self.get(name, "0")
        return int(text) if text.isdecimal() else 0

    @property
    def address(self) -> str:
        """Name of the server, for people."""
        port = self.get("tcp_port", "?")
        return self.node or ("unix socket" if port == "0" else f"port {port}")

    @property
    def version(self) -> str:
        """Name and version of the server, for example "valkey 9.0.1"."""
        name = "valkey" if "valkey_version" in self else "redis"
        return f"{name} {self.get(f'{name}_version', '?')}"

    @property
    def numbers(self) -> tuple[int, ...]:
        """Version of Redis with which the server is compatible, as numbers."""
        parts = self.get("redis_version", "0").split(".")
        return tuple(int(part) for part in parts if part.isdecimal())

    @property
    def replicas(self) -> list[dict[str, str]]:
        """Replicas of the server, with their addresses, states and lag."""
        return [
            dict(part.partition("=")[::2] for part in text.split(","))
            for name, text in self.items()
            if _SLAVE.fullmatch(name)
        ]


def pairs(reply: Any) -> dict[str, str]:
    """Convert a reply of names and values to a dict. With RESP3, the reply is already a map."""
    is_map = isinstance(reply, Mapping)
    items = reply.items() if is_map else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode(): value.decode(errors="replace") for name, value in items}


class Look:
    """Reads data from Redis for the checks. Each kind of data is read once.

    If a read fails, each check that needs the data gets the same error.

    Args:
        prefix: Prefix of all keys.
        topics: All topics, if the caller has already read them.
    """

    def __init__(self, prefix: str, topics: Sequence[TopicOverview] | None = None) -> None:
        self.prefix = prefix
        self._infos: list[Info] | None = None
        self._topics = None if topics is None else list(topics)
        self._workers: list[WorkerStatus] | None = None
        self._config: dict[str, list[dict[str, str]]] = {}
        self._failures: dict[str, RMQError] = {}
        self.away: list[str] = []  # masters of a cluster that do not answer
        # Topics for whose waiting messages an earlier check has found a cause.
        self.explained: set[str] = set()
        self.failing: set[str] = set()  # topics whose failures an earlier check has reported

    def on_masters(self, what: str, *words: Any) -> Flow[tuple[list[str], list[Any]]]:
        """Call all masters. Return the addresses and replies of the masters that answer.

        A master that did not answer an earlier call is not called again.
        """
        step = OnEveryMaster(what, *words, without=tuple(self.away))
        replies = yield step
        self.away += step.away
        return step.addresses, replies

    def infos(self) -> Flow[list[Info]]:
        """Return the INFO of each master."""
        if self._infos is None:
            addresses, replies = yield from self.on_masters("INFO", "INFO")
            self._infos = [Info.read(reply) for reply in replies]
            for info, address in zip(self._infos, addresses, strict=False):
                info.node = address
        return self._infos

    def config(self, pattern: str) -> Flow[list[dict[str, str]]]:
        """Return the settings (CONFIG GET) of each Redis master whose names match a pattern."""
        if pattern not in self._config:
            addresses, replies = yield from self.on_masters("CONFIG GET", "CONFIG", "GET", pattern)
            found = [pairs(reply) for reply in replies]
            # A master has died since the last read.
            if self._infos is not None and len(found) < len(self._infos):
                by_address = dict(zip(addresses, found, strict=True))
                found = [by_address.get(info.node, {}) for info in self._infos]
            self._config[pattern] = found
        return self._config[pattern]

    def config_if_allowed(self, pattern: str) -> Flow[list[dict[str, str]] | None]:
        """Return settings of each master, or None if this Redis user may not read them."""
        try:
            return (yield from self.config(pattern))
        except RMQError:
            return None

    def clocks(self) -> Flow[list[Clock]]:
        """Compare the clock of each master with the local clock."""
        best: list[Clock] = []
        for _ in range(3):  # the shortest round trip is the most accurate
            began, here = time.perf_counter(), time.time()
            addresses, replies = yield from self.on_masters("TIME", "TIME")
            round_trip = time.perf_counter() - began
            if best and round_trip >= best[0].round_trip_s:
                continue
            addresses = addresses or [""]
            there = [int(seconds) + int(us) / 1e6 for seconds, us in replies]
            best = [
                Clock(address, at - here - round_trip / 2, round_trip)
                for address, at in zip(addresses, there, strict=True)
            ]
        return best

    def now_ms(self) -> Flow[int]:
        """Return the time by the clock of Redis."""
        return (yield from server_ms("TIME"))

    def topics(self) -> Flow[list[TopicOverview]]:
        """Return all topics that this Redis user can read."""
        return [topic for topic in (yield from self.all_topics()) if topic.error is None]

    def all_topics(self) -> Flow[list[TopicOverview]]:
        """Return all topics."""
        if self._topics is None:
            self._topics = yield from self._once("topics", self._read_topics())
        return self._topics

    def workers(self) -> Flow[list[WorkerStatus]]:
        """Return the worker processes."""
        if self._workers is None:
            self._workers = yield from self._once("workers", flows.workers(self.prefix))
        return self._workers

    def _read_topics(self) -> Flow[list[TopicOverview]]:
        names = yield from overview.topics(self.prefix)
        return (yield from topic_overview(self.prefix, names, partly=bool(self.away)))

    def _once(self, what: str, flow: Flow[T]) -> Flow[T]:
        """Read data once for several checks. If the read failed, raise the same error again."""
        if what in self._failures:
            flow.close()
            raise self._failures[what]
        try:
            return (yield from flow)
        except (Unavailable, OutcomeUnknown) as error:
            self._failures[what] = error
            raise


def at(addresses: list[str]) -> str:
    """Return addresses of servers as the beginning of a line, or "" if there is only one server."""
    return f"{some(addresses)}: " if any(addresses) else ""


def plural(count: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def some(names: list[str], most: int = 3) -> str:
    """Return the first names of a list as text, and how many more names there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def stop(worker: WorkerStatus) -> str:
    """Return the command that stops a worker process whose handler hangs."""
    return f"kill {worker.pid}  (on {shlex.quote(worker.host)}; its messages are delivered again)"


def as_one(sights: list[Sight]) -> list[Sight]:
    """Combine results of the same kind into one result. The results are sorted, worst first.

    Each result must be about a topic.
    """
    if len(sights) < 2:
        return sights
    names = dict.fromkeys(name for sight in sights[1:] for name in sight.topics)
    more = f"; and {len(sights) - 1} more like it: {some(list(names))}"
    topics = tuple(dict.fromkeys((*sights[0].topics, *names)))
    return [sights[0]._replace(evidence=sights[0].evidence + more, topics=topics)]


def worst_first(found: list[tuple[float, Sight]]) -> list[Sight]:
    """Sort results of the same kind by their number, largest first, and combine them."""
    return as_one([sight for _, sight in sorted(found, key=lambda pair: -pair[0])])


def age(ms: float) -> str:
    """Format a length of time for people, with one unit."""
    seconds = ms / 1000
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
