"""The root command, with the common options, errors and exit codes.

A command returns its exit code (None means 0) or raises an exception. Only this module converts an
exception to one line on stderr and an exit code.

RMQ imports the module of a command when the command runs, because help and completion do not need
the module.
"""

from __future__ import annotations

import errno
import functools
import gc
import importlib
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar
from urllib.parse import parse_qs, unquote

import click
from click.shell_completion import CompletionItem

import rmq
from rmq.cli_framework.names import complete_names
from rmq.cli_framework.options import (
    COMMON_NAMES,
    CommonOptions as CommonOptions,
    common_options as common_options,
    common_params,
    json_errors,
)
from rmq.cli_framework.text import neutral
from rmq.cli_framework.watch import repeat, watch_param
from rmq.kernel.core.validation import nearest

OK, ERROR, USAGE, NOTHING, PARTLY, UNREACHABLE, REFUSED = range(7)
INTERRUPTED = 128 + signal.SIGINT
READER_GONE = 128 + 13  # SIGPIPE, which not every platform names

EPILOG = """\b
Exit codes:
  0  done
  1  error
  2  wrong usage, or an argument that cannot work
  3  nothing matched: no such topic, no such message, nothing to do
  4  partly done; the message says how far. rmq doctor: warnings, no errors
  5  Redis, or the database, cannot be reached, or did not answer
  6  refused for safety: not confirmed, or a driver runs the query
  70 a worker was stuck; see rmq worker --help
  130 stopped with Ctrl-C
  141 the reader of a pipe closed it

Data goes to stdout, everything else to stderr. With --json a command prints one
JSON document, and NDJSON (one object a line) where it lists messages: peek, tail,
dlq ls, outbox ls, send --results. Errors are then {"error": {...}} on stderr.
-o json, ndjson, csv print the same data as one document, line by line, as CSV.

Durations: 1.5 (seconds), 500ms, 30s, 5m, 2h, 1d.

Put a password in RMQ_URL, not in --url: `ps` shows arguments to other users.
RMQ_DEBUG=1 adds the traceback to an error.
"""


class Failed(Exception):
    """Ends the command with a message and an exit code.

    Args:
        message: One line that says what happened and what to do next.
        code: Exit code.
        kind: Value of `type` in the JSON error.
    """

    def __init__(self, message: str, code: int = ERROR, kind: str = "Failed") -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind


class NotFound(Failed):
    """The topic, message or record does not exist."""

    def __init__(self, message: str) -> None:
        super().__init__(message, NOTHING, "NotFound")


class Refused(Failed):
    """The command did nothing, for safety."""

    def __init__(self, message: str) -> None:
        super().__init__(message, REFUSED, "Refused")


class _ReaderGone(Exception):
    """The reader of stdout has closed the pipe."""


# --- commands and groups --------------------------------------------------------------------------


WATCHED = ("ls", "show", "groups")  # names of commands with --watch
# Commands that are recorded in the audit trail when they have ended, with the option that makes
# them change something; jobs and tokens record themselves.
ACTS = dict.fromkeys((
    "purge", "cancel", "reschedule", "priority", "dlq purge", "dlq restore", "dlq import",
    "dlq export",
    "query release", "sink forget", "schedule delete", "schedule pause", "schedule resume",
    "schedule run", "topic apply", "topic create", "topic delete", "topic pause", "topic resize",
    "topic resume", "topic set", "groups pause", "groups resume", "groups release", "groups purge",
    "batch close", "batch cancel",
), "") | {"claim": "delete", "audit": "forget"}  # fmt: skip
ACT_TEXT_MAX = 500  # characters of a command's arguments


F = TypeVar("F", bound=Callable[..., Any])


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds options to a command.

    The help of the command lists the options in this order.
    """

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


class _HelpSections:
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        others: list[tuple[str, str]] = []
        for param in self.get_params(ctx):  # type: ignore[attr-defined]
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                (others if COMMON_NAMES.intersection(param.opts) else own).append(record)
        for title, records in (("Options", own), ("Options of every command", others)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)


class Command(_HelpSections, click.Command):
    """A command with the common options, and with examples in its help.

    Args:
        examples: Lines for the help of the command.
        watch: Whether the command has the option --watch. By default, only commands named ls, show
            or groups have it.
    """

    def __init__(
        self, *args: Any, examples: Sequence[str] = (), watch: bool | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        if watch or (watch is None and self.name in WATCHED):
            self.params.append(watch_param())
        self.params += common_params()
        complete_names(self.params)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command once. With --watch, run it again and again."""
        if not gc.isenabled():
            # Modules are no garbage. To search them takes a third of the CPU time of a short
            # command: while they are imported, and again at the end.
            gc.freeze()
            gc.enable()
        options = ctx.find_root().obj
        options.settle()
        try:
            if options.watch is None:
                options.note_act = functools.partial(_note_act, ctx)
                return super().invoke(ctx)
            return repeat(lambda: super(Command, self).invoke(ctx), options, _described)
        finally:
            options.writer.finish()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples of the command."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"  {example}\n")


def _note_act(ctx: click.Context, client: rmq.Client, result: str) -> None:
    words = ctx.command_path.split()[1:]
    wanted = ACTS.get(" ".join(words))
    if wanted is None or (wanted and not ctx.params.get(wanted)) or ctx.params.get("dry_run"):
        return
    from rmq.kernel.topic.audit_trail import note_act

    given = dict(ctx.params)
    subject = str(given.pop("topic", None) or given.pop("name", ""))
    said = [f"{name}={value}" for name, value in given.items() if value and name != "yes"]
    text = ", ".join(said)[:ACT_TEXT_MAX]
    text = f"{text}: {result}" if text else result
    try:
        client._transport.run(note_act(client._prefix, None, "_".join(words), subject, text))
    except rmq.RMQError as error:
        ctx.find_root().obj.note(f"not in the audit trail: {error}")


class CommandGroup(_HelpSections, click.Group):
    """A group of commands, with the common options."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["params"] = [*(kwargs.get("params") or []), *common_params()]
        super().__init__(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order in which they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands. Each line has the first sentence of the command's help."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, c.get_short_help_str(500)) for name, c in commands if c])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command in the arguments. If there is none, suggest a similar name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = nearest(args[0], self.list_commands(ctx))
            raise click.UsageError(error.message.rstrip(".") + near, ctx) from None


# --- from an exception to an exit code -----------------------------------------------------------


def secrets(url: str | None) -> list[str]:
    """Return the passwords in a URL, in quoted and unquoted form. The URL may be malformed."""
    if not url:
        return []
    after_scheme = url.partition("://")[2] or url
    passwords = []
    user_info, at, _ = after_scheme.rpartition("@")
    if at:
        passwords.append(user_info.partition(":")[2])
    passwords += parse_qs(url.partition("?")[2]).get("password", [])
    passwords += re.findall(r"password=([^&\s]*)", url)
    forms = {form for password in passwords for form in (password, unquote(password))}
    return sorted((password for password in forms if password), key=len, reverse=True)


def redact(text: str, url: str | None) -> str:
    """Replace every password in a text by ***.

    The function hides the passwords of the given URL and of any other URL in the text.
    """
    text = re.sub(r"(://[^\s/@:]*:)[^\s/]*@", r"\1***@", text)
    text = re.sub(r"([?&]\w*password=)[^\s&]+", r"\1***", text)
    for secret in secrets(url):
        if len(secret) >= 4 and not secret.isalpha():
            text = text.replace(secret, "***")
        else:
            # A password that is a common word, such as "redis", is hidden only in the place of a
            # password. Hiding it in every sentence would reveal it.
            text = text.replace(f":{secret}@", ":***@").replace(repr(secret), "'***'")
    return text


# The first matching row counts; any other error is ERROR.
_EXIT_CODES: tuple[tuple[Any, int], ...] = (
    (click.UsageError, USAGE),
    (rmq.TopicNotFound | rmq.ScheduleNotFound | rmq.JobNotFound | rmq.BatchNotFound, NOTHING),
    (rmq.QueryOwned | rmq.TopicNotEmpty, REFUSED),
    (rmq.TopicVanished, ERROR),
    (rmq.ConfigurationError, USAGE),
    (rmq.Unavailable | rmq.OutcomeUnknown, UNREACHABLE),
)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, Failed):
        return error.code
    return next((code for kinds, code in _EXIT_CODES if isinstance(error, kinds)), ERROR)


def _is_output_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None


def _error_text(error: BaseException) -> str:
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx else "rmq"
        return f"{error.format_message().rstrip('.')}; see {where} --help"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, Failed | rmq.RMQError):
        return str(error)
    if isinstance(error, OSError):
        if _is_output_full(error):
            return (
                f"the output cannot be written: {error.strerror}; changes that the command made "
                "in Redis are kept"
            )
        return str(error)
    return (
        f"unexpected {type(error).__name__}: {error}; set RMQ_DEBUG=1 to see where, and report it"
    )


def _described(error: BaseException) -> str:
    text = redact(" ".join(_error_text(error).split()), common_options().url_known)
    return f"rmq: {neutral(text)}"


def _is_said_in_full(error: rmq.RMQError) -> bool:
    """Return whether an error text is complete and needs no link to a page."""
    return isinstance(error, ValueError | TypeError) or type(error) is rmq.ConfigurationError


def _print_error(error: BaseException, as_json: bool, url: str | None) -> int:
    code = _exit_code(error)
    text = _error_text(error)
    # The error of a filter, in which columns matter.
    with_caret = text.rpartition("\n")[2].strip() == "^"
    message = redact(text if with_caret else " ".join(text.split()), url)
    if as_json:
        kind = error.kind if isinstance(error, Failed) else type(error).__name__
        fields: dict[str, Any] = {"type": kind, "message": message, "exit": code}
        if isinstance(error, rmq.RMQError):
            fields["docs"] = error.docs
        click.echo(json.dumps({"error": fields}), err=True)
    else:
        click.echo(f"rmq: {neutral(message, lines=with_caret)}", err=True)
        if isinstance(error, rmq.RMQError) and not _is_said_in_full(error):
            click.echo(f"rmq: {error.__notes__[0]}", err=True)
    if os.environ.get("RMQ_DEBUG") == "1":
        lines = "".join(traceback.format_exception(error))
        click.echo(neutral(redact(lines, url), lines=True), err=True, nl=False)
    return code


# click 8.2 and later; earlier versions print the help of a group and exit with 0.
_NO_ARGS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


def _open_closed_streams() -> None:
    """Open the null device in place of standard streams that the caller has closed (`>&-`)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _drop_output() -> None:
    """Redirect stdout to /dev/null, so that Python can flush it at the end."""
    with open(os.devnull, "w") as sink:
        os.dup2(sink.fileno(), sys.stdout.fileno())


def _run_for_exit_code(run: Callable[[], Any], as_json: bool, url: Callable[[], str | None]) -> int:
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
        _drop_output()
        return READER_GONE
    except Exception as error:
        if _is_output_full(error):
            _drop_output()
        return _print_error(error, as_json, url())
    return result if isinstance(result, int) else OK


class LazyCommands(click.Group):
    """A group that imports each command only when it is needed."""

    entries: ClassVar[dict[str, CommandEntry]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.entries:
            return None
        if cmd_name not in self.commands:
            entry = self.entries[cmd_name]
            module, _, attribute = entry.command.partition(":")
            self.commands[cmd_name] = getattr(importlib.import_module(module), attribute)
            for each in entry.more:
                importlib.import_module(each)
        return self.commands[cmd_name]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command, or an option."""
        if incomplete[:1] == "-":
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=entry.summary)
            for name, entry in self.entries.items()
            if name.startswith(incomplete)
        ]


class RootGroup(LazyCommands, CommandGroup):
    """The root command. It converts an exception to one line of text and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and flush its output. A closed pipe then causes an error here."""
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
        """Run the command line with these arguments, and exit."""
        _open_closed_streams()
        words = list(sys.argv[1:] if args is None else args)
        state = CommonOptions()
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
        code = _run_for_exit_code(
            lambda: super(RootGroup, self).main(
                words, prog_name or "rmq", complete_var, standalone_mode=False, obj=state, **extra
            ),
            json_errors(words),
            lambda: state.url_known,
        )
        sys.exit(code)


@click.group(
    cls=RootGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(rmq.__version__, prog_name="rmq", message="%(prog)s %(version)s")
def cli() -> None:
    """RMQ: send, inspect and manage messages in Redis."""


class CommandEntry(NamedTuple):
    """The module of a command, and its summary.

    Attributes:
        command: Module and attribute, as module:attribute.
        summary: First sentence of the command's help.
        more: If the command is a group, modules that add commands to it.
    """

    command: str
    summary: str
    more: tuple[str, ...] = ()
