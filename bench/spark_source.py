"""Measure how Spark reads topics and raw streams: `python -m bench.spark_source [--only PART]`.

It is not a part of `python -m bench`, because it needs PySpark and Java. Spark runs in a child with
two tasks at a time. Another checkout (`--against DIR`) has its own child. So has another version of
PySpark (`--spark DIR`, made by `pip install --target DIR --no-deps pyspark==4.0.5`). In each round
the sides take turns in a changing order. The peers are in `spark_peers`: generated rows, and
streams that are read by XRANGE without taking and settling.

    rows      whole batches and tasks, rows a second; processors and commands of a batch
    many      the same with 256 slots and 256 streams
    slots     the same with 256 slots, compared with 4
    idle      commands a second of a query without messages
    latency   time from a send to its sink
    snapshot  a batch read of waiting messages
    memory    memory of a task's process, with few, many and large messages in one batch
    backlog   memory during five million rows, and the latency behind three million
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import report
from bench.child import ROOT, Child
from bench.machine import OthersLoad, adopt_orphans, commit, description, server, settle
from bench.measurement import Measurement, percentile, ratios_of
from tests.servers import Server

CHILD = str(Path(__file__).with_name("spark_child.py"))
ROUNDS = 3
SLOTS = 4
MADE, STREAMS, RMQ = "made in Python", "raw streams", "rmq"  # sides
TRIGGER_MS = 100
FEW_COLUMNS = "message_id,timestamp"
Answers = list[dict[str, Any]]


class Size(NamedTuple):
    """How much a run measures.

    Attributes:
        rows: Rows of the part rows, in five batches.
        slot_rows: Rows of the part slots, in one batch.
        many: Slots of the part slots.
        idle: Slots of the part idle.
        idle_s: Duration of the part idle, s.
        idle_topics: Topics of the last row of the part idle.
        sent: Messages of the part latency.
        snapshot: Rows of the part snapshot.
        memory: Rows and bytes of a body of each batch of the part memory.
        backlog: Rows of the part backlog that wait at its start, and that are sent later.
    """

    rows: int = 500_000
    slot_rows: int = 50_000
    many: int = 256
    idle: tuple[int, ...] = (4, 64, 256)
    idle_s: float = 30.0  # six rounds of renewals, and each topic's settings are read once
    idle_topics: int = 40
    sent: int = 80
    snapshot: int = 400_000
    memory: tuple[tuple[int, int], ...] = ((10_000, 200), (1_000_000, 200), (4_000, 100_000))
    backlog: tuple[int, int] = (3_000_000, 2_000_000)


QUICK = Size(
    10_000,
    2_000,
    16,
    (4,),
    1.0,
    4,
    10,
    10_000,
    ((1_000, 200), (10_000, 200), (100, 100_000)),
    (20_000, 10_000),
)


class Sides(NamedTuple):
    """The children of this checkout and of another checkout or Spark.

    Attributes:
        own: Child of this checkout, which measures the peers as well.
        other: Child of the other checkout, or of this checkout on another Spark, or None.
        name: Name of the other checkout or Spark, for titles.
    """

    own: Child
    other: Child | None
    name: str


def _turns(
    asked: Mapping[str, tuple[Child, dict[str, Any]]], rounds: int, warm: bool = True
) -> dict[str, Answers]:
    """Ask each side in each round, in a changing order; return the answers by side.

    Args:
        asked: Child and question of each side.
        rounds: Number of rounds.
        warm: Whether the first round is left out.
    """
    found: dict[str, Answers] = {name: [] for name in asked}
    names = list(asked)
    for number in range(rounds + warm):
        for turn in range(len(names)):
            name = names[(turn + number) % len(names)]
            child, question = asked[name]
            answer = child.ask(question)
            if number >= warm:
                found[name].append(answer)
    return found


def _with_other(sides: Sides, question: dict[str, Any], title: str = RMQ) -> dict[str, Any]:
    asked = {title: (sides.own, question)}
    if sides.other:
        asked[f"{title}, {sides.name}"] = (sides.other, question)
    return asked


def _values(answers: Answers, *path: str) -> list[float]:
    """Return one value of each answer."""
    found = []
    for answer in answers:
        value: Any = answer
        for word in path:
            value = value[word]
        found.append(float(value))
    return found


def _beside(
    part: str,
    title: str,
    unit: str,
    found: Mapping[str, Sequence[float]],
    target: float | None,
    at_most: bool = False,
) -> list[Measurement]:
    """Return the values of each side, and RMQ's ratio to each other side except generated rows.

    Args:
        part: Part of the bench.
        title: Title of the measurement.
        unit: Unit of the values.
        found: Value of each round, by side.
        target: Target of RMQ's ratio to the raw streams.
        at_most: Whether the target is an upper bound.
    """
    measured = [
        Measurement(part, f"{title}, {name}", values, unit) for name, values in found.items()
    ]
    for name, values in found.items():
        if name not in (MADE, RMQ):
            ratios = ratios_of(found[RMQ], values)
            bound = target if name == STREAMS else None
            measured.append(
                Measurement(part, f"{title}, {RMQ} / {name}", ratios, "x", bound, at_most)
            )
    return measured


def rows(sides: Sides, rounds: int, size: Size) -> list[Measurement]:
    """Measure whole batches and tasks, compared with raw streams and generated rows."""
    return _batches("rows", SLOTS, sides, rounds, size)


def many(sides: Sides, rounds: int, size: Size) -> list[Measurement]:
    """Measure the part rows with many slots, and as many streams."""
    return _batches("many", size.many, sides, rounds, size)


def _batches(part: str, slots: int, sides: Sides, rounds: int, size: Size) -> list[Measurement]:
    batch = size.rows // 5 // slots * slots  # so that each slot has as many messages as the others
    shape = {"rows": 5 * batch, "batch": batch, "slots": slots}
    ask: dict[str, Any] = {"measure": "batches", **shape}
    asked = {
        MADE: (sides.own, {**ask, "side": "made"}),
        STREAMS: (sides.own, {**ask, "side": "streams"}),
        **_with_other(sides, {**ask, "side": "rmq"}),
    }
    found = _turns(asked, rounds)

    def of(*path: str) -> dict[str, list[float]]:
        return {name: _values(answers, *path) for name, answers in found.items()}

    measured = _beside(part, "whole batches", "rows/s", of("rows/s"), 0.85)
    for row in measured[: len(found)]:
        last = found[row.name.removeprefix("whole batches, ")][-1]
        row.notes.update({"ms of a batch": last["ms"], "us of processors": last["us"]})
    measured += _beside(part, "in tasks", "rows/s", of("rows/s in tasks"), 0.9)
    for processor in ("Redis", "JVM", "Python", "all"):
        measured += _beside(part, f"CPU of {processor} for a row", "us", of("us", processor), None)
    for kind, title, most in (
        ("sent", "commands of a batch", 5.0),
        ("all", "the same with those inside scripts", None),
    ):
        counts = {name: values for name, values in of("commands", kind).items() if name != MADE}
        measured += _beside(part, title, "commands", counts, most, at_most=True)
    return measured


def slots(sides: Sides, rounds: int, size: Size) -> list[Measurement]:
    """Compare a batch of a topic with many slots with a batch of a topic with few slots."""
    asked: dict[str, Any] = {}
    for count in (SLOTS, size.many):
        question = {
            "measure": "batches", "side": "rmq", "rows": size.slot_rows,
            "batch": size.slot_rows, "slots": count, "skip": 0,
        }  # fmt: skip
        asked |= _with_other(sides, question, f"{count} slots")
    found = _turns(asked, rounds)
    measured = []
    for name, answers in found.items():
        notes = {"ms of a batch": answers[-1]["ms"], "us of processors": answers[-1]["us"],
                 "commands": answers[-1]["commands"]}  # fmt: skip
        measured.append(
            Measurement("slots", f"one batch, {name}", _values(answers, "rows/s"), "rows/s",
                        notes=notes)
        )  # fmt: skip
    for ending in ("", f", {sides.name}") if sides.other else ("",):
        few, many = (f"{count} slots{ending}" for count in (SLOTS, size.many))
        ratios = ratios_of(_values(found[many], "rows/s"), _values(found[few], "rows/s"))
        target = None if ending else 0.7
        measured.append(
            Measurement("slots", f"one batch, {many} / {SLOTS} slots", ratios, "x", target)
        )
    for name, answers in found.items():
        counts = _values(answers, "commands", "sent")
        measured.append(Measurement("slots", f"commands of a batch, {name}", counts, "commands"))
    return measured


def idle(sides: Sides, rounds: int, size: Size) -> list[Measurement]:
    """Measure the commands a second of a query without messages."""
    asked: dict[str, Any] = {}
    for count in size.idle:
        for trigger_ms, title in ((0, "default trigger"), (TRIGGER_MS, f"every {TRIGGER_MS} ms")):
            question = {"measure": "idle", "slots": count, "trigger_ms": trigger_ms,
                        "seconds": size.idle_s}  # fmt: skip
            asked |= _with_other(sides, question, f"idle, {count} slots, {title}")
    question = {"measure": "idle", "slots": 16, "trigger_ms": 0, "seconds": size.idle_s,
                "topics": size.idle_topics}  # fmt: skip
    asked |= _with_other(sides, question, f"idle, {size.idle_topics} topics of 16 slots")
    measured = []
    for name, answers in _turns(asked, 1, warm=False).items():
        target = None if sides.other and name.endswith(sides.name) else 10.0
        notes = {"% of a core": answers[-1]["% of a core"]}
        for kind, title in (("sent", "sent"), ("scripts", "scripts"), ("all", "with inner ones")):
            measured.append(
                Measurement("idle", f"{name}: {title}", _values(answers, "commands/s", kind),
                            "commands/s", target if kind == "sent" else None, True, notes)
            )  # fmt: skip
    return measured


def latency(sides: Sides, rounds: int, size: Size) -> list[Measurement]:
    """Measure the time from before a send until its row has reached a sink in the driver."""
    ask = {"measure": "latency", "count": size.sent, "slots": SLOTS, "trigger_ms": TRIGGER_MS}
    asked = {
        STREAMS: (sides.own, {**ask, "side": "streams"}),
        **_with_other(sides, {**ask, "side": "rmq"}),
    }
    found = _turns(asked, rounds, warm=False)
    measured = []
    for percent, most in ((50, 1.2), (99, None)):
        late = {name: [percentile(one["ms"], percent) for one in of] for name, of in found.items()}
        title = f"to its sink, every {TRIGGER_MS} ms, p{percent}"
        measured += _beside("latency", title, "ms", late, most, at_most=True)
    return measured


def snapshot(sides: Sides, rounds: int, size: Size) -> list[Measurement]:
    """Measure a batch read of waiting messages: all columns, and few that need no record."""
    asked: dict[str, Any] = {}
    for name, (child, _) in _with_other(sides, {}).items():
        topic = child.ask({"measure": "fill", "rows": size.snapshot, "slots": SLOTS})["topic"]
        question = {"measure": "snapshot", "topic": topic}
        asked[name] = (child, question)
        asked[f"{name}, few columns"] = (child, {**question, "columns": FEW_COLUMNS})
    found = _turns(asked, rounds)
    measured = [
        Measurement("snapshot", f"snapshot, {name}", _values(answers, "rows/s"), "rows/s",
                    250_000.0 if name == RMQ else None,
                    notes={"us of processors": answers[-1]["us"]})
        for name, answers in found.items()
    ]  # fmt: skip
    return measured + [
        Measurement(
            "snapshot", f"CPU of all for a row, {name}", _values(answers, "us", "all"), "us"
        )
        for name, answers in found.items()
    ]


def memory(sides: Sides, rounds: int, size: Size) -> list[Measurement]:
    """Measure the peak memory of a task's process; here each task has a new process."""
    asked: dict[str, Any] = {}
    titles = [f"one batch of {count:,} x {body:,} B" for count, body in size.memory]
    for title, (count, body) in zip(titles, size.memory, strict=True):
        question = {"measure": "memory", "rows": count, "slots": SLOTS, "body": body}
        asked |= _with_other(sides, question, title)
    found = _turns(asked, 1, warm=False)
    measured = []
    for kind, what in (("task", "a task"), ("runner", "the source runner")):
        for name, answers in found.items():
            values = _values(answers, "MiB", kind)
            measured.append(Measurement("memory", f"most of {what}, {name}", values, "MiB"))
        few, *more = titles
        for title in more:
            ratios = ratios_of(*(_values(found[one], "MiB", kind) for one in (title, few)))
            target = 1.2 if kind == "task" and title == titles[1] else None
            measured.append(
                Measurement("memory", f"most of {what}, {title} / {few}", ratios, "x", target, True)
            )
    return measured


def backlog(sides: Sides, rounds: int, size: Size) -> list[Measurement]:
    """Measure memory during one long query, and the latency of messages behind a backlog."""
    waiting, later = size.backlog
    question = {"measure": "backlog", "waiting": waiting, "later": later, "slots": SLOTS}
    measured = []
    for name, answers in _turns(_with_other(sides, question), 1, warm=False).items():
        title = f"behind {waiting:,} messages, {name}"
        measured.append(Measurement("backlog", title, _values(answers, "behind s"), "s"))
        measured.append(
            Measurement("backlog", f"all rows, {name}", _values(answers, "rows/s"), "rows/s")
        )
        for process in ("JVM", "task", "runner"):
            early, late = (_values(answers, part, process) for part in ("MiB early", "MiB late"))
            measured.append(Measurement("backlog", f"{process} at the end, {name}", late, "MiB"))
            target = None if name != RMQ else 1.2
            measured.append(
                Measurement(
                    "backlog", f"{process}, the end / after a fifth, {name}",
                    ratios_of(late, early), "x", target, at_most=True,
                )
            )  # fmt: skip
    return measured


Part = Callable[[Sides, int, Size], list[Measurement]]
PARTS: dict[str, Part] = {
    "rows": rows,
    "many": many,
    "slots": slots,
    "idle": idle,
    "latency": latency,
    "snapshot": snapshot,
    "memory": memory,
    "backlog": backlog,
}


@contextlib.contextmanager
def children(url: str, against: Path | None, spark: Path | None, reuse: bool) -> Iterator[Sides]:
    """Start a child for each checkout or version of Spark, each with its own Spark."""
    with contextlib.ExitStack() as stack:

        def started(checkout: Path, prefix: str, packages: Path | None = None) -> Child:
            asked = {"url": url, "prefix": prefix, "peers": prefix == "own", "reuse": reuse}
            child = Child(checkout, ["-P", CHILD], asked, packages)
            stack.callback(child.close)
            return child

        own = started(ROOT, "own")
        if spark is not None:
            other = started(ROOT, "other", spark)
            yield Sides(own, other, f"Spark {other.opened['spark']}")
        elif against is not None:
            yield Sides(own, started(against.resolve(), "other"), f"commit {commit(against)}")
        else:
            yield Sides(own, None, "")


def measure(
    own: Server,
    names: Sequence[str],
    rounds: int,
    size: Size,
    against: Path | None,
    spark: Path | None,
) -> Iterator[tuple[str, list[Measurement], float]]:
    """Yield each part, its measurements, and the load of others during the part."""
    for reuse in (True, False):  # in the part memory, tasks do not share a process
        left = [name for name in names if (name != "memory") == reuse]
        if not left:
            continue
        with children(own.url, against, spark, reuse) as sides:
            for name in left:
                load, began = OthersLoad(), time.monotonic()
                measured = PARTS[name](sides, rounds, size)
                cores = round(load.cores(), 2)
                report.took(name, time.monotonic() - began, cores)
                yield name, measured, cores
                with own.raw() as raw:
                    settle(raw)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark_source", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; may be repeated")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="see that it runs; no targets")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--against", type=Path, metavar="DIR", help="measure another checkout too")
    other.add_argument("--spark", type=Path, metavar="DIR", help="measure another PySpark too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round to a file")
    asked = parser.parse_args()
    names = list(asked.only or PARTS)
    measurements: list[Measurement] = []
    loads: dict[str, float] = {}
    with server() as own:
        with own.raw() as raw:
            machine = description(raw)
        if asked.quick:
            machine["rounds"] = "quick"
        report.begin(machine)
        rounds, size = (1, QUICK) if asked.quick else (asked.rounds, Size())
        for name, measured, load in measure(own, names, rounds, size, asked.against, asked.spark):
            if asked.quick:
                for one in measured:
                    one.target = None
            report.show(measured)
            loads[name] = load
            measurements += measured
            if asked.json:
                report.write(asked.json, machine, loads, measurements)
    report.sum_up(measurements)


if __name__ == "__main__":
    adopt_orphans()
    main()
