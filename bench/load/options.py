"""The options of a load test on locust's command line, each checked when it is parsed."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from locust.argument_parser import LocustArgumentParser

from bench.load.message_log import HEADER, KINDS

BODY_MAX = 256 * 1024  # bytes; the default max_body of a topic
BATCH_MAX = 1000  # largest number of messages that one receive takes
HOUR_MS = 3_600_000
LEASE_MIN_S = 5.0
PATIENCE_S = 30.0  # time for the drain, in addition to the longest wait of a message

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run.

    Attributes:
        url: URL of Redis; None: a private server for the run.
        topic: Name of the topic.
        slots: Number of slots.
        kinds: Weight of each kind of message, in the order of `KINDS`.
        body_bytes: Smallest and largest body, bytes.
        rate: Messages per second of each producer; 0: unlimited.
        batch: Largest number of messages of one `send_many` and one `receive`.
        work_ms: Work on each delivery, ms.
        fail: Share of deliveries that is nacked.
        delay_ms: Shortest and longest delay of a delayed message, ms.
        merge_ms: How long a merging message waits for others, ms.
        drain_s: Longest drain, s; 0: the longest wait of a message, and 30 s.
    """

    url: str | None
    topic: str
    slots: int
    kinds: tuple[int, ...]
    body_bytes: Range
    rate: float
    batch: int
    work_ms: float
    fail: float
    delay_ms: Range
    merge_ms: int
    drain_s: float

    @classmethod
    def of(cls, parsed: Namespace) -> Options:
        """Return RMQ's options from the options that locust has parsed."""
        names = [field.name for field in fields(cls) if field.name != "url"]
        return cls(parsed.rmq_url, **{name: getattr(parsed, name) for name in names})

    @property
    def turn_s(self) -> float:
        """The work of a consumer on a full batch, s."""
        return self.batch * self.work_ms / 1000

    @property
    def lease_s(self) -> float:
        """The lease: longer than two batches take, so that it expires only after a fault."""
        return max(LEASE_MIN_S, 2 * self.turn_s)

    @property
    def patience_s(self) -> float:
        """The longest duration of the drain, s."""
        last_ms = max(self.delay_ms[1], self.merge_ms)
        return self.drain_s or PATIENCE_S + self.lease_s + last_ms / 1000


def number(low: float, high: float, unit: str, whole: bool = False) -> Callable[[str], float]:
    """Return a parser of a number."""

    def check(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            wanted = "a whole number" if whole else "a number"
            raise ArgumentTypeError(f"found {text!r}; give {wanted}, {low} to {high} ({unit})")
        return value

    return check


def span(low: int, high: int, unit: str) -> Callable[[str], Range]:
    """Return a parser of a number, or of a range such as 100-2000."""

    def check(text: str) -> Range:
        least, dash, most = text.partition("-")
        try:
            limits = int(least), int(most if dash else least)
        except ValueError:
            limits = (low - 1, low - 1)
        if not low <= limits[0] <= limits[1] <= high:
            raise ArgumentTypeError(
                f"found {text!r}; give {unit} as a number or a range with the lesser first, such "
                f"as {low}-{min(high, 2000)}, within {low} to {high}"
            )
        return limits

    return check


def kinds(text: str) -> tuple[int, ...]:
    """Parse the weights of the kinds; a kind without a weight gets 0."""
    weights = dict.fromkeys(KINDS, 0)
    for part in text.split(","):
        name, equals, weight = part.strip().partition("=")
        if name not in weights or not equals or not weight.isascii() or not weight.isdigit():
            raise ArgumentTypeError(
                f"found {part!r}; give kind=weight pairs with a comma between, the kinds being "
                f"{', '.join(KINDS)} and the weights whole numbers"
            )
        weights[name] = int(weight)
    if not any(weights.values()):
        raise ArgumentTypeError(f"found {text!r}; give at least one kind a weight above 0")
    return tuple(weights.values())


def _url(text: str) -> str | None:
    return text or None


# Arguments of `add_argument` for each option.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "--rmq-url": {
        "metavar": "URL", "env_var": "RMQ_URL", "type": _url,
        "help": "redis://, rediss://, unix:// or embedded:///directory; default: a private server, "
                "which stops with the run",
    },
    "--topic": {
        "default": "load",
        "help": "a topic for the load test alone (load); a topic that holds messages is refused",
    },
    "--slots": {
        "default": 1, "type": number(1, 1024, "slots", whole=True),
        "help": "the number of slots, if the run creates the topic (1)",
    },
    "--kinds": {
        "default": "immediate=70,priority=10,delayed=15,merging=5", "type": kinds,
        "help": "the kinds of messages, by weight (%(default)s)",
    },
    "--body-bytes": {
        "metavar": "N|N-M", "default": "100-2000", "type": span(HEADER.size, BODY_MAX, "bytes"),
        "help": f"the size of a body, or a range, from {HEADER.size} (100-2000)",
    },
    "--rate": {
        "default": 100.0, "type": number(0, 1_000_000, "messages a second"),
        "help": "messages a second of each producer; 0: as many as it can (100)",
    },
    "--batch": {
        "default": 10, "type": number(1, BATCH_MAX, "messages", whole=True),
        "help": "the most messages of one send_many and of one receive (10)",
    },
    "--work-ms": {
        "metavar": "MS", "default": 0.0, "type": number(0, HOUR_MS, "milliseconds"),
        "help": "how long a consumer works on each delivery (0)",
    },
    "--fail": {
        "metavar": "SHARE", "default": 0.02,
        "type": number(0, 1, "the share of deliveries to nack"),
        "help": "the share of deliveries that fail, 0 to 1 (0.02)",
    },
    "--delay-ms": {
        "metavar": "N|N-M", "default": "100-2000", "type": span(1, HOUR_MS, "milliseconds"),
        "help": "the delay of a delayed message (100-2000)",
    },
    "--merge-ms": {
        "metavar": "MS", "default": 500, "type": number(1, HOUR_MS, "milliseconds", whole=True),
        "help": "how long a merging message waits for others (500)",
    },
    "--drain-s": {
        "metavar": "S", "default": 0.0, "type": number(0, 86_400, "seconds"),
        "help": "the longest that the drain at the end may take; 0: long enough for the last "
                "messages (0)",
    },
}  # fmt: skip


def add(parser: LocustArgumentParser) -> None:
    """Add RMQ's options to locust's."""
    group = parser.add_argument_group("RMQ options")
    for name, arguments in ARGUMENTS.items():
        group.add_argument(name, **arguments)
