"""`rmq send`: one message from an argument or a file, or a stream of them from stdin.

A stream goes in batches. A batch is read and checked as a whole before any of it is sent, so a bad
line stops the stream between two batches and the message can say from which line to go on.
"""

from __future__ import annotations

import json
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, BinaryIO

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

import rmq
from rmq.cli import output
from rmq.cli.app import ERROR, PARTLY, UNREACHABLE, USAGE, Failed, Leaf, session
from rmq.cli.param_types import DURABILITY, DURATION, HEADER, MESSAGE_ID, MOMENT, moment
from rmq.core.validation import parse_duration

BATCH = 1000
PATIENCE_S = 0.2  # how long a batch waits for the next line of a slow pipe before it goes as it is
DURATIONS = ("delay", "time_range", "max_wait", "expires")
FIELDS = tuple(one.name for one in fields(rmq.Outgoing))


class BadMessage(ValueError):
    """What was given is no message."""


# --- from text to a message ----------------------------------------------------------------------


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _json(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise BadMessage(f"not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise BadMessage(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"not JSON: {error}") from None


def _enveloped(data: bytes, options: dict[str, Any], raw: bool) -> rmq.Outgoing:
    """A message from an object of the fields of rmq.Outgoing; they win over the options."""
    found = _json(data)
    if not isinstance(found, dict):
        raise BadMessage('an envelope is an object, as {"body": ..., "priority": 20}')
    if raw and "body_text" in found:
        found["body"] = found.pop("body_text")
    if raw and "body_hex" in found:
        try:
            found["body"] = bytes.fromhex(found.pop("body_hex"))
        except (ValueError, TypeError):
            raise BadMessage("body_hex: not hexadecimal digits") from None
    unknown = sorted(set(found) - set(FIELDS))
    if unknown:
        raise BadMessage(f"{unknown[0]!r} is no field of a message; they are {', '.join(FIELDS)}")
    if "body" not in found:
        raise BadMessage("the envelope has no body")
    body = found.pop("body")
    if raw and isinstance(body, str):
        body = body.encode(errors="surrogatepass")
    if raw and not isinstance(body, bytes):
        raise BadMessage(f"body: with --raw a string is needed, not {type(body).__name__}")
    try:
        for name in DURATIONS:
            if isinstance(found.get(name), str):
                found[name] = parse_duration(found[name])
        if isinstance(found.get("at"), str):
            found["at"] = moment(found["at"])
    except ValueError as error:
        raise BadMessage(str(error)) from None
    given = {name: value for name, value in found.items() if value is not None}
    if "at" in given or "delay" in given:  # a line's own time replaces that of the options
        options = {key: one for key, one in options.items() if key not in ("at", "delay")}
    return rmq.Outgoing(body, **(options | given))


def _reader(options: dict[str, Any], raw: bool, envelope: bool) -> Callable[[bytes], rmq.Outgoing]:
    if envelope:
        return lambda data: _enveloped(data, options, raw)
    if raw:
        return lambda data: rmq.Outgoing(data, **options)
    return lambda data: rmq.Outgoing(_json(data), **options)


# --- a stream of lines ---------------------------------------------------------------------------


def _lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """Lines without their ends; None where the stream has nothing to give for a while."""
    try:
        number = stream.fileno()
        slow = not stat.S_ISREG(os.fstat(number).st_mode) and os.name == "posix"
    except (OSError, ValueError, AttributeError):
        number, slow = -1, False
    if not slow:
        for one in stream:
            yield one.rstrip(b"\r\n")
        return
    parts: list[bytes] = []  # of a line whose end has not come yet
    while True:
        if not select.select([number], [], [], PATIENCE_S)[0]:
            yield None
            select.select([number], [], [])
        data = os.read(number, 1 << 16)
        if not data:
            break
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = b"".join(parts) + whole[0]
            parts = []
        parts.append(rest)
        for one in whole:
            yield one.rstrip(b"\r")
    if last := b"".join(parts):
        yield last


@dataclass
class _Stream:
    """A stream on its way: the batch being gathered, and what became of those before."""

    client: rmq.Client
    topic: rmq.Topic
    read: Callable[[bytes], rmq.Outgoing]
    how: dict[str, Any]
    tell: Callable[[rmq.SendResult], None] | None
    sent: int = 0
    last_sent_line: int = 0
    sending: bool = False  # the batch is on its way
    counts: dict[str, int] = field(
        default_factory=lambda: {"stored": 0, "merged": 0, "duplicate": 0}
    )
    lines: list[int] = field(default_factory=list)
    batch: list[rmq.Outgoing] = field(default_factory=list)

    def run(self, stream: BinaryIO, progressed: Callable[[int, int], None]) -> None:
        """Send everything."""
        number = size = 0
        for one in _lines(stream):
            if one is None:
                self.flush()
                progressed(self.sent, size)
                continue
            number += 1
            size += len(one) + 1
            if not one.strip():
                continue
            try:
                self.batch.append(self.read(one))
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
            for position, one in enumerate(self.batch):  # noqa: B007 - read where it stopped
                yield one
            all_read = True

        self.sending = True
        try:
            results = self.topic.send_many(each(), **self.how)
        except (rmq.ConfigurationError, rmq.SendError) as error:
            # Messages are checked as they are read; where reading stopped is the one at fault.
            if not all_read and position >= 0:
                code = ERROR if isinstance(error, rmq.SendError) else USAGE
                raise self._bad(self.lines[position], str(error), code) from error
            raise self._stopped(error) from error
        except rmq.StorageError as error:
            raise self._stopped(error) from error
        self._count(results)
        self.last_sent_line = self.lines[-1]
        self.batch, self.lines, self.sending = [], [], False

    def _count(self, results: list[rmq.SendResult]) -> None:
        for one in results:
            self.counts[one.status] += 1
            self.sent += 1
            if self.tell:
                self.tell(one)

    def _so_far(self) -> str:
        if not self.sent:
            return "nothing was sent"
        return (
            f"{output.plural(self.sent, 'message')} before it "
            f"{'was' if self.sent == 1 else 'were'} sent (to line {self.last_sent_line})"
        )

    def interrupted(self) -> str:
        """What a person who has stopped it needs to know."""
        far = f"stopped: {output.plural(self.sent, 'message')} sent"
        if self.sending:
            far += f" and, of lines {self.lines[0]} to {self.lines[-1]}, perhaps some more"
        return (
            f"{far}; go on from line {self.last_sent_line + 1}: tail -n +{self.last_sent_line + 1}"
        )

    def _bad(self, line: int, why: str, code: int) -> Failed:
        nothing_more = (
            f", none from line {self.last_sent_line + 1} on; mend it and go on from there: "
            f"tail -n +{self.last_sent_line + 1}"
            if self.sent
            else ""
        )
        return Failed(
            f"line {line}: {why}; {self._so_far()}{nothing_more}",
            PARTLY if self.sent else code,
            "BadLine",
        )

    def _stopped(self, error: rmq.RMQError) -> Failed:
        """A batch failed on its way."""
        kept = [one for one in getattr(error, "results", []) if one is not None]
        where = f"lines {self.lines[0]} to {self.lines[-1]}"
        before = self._so_far()
        if isinstance(error, rmq.OutcomeUnknown):
            fate = f"of {where} some or all may have been sent"
            code = UNREACHABLE
        elif isinstance(error, rmq.Unavailable):
            fate = f"{where} were not sent"
            code = UNREACHABLE
        else:
            fate = f"of {where}, {output.plural(len(kept), 'message')} went through"
            self._count(kept)
            code = PARTLY if self.sent else ERROR
        return Failed(f"{where}: {error}; {before}; {fate}", code, type(error).__name__)


@contextmanager
def _meter(stream: BinaryIO, wanted: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, where that is a terminal; yields what is called with (messages, bytes)."""
    if not wanted or not sys.stderr.isatty():
        yield lambda sent, size: None
        return
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
            pace = sent / max(0.001, time.monotonic() - started)
            told = f"{output.plural(sent, 'message')}, {output.number(round(pace))}/s"
            bar.update(task, completed=size, sent=told)

        yield moved


# --- the command ---------------------------------------------------------------------------------


def result_fields(one: rmq.SendResult) -> dict[str, Any]:
    """A result for JSON."""
    return {
        "id": str(one.id),
        "status": one.status,
        "into": str(one.into) if one.into else None,
        "slot": one.slot,
        "offset": one.offset,
        "durable": one.durable,
    }


def _gather(given: dict[str, Any]) -> dict[str, Any]:
    """The options that are fields of rmq.Outgoing, as far as they were given."""
    options = {
        name: value
        for name, value in given.items()
        if value is not None and value is not False and value != ()
    }
    if "headers" in options:
        options["headers"] = dict(options["headers"])
    return options


@click.command(
    cls=Leaf,
    examples=(
        "rmq send orders '{\"id\": 7}' --priority 900",
        "rmq send reminders '\"call back\"' --at 2030-01-31T09:00:00+01:00",
        "rmq send mail 'a plain text' --raw --header lang=en",
        "rmq send search '{\"user\": 42}' --merge-key user:42 --time-range 5s --merge last",
        "jq -c '.orders[]' day.json | rmq send orders -",
    ),
)
@click.argument("topic")
@click.argument("body", required=False)
@click.option(
    "--file", type=click.File("rb"), help="Read one body from this file; - is all of stdin."
)
@click.option("--raw", is_flag=True, help="The body is text or bytes, kept as it is, not JSON.")
@click.option(
    "--envelope", is_flag=True, help="The input has the message's options beside its body."
)
@click.option("--priority", type=int, metavar="N", help="17 to 1048575, larger first.")
@click.option("--delay", type=DURATION, help="May be taken after so long.")
@click.option("--at", type=MOMENT, help="May be taken from then on: ISO 8601 with a zone.")
@click.option("--merge-key", metavar="KEY", help="Waiting messages of one key become one.")
@click.option("--time-range", type=DURATION, help="How long a merging message waits for others.")
@click.option(
    "--merge", type=click.Choice(["first", "last", "collect"]), help="Which body stays.  [first]"
)
@click.option("--extend", is_flag=True, help="Every merge restarts the clock; needs --max-wait.")
@click.option("--max-wait", type=DURATION, help="The longest wait of an extended message.")
@click.option("--slot-basis", metavar="TEXT", help="Messages of one basis keep their order.")
@click.option("--header", "headers", type=HEADER, multiple=True, help="May be given several times.")
@click.option("--expires", type=DURATION, help="How long after it is due it may still be taken.")
@click.option("--id", type=MESSAGE_ID, help="Of an earlier attempt: nothing is added twice.")
@click.option("--dedup-key", metavar="KEY", help="Nothing is added twice under one key.")
@click.option("--durability", type=DURABILITY, help="memory, replicated[:N[:T]] or fsync[:N[:T]].")
@click.option("--timeout", type=DURATION, help="How long to wait for room in a topic that blocks.")
@click.option("--create", is_flag=True, help="Create the topic if it is missing.")
@click.option("--results", is_flag=True, help="With -: print a result for each message.")
def send(
    topic: str,
    body: str | None,
    file: BinaryIO | None,
    raw: bool,
    envelope: bool,
    durability: Any,
    timeout: float | None,
    create: bool,
    results: bool,
    **given: Any,
) -> None:
    """Send BODY to TOPIC. BODY is JSON; with - every line of stdin is one.

    Prints the id of the message, or with - a count. Lines go in batches of 1000 (or what there is,
    when a pipe pauses); blank ones are passed over. A line that cannot work stops it: its batch is
    not sent, and the message tells what was. Write -- before a BODY that begins with -.

    An envelope is an object such as {"body": ..., "priority": 20, "delay": "5m"}, with the names of
    the options and _ for -; "headers" is an object. It wins over the options.
    """
    here = session()
    options = _gather(given)
    how = {"durability": durability, "timeout": timeout}
    if (body is None) == (file is None):
        raise click.UsageError("give one of BODY, --file FILE, or - to read lines from stdin")
    stream = body == "-"
    for name, option in (("id", "--id"), ("dedup_key", "--dedup-key")):
        if stream and name in options:
            raise click.UsageError(f"{option} names one message; with - give each by --envelope")
    if results and not stream:
        raise click.UsageError("--results goes with -; a single message always prints its result")
    read = _reader(options, raw, envelope)
    if stream:
        with here.client() as client:
            _send_stream(client, _opened(client, topic, raw, create), read, how, results)
        return
    data = file.read() if file is not None else os.fsencode(body or "")
    try:
        out = read(data)
    except BadMessage as error:
        hint = "" if raw or envelope else "; quote it as JSON, or add --raw to send plain text"
        raise click.UsageError(f"body: {error}{hint}") from None
    with here.client() as client:
        result = _opened(client, topic, raw, create).send_many([out], **how)[0]
    if here.json:
        output.document(result_fields(result))
        return
    click.echo(str(result.message_id))
    here.talk(_told(result))


def _opened(client: rmq.Client, name: str, raw: bool, create: bool) -> rmq.Topic:
    found = client.topic(name, codec="bytes" if raw else "json")
    found.open(create=create)
    return found


def _told(result: rmq.SendResult) -> str:
    where = f"slot {result.slot}, offset {result.offset}"
    if result.status == "merged":
        return f"merged into the waiting message of {where}"
    if result.status == "duplicate":
        return f"duplicate: it was sent before, nothing was added ({where})"
    return f"stored in {where}"


def _send_stream(
    client: rmq.Client,
    topic: rmq.Topic,
    read: Callable[[bytes], rmq.Outgoing],
    how: dict[str, Any],
    results: bool,
) -> None:
    here = session()

    def tell(one: rmq.SendResult) -> None:
        if here.json:
            output.line(result_fields(one))
        else:
            click.echo(f"{one.message_id} {one.status}")

    source = sys.stdin.buffer
    stream = _Stream(client, topic, read, how, tell if results else None)
    try:
        with _meter(source, wanted=not (results and sys.stdout.isatty())) as moved:
            stream.run(source, moved)
    except KeyboardInterrupt:
        here.talk(stream.interrupted())
        raise
    counts = {"sent": stream.sent, **stream.counts}
    if results:
        here.talk(f"{output.plural(stream.sent, 'message')} sent")
    elif here.json:
        output.document(counts)
    else:
        told = ", ".join(
            f"{output.number(count)} {name}"
            for name, count in stream.counts.items()
            if count or name == "stored"
        )
        click.echo(f"{output.plural(stream.sent, 'message')} sent: {told}")
