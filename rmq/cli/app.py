"""The root of the command line: options that hold everywhere, errors, exit codes.

A command returns its exit code (None is 0) or raises; what it raises becomes one line on stderr
here, and nowhere else.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

import click

import rmq
from rmq.cli.output import neutral

OK, ERROR, USAGE, NOTHING, PARTLY, UNREACHABLE, REFUSED = range(7)
INTERRUPTED = 128 + signal.SIGINT
READER_GONE = 128 + 13  # SIGPIPE, which not every platform names

RETRY_FOR_S = 2.0  # a person waits for the answer
REPLY_S = 5.0  # as long as a connection may take; what RMQ asks of a server takes ms

EPILOG = """\b
Exit codes:
  0  done
  1  error
  2  wrong usage, or an argument that cannot work
  3  nothing matched: no such topic, no such message, nothing to do
  4  partly done; the message says how far
  5  Redis, or the database, cannot be reached, or did not answer
  6  refused for safety: nobody confirmed, or a driver runs the query
  70 a worker that was stuck; see rmq worker --help
  130 stopped with Ctrl-C
  141 the reader of a pipe went away

\b
Data goes to stdout, everything else to stderr. With --json a command prints one
JSON document, and NDJSON (one object a line) where it lists messages: peek,
tail, dlq ls, outbox ls, send --results. Errors are then {"error": {...}} on stderr.
Durations: 1.5 (seconds), 500ms, 30s, 5m, 2h, 1d.

\b
RMQ_URL is a better place for a password than --url, which `ps` shows to others.
RMQ_DEBUG=1 adds the traceback to an error.
"""


class Failed(Exception):
    """A command ends with this message and exit code.

    Args:
        message: what happened and what to do next; one line.
        code: the exit code.
        kind: the `type` of the JSON error.
    """

    def __init__(self, message: str, code: int = ERROR, kind: str = "Failed") -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind


class NotFound(Failed):
    """What was named, or looked for, is not there."""

    def __init__(self, message: str) -> None:
        super().__init__(message, NOTHING, "NotFound")


class Refused(Failed):
    """Nobody confirmed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, REFUSED, "Refused")


class _ReaderGone(Exception):
    """Nobody reads our stdout any more."""


@dataclass
class Session:
    """The options that hold everywhere."""

    url: str | None = None
    prefix: str | None = None
    json: bool = False

    @property
    def address(self) -> str | None:
        """The URL asked for; None: RMQ's default."""
        return self.url or os.environ.get("RMQ_URL") or None

    @property
    def shown_prefix(self) -> str:
        """The prefix of all keys and channels."""
        return self.prefix or os.environ.get("RMQ_PREFIX") or "rmq"

    @contextmanager
    def client(self) -> Iterator[rmq.Client]:
        """A client for the time of a command."""
        with rmq.Client(
            self.address, prefix=self.shown_prefix, retry_for=RETRY_FOR_S, timeout=REPLY_S
        ) as client:
            yield client

    def talk(self, text: str) -> None:
        """Say something beside the data; not where a program is reading."""
        if not self.json:
            click.echo(neutral(text), err=True)


def session() -> Session:
    """The session of the running command."""
    found = click.get_current_context().find_root().obj
    assert isinstance(found, Session)
    return found


# --- options that hold everywhere ----------------------------------------------------------------


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    root = ctx.find_root()
    if root.obj is None:
        root.obj = Session()
    if value is not None and value is not False:
        setattr(root.obj, str(param.name), value)


def _everywhere() -> list[click.Parameter]:
    told: dict[str, Any] = {"expose_value": False, "callback": _keep, "is_eager": True}
    return [
        click.Option(
            ["--url"],
            metavar="URL",
            help="Where Redis is. Env RMQ_URL; default redis://localhost:6379/0.",
            **told,
        ),
        click.Option(
            ["--prefix"],
            metavar="WORD",
            help="First part of every key. Env RMQ_PREFIX; default rmq.",
            **told,
        ),
        click.Option(["--json"], is_flag=True, help="Print JSON for programs.", **told),
    ]


_EVERYWHERE = frozenset(("--url", "--prefix", "--json", "--help", "--version"))


class _Sections:
    """Help with a command's own options first, those of all commands after them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        others: list[tuple[str, str]] = []
        for param in self.get_params(ctx):  # type: ignore[attr-defined]
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                (others if _EVERYWHERE.intersection(param.opts) else own).append(record)
        for title, records in (("Options", own), ("Options of every command", others)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)


class Leaf(_Sections, click.Command):
    """A command; knows the options that hold everywhere, and shows examples of its use."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        kwargs["params"] = [*(kwargs.get("params") or []), *_everywhere()]
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples."""
        if self.examples:
            with formatter.section("Examples"):
                for one in self.examples:
                    formatter.write(f"  {one}\n")


class Branch(_Sections, click.Group):
    """A group of commands; knows the options that hold everywhere."""

    command_class = Leaf

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["params"] = [*(kwargs.get("params") or []), *_everywhere()]
        super().__init__(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they were added, which is the order of a working day."""
        return list(self.commands)


# --- from what a command raises to an exit code --------------------------------------------------


def secrets(url: str | None) -> list[str]:
    """The passwords in a URL, as written and as meant, however badly the URL is written."""
    if not url:
        return []
    rest = url.partition("://")[2] or url
    found = []
    user_info, at, _ = rest.rpartition("@")
    if at:
        found.append(user_info.partition(":")[2])
    found += parse_qs(url.partition("?")[2]).get("password", [])
    found += re.findall(r"password=([^&\s]*)", url)
    both = {form for one in found for form in (one, unquote(one))}
    return sorted((one for one in both if one), key=len, reverse=True)


def scrub(text: str, url: str | None) -> str:
    """A text without the passwords of the URL, nor that of any other URL in it."""
    text = re.sub(r"(://[^\s/@:]*:)[^\s/]*@", r"\1***@", text)
    text = re.sub(r"([?&]password=)[^\s&]+", r"\1***", text)
    for secret in secrets(url):
        if len(secret) >= 4 and not secret.isalpha():
            text = text.replace(secret, "***")
        else:
            # A word such as "redis" is hidden where it is the password: elsewhere it stands for
            # itself, and to cut it out of sentences would make them unreadable and give it away.
            text = text.replace(f":{secret}@", ":***@").replace(repr(secret), "'***'")
    return text


def _code(error: BaseException) -> int:
    if isinstance(error, Failed):
        return error.code
    if isinstance(error, click.UsageError):
        return USAGE
    if isinstance(error, rmq.TopicNotFound):
        return NOTHING
    if isinstance(error, rmq.QueryOwned | rmq.TopicNotEmpty):
        return REFUSED
    if isinstance(error, rmq.TopicVanished):
        return ERROR
    if isinstance(error, rmq.ConfigurationError):
        return USAGE
    if isinstance(error, rmq.Unavailable | rmq.OutcomeUnknown):
        return UNREACHABLE
    return ERROR


def _message(error: BaseException) -> str:
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx else "rmq"
        return f"{error.format_message().rstrip('.')}; see {where} --help"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, Failed | rmq.RMQError):
        return str(error)
    if isinstance(error, OSError):
        return str(error)
    return (
        f"unexpected {type(error).__name__}: {error}; set RMQ_DEBUG=1 to see where, and report it"
    )


def _tell(error: BaseException, as_json: bool, url: str | None) -> int:
    """Print an error; its exit code."""
    code = _code(error)
    message = scrub(" ".join(_message(error).split()), url)
    if as_json:
        kind = error.kind if isinstance(error, Failed) else type(error).__name__
        told = {"error": {"type": kind, "message": message, "exit": code}}
        click.echo(json.dumps(told), err=True)
    else:
        click.echo(f"rmq: {neutral(message)}", err=True)
    if os.environ.get("RMQ_DEBUG") == "1":
        lines = "".join(traceback.format_exception(error))
        click.echo(neutral(scrub(lines, url), lines=True), err=True, nl=False)
    return code


# click 8.2 and later; before, a group without arguments prints its help and exits with 0.
_NO_ARGS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


def _guarded(run: Callable[[], Any], as_json: bool, url: Callable[[], str | None]) -> int:
    try:
        result = run()
    except _NO_ARGS as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except click.Abort as error:
        return INTERRUPTED if isinstance(error.__cause__, KeyboardInterrupt) else ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except _ReaderGone:
        # What is still in the buffer has no reader: let the last flush of the interpreter pass.
        with open(os.devnull, "w") as sink:
            os.dup2(sink.fileno(), sys.stdout.fileno())
        return READER_GONE
    except Exception as error:
        return _tell(error, as_json, url())
    return result if isinstance(result, int) else OK


class Root(Branch):
    """The root group; turns what a command raises into a line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and flush, so that a reader who left is noticed here."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise _ReaderGone from error
        return result

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> None:
        """Run with these arguments, and exit."""
        words = list(sys.argv[1:] if args is None else args)
        state = Session()
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
        code = _guarded(
            lambda: super(Root, self).main(
                words, prog_name or "rmq", complete_var, standalone_mode=False, obj=state, **extra
            ),
            "--json" in words,
            lambda: state.address,
        )
        sys.exit(code)


@click.group(
    cls=Root,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(rmq.__version__, prog_name="rmq", message="%(prog)s %(version)s")
def cli() -> None:
    """RMQ: send, look at and look after messages in Redis."""
