"""Parse the options of the audit's command line. This module does not use Spark."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

from spark_connector.audit import words
from spark_connector.audit.errors import UsageError
from spark_connector.audit.gaps import SCOPES, Scope
from spark_connector.audit.job import LIMIT
from spark_connector.audit.reading import LIVE, Place, place

_UNITS: Final = {"ms": 1, "s": 1000, "": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPILOG: Final = """\
An input is parquet:PATH, json:PATH, csv:PATH, table:NAME, or a path with a known extension.

Exit codes: 0 clean; 1 something is lost or duplicated; 2 an option is wrong; 3 no verdict: an
input is empty or cannot be read, or everything is younger than the horizon.

Examples:
  python -m spark_connector.audit --ledger ledger/ --deliveries json:log/ --drained --out audit/
  python -m spark_connector.audit --outbox stubs.parquet --deliveries log.parquet \\
      --snapshot rmq:orders --url redis://db:6379/0 --out audit/ && echo nothing is lost
  rmq outbox resend - < audit/resend.txt
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The parsed options of an audit."""

    ledger: tuple[Place, ...]
    is_outbox: bool
    deliveries: tuple[Place, ...]
    snapshot: tuple[Place, ...]
    url: str | None = field(repr=False)
    prefix: str
    topics: tuple[str, ...]
    as_of_ms: int | None
    settle_ms: int
    scope: Scope
    faults: tuple[str, ...]
    limit: int
    out: Path | None
    table: str | None
    json: bool
    conf: dict[str, str]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse(argv: Sequence[str] | None) -> Options:
    """Parse the arguments of the command line.

    Raises:
        UsageError: An option is missing or wrong.
    """
    args = _parser().parse_args(argv)
    if bool(args.ledger) == bool(args.outbox):
        problem = "both are given" if args.ledger else "neither is given"
        raise UsageError(f"--ledger, --outbox: {problem}; give one: what your producers have sent")
    if not args.deliveries:
        raise UsageError("--deliveries: not given; give the log of your consumers")
    if bool(args.snapshot) == args.drained:
        problem = "both are given" if args.drained else "neither is given"
        raise UsageError(
            f"--snapshot, --drained: {problem}; give what is in the queues, or say that nothing is"
        )
    kind = "outbox" if args.outbox else "ledger"
    snapshots = _places("snapshot", args.snapshot, live=True)
    url = args.url or os.environ.get("RMQ_URL", "").strip()
    if any(snapshot.format == LIVE for snapshot in snapshots) and not url:
        raise UsageError("--url: not given; give redis://HOST:PORT/0, or set RMQ_URL")
    if args.out is not None and "://" in args.out:
        raise UsageError(
            f"--out: {args.out!r} is not a directory of this machine; give one, and --table for "
            "the rows"
        )
    out = None if args.out is None else Path(args.out)
    if out is not None and out.exists() and not out.is_dir():
        raise UsageError(f"--out: {args.out!r} is a file; give a directory")
    return Options(
        ledger=_places(kind, args.outbox or args.ledger),
        is_outbox=bool(args.outbox),
        deliveries=_places("deliveries", args.deliveries),
        snapshot=snapshots,
        url=url,
        prefix=args.prefix,
        topics=tuple(args.topic),
        as_of_ms=_read("as-of", args.as_of, _moment) if args.as_of else None,
        settle_ms=_read("settle", args.settle, _duration),
        scope=args.counted_per,
        faults=_read("fail-on", args.fail_on, _faults),
        limit=_read("limit", args.limit, _limit),
        out=out,
        table=args.table,
        json=args.json,
        conf=dict(_read("conf", setting, _setting) for setting in args.conf),
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m spark_connector.audit",
        description="Compare sent messages, deliveries and queues, and find lost messages.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    many: dict[str, Any] = {"action": "append", "default": [], "metavar": "INPUT"}
    add = parser.add_argument
    add("--ledger", **many, help="the messages that producers sent; every INPUT may be repeated")
    add("--outbox", **many, help="instead: the table rmq_stub")
    add("--deliveries", **many, help="the deliveries that consumers got, and their outcomes")
    add("--snapshot", **many, help="the contents of the queues; rmq:TOPIC reads them now")
    add("--drained", action="store_true", help="instead: the queues are empty")
    add("--url", help="the URL of Redis, for rmq:TOPIC; default: RMQ_URL")
    add("--prefix", default="rmq", help="the prefix of its keys (rmq)")
    add("--topic", action="append", default=[], help="only this topic; may be repeated")
    add("--as-of", metavar="TIME", help="when the snapshot was begun, as 2030-01-31T09:00:00Z; "
        "default: its column taken_at, or now for rmq:TOPIC")  # fmt: skip
    add("--settle", default="5m", metavar="DURATION",
        help="messages sent less than this before the snapshot are not judged (5m)")  # fmt: skip
    add("--counted-per", choices=SCOPES, default="slot",
        help="the count of a producer: one a slot, one a topic, or one in all (slot)")  # fmt: skip
    add("--fail-on", default=",".join(words.FAULTS_DEFAULT), metavar="WORDS",
        help=f"what exits with 1, of {', '.join(words.FAULTS)} (lost,duplicated,gaps)")  # fmt: skip
    add("--limit", default=str(LIMIT), help=f"the most messages of a list in the report ({LIMIT})")
    add("--out", metavar="DIR", help="write messages/, gaps/ (parquet), report.html, resend.txt, "
        "totals.json")  # fmt: skip
    add("--table", metavar="NAME", help="write the rows to tables NAME and NAME_gaps instead")
    add("--json", action="store_true", help="print the totals as JSON")
    add("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark")
    return parser


def _places(option: str, given: Sequence[str], live: bool = False) -> tuple[Place, ...]:
    return tuple(place(f"--{option}", text, live) for text in given)


def _read(option: str, text: str, parser: Callable[[str], Any]) -> Any:
    try:
        return parser(text)
    except ValueError as error:
        raise UsageError(f"--{option}: {text[:60]!r} {error}") from None


def _duration(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)", text.strip())
    if match is None:
        raise ValueError("is not a duration; give 30s, 5m, 2h or 1d")
    return round(float(match[1]) * _UNITS[match[2]])


def _moment(text: str) -> int:
    if re.fullmatch(r"\d{12,14}", text):
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is not a time; give 2030-01-31T09:00:00Z, or epoch ms") from None
    if at.utcoffset() is None:
        raise ValueError("has no time zone; add Z, or an offset as +02:00")
    return round(at.timestamp() * 1000)


def _faults(text: str) -> tuple[str, ...]:
    faults = tuple(word.strip() for word in text.split(",") if word.strip())
    unknown = [word for word in faults if word not in words.FAULTS]
    if unknown or not faults:
        raise ValueError(f"is not known; give some of {','.join(words.FAULTS)}")
    return faults


def _limit(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 100_000:
        raise ValueError("is not a number; give 1 to 100000")
    return int(text)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError("is no setting; give KEY=VALUE, as spark.driver.memory=4g")
    return name, value
