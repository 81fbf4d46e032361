"""The options of a load test: what locust's command line takes, checked at the door."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import dataclass

from locust.argument_parser import LocustArgumentParser

from bench.load.message_log import HEADER, KINDS

BODY_MAX = 256 * 1024  # bytes; a topic's max_body, where nobody says otherwise
BATCH_MAX = 1000  # messages; what one receive takes at most
HOUR_MS = 3_600_000
LEASE_MIN_S = 5.0
PATIENCE_S = 30.0  # for the drain, on top of what the last messages have to wait for

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run.

    Attributes:
        url: of Redis; None: a private server for the run.
        topic: its name. slots: how many it has.
        kinds: the weight of each kind of message, in the order of `KINDS`.
        body_bytes: least and most bytes of a body.
        rate: messages a second of each producer; 0: as many as it can.
        batch: the most messages of one `send_many` and one `receive`.
        work_ms: how long each delivery is worked on.
        fail: the share of deliveries that is nacked.
        delay_ms: least and most delay of a delayed message.
        merge_ms: how long a merging message waits for others.
        drain_s: how long the drain may take; 0: as long as the last messages can need, and 30 s.
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
        """The options among those that locust has parsed."""
        return cls(
            parsed.rmq_url,
            parsed.topic,
            parsed.slots,
            parsed.kinds,
            parsed.body_bytes,
            parsed.rate,
            parsed.batch,
            parsed.work_ms,
            parsed.fail,
            parsed.delay_ms,
            parsed.merge_ms,
            parsed.drain_s,
        )

    @property
    def turn_s(self) -> float:
        """How long a consumer works on a full batch."""
        return self.batch * self.work_ms / 1000

    @property
    def lease_s(self) -> float:
        """A lease that outlasts two turns, so that none runs out but by a fault."""
        return max(LEASE_MIN_S, 2 * self.turn_s)

    @property
    def patience_s(self) -> float:
        """How long the drain may take."""
        last_ms = max(self.delay_ms[1], self.merge_ms)
        return self.drain_s or PATIENCE_S + self.lease_s + last_ms / 1000


def number(low: float, high: float, unit: str, whole: bool = False) -> Callable[[str], float]:
    """A check of one number."""

    def check(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            what = "a whole number" if whole else "a number"
            raise ArgumentTypeError(f"found {text!r}; give {what}, {low} to {high} ({unit})")
        return value

    return check


def span(low: int, high: int, unit: str) -> Callable[[str], Range]:
    """A check of a number, or of a range such as 100-2000."""

    def check(text: str) -> Range:
        least, dash, most = text.partition("-")
        try:
            found = int(least), int(most if dash else least)
        except ValueError:
            found = (low - 1, low - 1)
        if not low <= found[0] <= found[1] <= high:
            raise ArgumentTypeError(
                f"found {text!r}; give {unit} as a number or a range with the lesser first, such "
                f"as {low}-{min(high, 2000)}, within {low} to {high}"
            )
        return found

    return check


def kinds(text: str) -> tuple[int, ...]:
    """Check the weights of the kinds; one that is not named has none."""
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


def add(parser: LocustArgumentParser) -> None:
    """Add RMQ's options to locust's."""
    group = parser.add_argument_group("RMQ options")
    group.add_argument(
        "--rmq-url",
        metavar="URL",
        env_var="RMQ_URL",
        type=lambda text: text or None,
        help="redis://, rediss://, unix:// or embedded:///directory; default: a private server, "
        "which stops with the run",
    )
    group.add_argument(
        "--topic",
        default="load",
        help="a topic of the load test's own (load); one that holds messages is refused",
    )
    group.add_argument(
        "--slots",
        type=number(1, 1024, "slots", whole=True),
        default=1,
        help="of the topic, where the run creates it (1)",
    )
    group.add_argument(
        "--kinds",
        type=kinds,
        default="immediate=70,priority=10,delayed=15,merging=5",
        help="what is sent, by weight (%(default)s)",
    )
    group.add_argument(
        "--body-bytes",
        metavar="N|N-M",
        type=span(HEADER.size, BODY_MAX, "bytes"),
        default="100-2000",
        help=f"the size of a body, or a range, from {HEADER.size} (100-2000)",
    )
    group.add_argument(
        "--rate",
        type=number(0, 1_000_000, "messages a second"),
        default=100.0,
        help="messages a second of each producer; 0: as many as it can (100)",
    )
    group.add_argument(
        "--batch",
        type=number(1, BATCH_MAX, "messages", whole=True),
        default=10,
        help="the most messages of one send_many and of one receive (10)",
    )
    group.add_argument(
        "--work-ms",
        metavar="MS",
        type=number(0, HOUR_MS, "milliseconds"),
        default=0.0,
        help="how long a consumer works on each delivery (0)",
    )
    group.add_argument(
        "--fail",
        metavar="SHARE",
        type=number(0, 1, "the share of deliveries to nack"),
        default=0.02,
        help="the share of deliveries that fail, 0 to 1 (0.02)",
    )
    group.add_argument(
        "--delay-ms",
        metavar="N|N-M",
        type=span(1, HOUR_MS, "milliseconds"),
        default="100-2000",
        help="the delay of a delayed message (100-2000)",
    )
    group.add_argument(
        "--merge-ms",
        metavar="MS",
        type=number(1, HOUR_MS, "milliseconds", whole=True),
        default=500,
        help="how long a merging message waits for others (500)",
    )
    group.add_argument(
        "--drain-s",
        metavar="S",
        type=number(0, 86_400, "seconds"),
        default=0.0,
        help="the most that the drain at the end may take; 0: what the last messages can need (0)",
    )
