"""`rmq send`: send a message from an argument or a file, or many messages from stdin.

Input is JSON, raw bytes or an envelope. In a stream (`rmq send TOPIC -`), the command reads and
checks a batch of lines before it sends the batch. A bad line stops the stream, and its batch is not
sent. The error then names the line at which to continue.
"""

from __future__ import annotations

import json
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, BinaryIO

import click

import rmq
from rmq.cli_framework import output, text as terminal_text
from rmq.cli_framework.app import ERROR, PARTLY, UNREACHABLE, USAGE, Command, Failed
from rmq.cli_framework.confirm import bar
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import (
    DURABILITY,
    DURATION,
    HEADER,
    MESSAGE_ID,
    MESSAGE_TYPE,
    MOMENT,
    moment,
)
from rmq.kernel.core import process
from rmq.kernel.core.validation import parse_duration


def result_fields(result: rmq.SendResult) -> dict[str, Any]:
    """Return the JSON fields of a result."""
    return terminal_text.fields(result, "id", "status", "into", "slot", "offset", "durable")


def _outgoing_options(given: dict[str, Any]) -> dict[str, Any]:
    options = {
        name: value
        for name, value in given.items()
        if value is not None and value is not False and value != ()
    }
    if "headers" in options:
        options["headers"] = dict(options["headers"])
    return options


@click.command(
    cls=Command,
    examples=(
        "rmq send orders '{\"id\": 7}' --priority 900",
        "rmq send reminders '\"call back\"' --at 2030-01-31T09:00:00+01:00",
        "rmq send mail 'a plain text' --raw --header lang=en",
        "rmq send orders '{\"id\": 7}' --type order.refunded",
        "rmq send orders '{\"id\": 7}' --group customer-42",
        "rmq send search '{\"user\": 42}' --merge-key 42 --time-range 5s",
        "jq -c '.orders[]' day.json | rmq send orders -",
    ),
)
@click.argument("topic")
@click.argument("body", required=False)
@click.option(
    "--file", type=click.File("rb"), help="Read a single body from this file; - is stdin."
)
@click.option("--raw", is_flag=True, help="The body is plain text or bytes, not JSON.")
@click.option("--envelope", is_flag=True, help="The input is an object with the body and options.")
@click.option("--priority", type=int, metavar="N", help="17 to 1048575, larger first.")
@click.option("--delay", type=DURATION, help="Delay until the message is due.")
@click.option("--at", type=MOMENT, help="Due time: ISO 8601 with a zone.")
@click.option("--merge-key", metavar="KEY", help="Waiting messages with the same key become one.")
@click.option("--time-range", type=DURATION, help="How long a merging message waits for others.")
@click.option(
    "--merge", type=click.Choice(["first", "last", "collect"]), help="Body to keep.  [first]"
)
@click.option("--extend", is_flag=True, help="Every merge restarts --time-range; needs --max-wait.")
@click.option("--max-wait", type=DURATION, help="The longest wait with --extend.")
@click.option(
    "--slot-basis", metavar="TEXT", help="Messages with the same basis go to the same slot."
)
@click.option("--header", "headers", type=HEADER, multiple=True, help="Repeatable.")
@click.option("--expires", type=DURATION, help="Time after its due time until it expires.")
@click.option(
    "--id", type=MESSAGE_ID, help="Id of an earlier attempt: a repeated send adds nothing."
)
@click.option("--dedup-key", metavar="KEY", help="A repeated send with the same key adds nothing.")
@click.option("--max-runtime", type=DURATION, help="Time limit for a run of its handler.")
@click.option("--keep-result", type=DURATION, help="Time for which its result is kept.")
@click.option("--type", type=MESSAGE_TYPE, help="Type that selects the handler of a worker.")
@click.option(
    "--group", metavar="NAME", help="Group whose messages go in order: see topic --groups."
)
@click.option("--share-key", metavar="NAME", help="Tenant of the message (default: its group).")
@click.option("--weight", type=int, metavar="N", help="1 to 64: relative share of the group.")
@click.option("--durability", type=DURABILITY, help="memory, replicated[:N[:T]] or fsync[:N[:T]].")
@click.option("--timeout", type=DURATION, help="Longest wait for room, with overflow block.")
@click.option("--create", is_flag=True, help="Create the topic if it is missing.")
@click.option("--results", is_flag=True, help="With -: print the result of each message.")
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
    **given_options: Any,
) -> None:
    """Send BODY to TOPIC. BODY is JSON. With -, every line of stdin is a BODY.

    The command prints the id of the message. With -, it prints the number of messages. It sends
    lines in batches of 1000, or in smaller batches if the input pauses. It skips blank lines. If a
    line is not valid, its batch is not sent, and the error names the last line that was sent. Write
    -- before a BODY that starts with -.

    An envelope is an object such as {"body": ..., "priority": 20, "delay": "5m"}. Its fields are
    named like the options, with _ instead of -. A field overrides an option. "headers" is an
    object.
    """
    common = common_options()
    options = _outgoing_options(given_options)
    send_options = {"durability": durability, "timeout": timeout}
    if (body is None) == (file is None):
        raise click.UsageError(
            "use exactly one of BODY, --file FILE, or - to read lines from stdin"
        )
    stream = body == "-"
    for name, option in (("id", "--id"), ("dedup_key", "--dedup-key")):
        if stream and name in options:
            raise click.UsageError(f"{option} is for one message; with - use --envelope")
    if results and not stream:
        raise click.UsageError("--results is for -; a single message always prints its result")
    read = body_reader(options, raw, envelope)
    if stream:
        with common.client() as client:
            _send_stream(
                client, _open_topic(client, topic, raw, create), read, send_options, results
            )
        return
    data = file.read() if file is not None else os.fsencode(body or "")
    try:
        outgoing = read(data)
    except BadMessage as error:
        hint = "" if raw or envelope else "; quote it as JSON, or add --raw to send plain text"
        raise click.UsageError(f"body: {error}{hint}") from None
    with common.client() as client:
        result = _open_topic(client, topic, raw, create).send_many([outgoing], **send_options)[0]
    common.report(result_fields(result), str(result.message_id))
    common.note(_result_text(result))


def _open_topic(client: rmq.Client, name: str, raw: bool, create: bool) -> rmq.Topic:
    topic = client.topic(name, codec="bytes" if raw else "json")
    topic.open(create=create)
    return topic


def _result_text(result: rmq.SendResult) -> str:
    where = f"slot {result.slot}, offset {result.offset}"
    if result.status == "merged":
        return f"merged into the waiting message of {where}"
    if result.status == "duplicate":
        return f"duplicate: the message was sent before, nothing was added ({where})"
    return f"stored in {where}"


def _send_stream(
    client: rmq.Client,
    topic: rmq.Topic,
    read: Callable[[bytes], rmq.Outgoing],
    send_options: dict[str, Any],
    results: bool,
) -> None:
    common = common_options()

    def tell(result: rmq.SendResult) -> None:
        if common.json:
            output.line(result_fields(result))
        else:
            click.echo(f"{result.message_id} {result.status}")

    source = sys.stdin.buffer
    stream = Stream(client, topic, read, send_options, tell if results else None)
    try:
        with bar("sending", not (results and sys.stdout.isatty())) as on_progress:
            stream.run(source, lambda sent: on_progress(sent, None))
    except KeyboardInterrupt:
        common.note(stream.interrupted())
        raise
    counts = {"sent": stream.sent, **stream.counts}
    if results:
        common.note(f"{terminal_text.plural(stream.sent, 'message')} sent")
    elif common.json:
        output.document(counts)
    else:
        text = ", ".join(
            f"{terminal_text.number(count)} {name}"
            for name, count in stream.counts.items()
            if count or name == "stored"
        )
        click.echo(f"{terminal_text.plural(stream.sent, 'message')} sent: {text}")


DURATIONS = ("delay", "time_range", "max_wait", "expires", "max_runtime", "keep_result")
FIELDS = tuple(field.name for field in fields(rmq.Outgoing))


class BadMessage(ValueError):
    """Raised if the input is not a message."""


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _parse_json(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise BadMessage(f"not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")  # some messages of json continue with the position
        raise BadMessage(f"not JSON: {what} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"not JSON: {error}") from None


def _read_envelope(data: bytes, options: dict[str, Any], raw: bool) -> rmq.Outgoing:
    envelope = _parse_json(data)
    if not isinstance(envelope, dict):
        raise BadMessage('an envelope is an object, for example {"body": ..., "priority": 20}')
    if raw and "body_text" in envelope:
        envelope["body"] = envelope.pop("body_text")
    if raw and "body_hex" in envelope:
        try:
            envelope["body"] = bytes.fromhex(envelope.pop("body_hex"))
        except (ValueError, TypeError):
            raise BadMessage("body_hex: not hexadecimal digits") from None
    unknown = sorted(set(envelope) - set(FIELDS))
    if unknown:
        raise BadMessage(
            f"{unknown[0]!r} is not a field of a message; the fields are {', '.join(FIELDS)}"
        )
    if "body" not in envelope:
        raise BadMessage("the envelope has no body")
    body = envelope.pop("body")
    if raw and isinstance(body, str):
        body = body.encode(errors="surrogatepass")
    if raw and not isinstance(body, bytes):
        raise BadMessage(f"body: with --raw it must be a string, not {type(body).__name__}")
    try:
        for name in DURATIONS:
            if isinstance(envelope.get(name), str):
                envelope[name] = parse_duration(envelope[name])
        if isinstance(envelope.get("at"), str):
            envelope["at"] = moment(envelope["at"])
    except ValueError as error:
        raise BadMessage(str(error)) from None
    envelope_options = {name: value for name, value in envelope.items() if value is not None}
    if "at" in envelope_options or "delay" in envelope_options:  # replaces the options' time
        options = {key: value for key, value in options.items() if key not in ("at", "delay")}
    return rmq.Outgoing(body, **(options | envelope_options))


def body_reader(
    options: dict[str, Any], raw: bool, envelope: bool
) -> Callable[[bytes], rmq.Outgoing]:
    """Return a function that parses a message with these options."""
    if envelope:
        return lambda data: _read_envelope(data, options, raw)
    if raw:
        return lambda data: rmq.Outgoing(data, **options)
    return lambda data: rmq.Outgoing(_parse_json(data), **options)


BATCH = 1000
PIPE_WAIT_S = 0.2  # longest wait of a batch for the next line of a slow pipe


def _lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """Yield lines without line ends. Yield None if the next line has not arrived yet."""
    try:
        number = stream.fileno()
        slow = not stat.S_ISREG(os.fstat(number).st_mode) and process.FORKS
    except (OSError, ValueError, AttributeError):
        number, slow = -1, False
    if not slow:
        for line in stream:
            yield line.rstrip(b"\r\n")
        return
    partial: list[bytes] = []  # beginning of a line that is not complete
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
    """A stream of messages: the current batch, and the results of earlier batches."""

    client: rmq.Client
    topic: rmq.Topic
    read: Callable[[bytes], rmq.Outgoing]
    how: dict[str, Any]
    tell: Callable[[rmq.SendResult], None] | None
    sent: int = 0
    last_sent_line: int = 0
    sending: bool = False  # whether the batch is being sent
    counts: dict[str, int] = field(
        default_factory=lambda: {"stored": 0, "merged": 0, "duplicate": 0}
    )
    lines: list[int] = field(default_factory=list)
    batch: list[rmq.Outgoing] = field(default_factory=list)

    def run(self, stream: BinaryIO, progressed: Callable[[int], None]) -> None:
        """Send all lines of the stream."""
        number = 0
        for line in _lines(stream):
            if line is None:
                self.flush()
                progressed(self.sent)
                continue
            number += 1
            if not line.strip():
                continue
            try:
                self.batch.append(self.read(line))
            except BadMessage as error:
                raise self._bad(number, str(error), USAGE) from None
            self.lines.append(number)
            if len(self.batch) == BATCH:
                self.flush()
                progressed(self.sent)
        self.flush()
        progressed(self.sent)

    def flush(self) -> None:
        """Send the current batch."""
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
            # Messages are checked while they are read, so reading stops at a bad message.
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
            f"{terminal_text.plural(self.sent, 'message')} before it "
            f"{'was' if self.sent == 1 else 'were'} sent (to line {self.last_sent_line})"
        )

    def interrupted(self) -> str:
        """Return the text to print after Ctrl-C."""
        text = f"stopped: {terminal_text.plural(self.sent, 'message')} sent"
        if self.sending:
            text += f" and possibly some of the lines {self.lines[0]} to {self.lines[-1]}"
        next_line = self.last_sent_line + 1
        return f"{text}; continue from line {next_line}: tail -n +{next_line}"

    def _bad(self, line: int, why: str, code: int) -> Failed:
        hint = (
            f", none from line {self.last_sent_line + 1} on; correct it and continue from there: "
            f"tail -n +{self.last_sent_line + 1}"
            if self.sent
            else ""
        )
        return Failed(
            f"line {line}: {why}; {self._so_far()}{hint}", PARTLY if self.sent else code, "BadLine"
        )

    def _stopped(self, error: rmq.RMQError) -> Failed:
        results = [result for result in getattr(error, "results", []) if result is not None]
        where = f"lines {self.lines[0]} to {self.lines[-1]}"
        so_far = self._so_far()
        if isinstance(error, rmq.OutcomeUnknown):
            batch_outcome = f"some or all of {where} may have been sent"
            code = UNREACHABLE
        elif isinstance(error, rmq.Unavailable):
            batch_outcome = f"{where} were not sent"
            code = UNREACHABLE
        else:
            batch_outcome = (
                f"of {where}, {terminal_text.plural(len(results), 'message')} went through"
            )
            self._count(results)
            code = PARTLY if self.sent else ERROR
        return Failed(f"{where}: {error}; {so_far}; {batch_outcome}", code, type(error).__name__)
