"""The options that every command takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, cast

import click

import rmq
from rmq.cli_framework import output
from rmq.cli_framework.output import FORMATS, Format, RecordWriter
from rmq.cli_framework.tables import Column
from rmq.cli_framework.text import neutral
from rmq.kernel.core.environment import variable
from rmq.kernel.core.validation import nearest

F = TypeVar("F", bound=Callable[..., Any])

RETRY_FOR_S = 2.0  # short: a person waits for the answer
REPLY_S = 5.0  # includes the time to connect; RMQ's commands themselves take milliseconds


@dataclass
class CommonOptions:
    """The options that every command takes.

    Attributes:
        url, prefix: Values of the options, or None.
        as_json: Whether the user has passed --json.
        output: Format of the option -o, or None.
        columns: Columns of the option --columns, or None.
        watch: Seconds of the option --watch, or None.
        writer: Writer of the records.
        seen: State that a command with --watch keeps for its next run.
        open_client: Client of a command with --watch. It stays open between the runs of the
            command.
        file: Settings of Redis in the configuration file. None until the file is read.
        note_act: Function that records the command and its result in the audit trail.
    """

    url: str | None = None
    prefix: str | None = None
    as_json: bool = False
    output: Format | None = None
    columns: Sequence[str] | None = None
    watch: float | None = None
    writer: RecordWriter = field(default_factory=RecordWriter)
    seen: dict[str, Any] = field(default_factory=dict)
    open_client: rmq.Client | None = None
    file: dict[str, str] | None = None
    note_act: Callable[[rmq.Client, str], None] = lambda client, result: None

    @property
    def json(self) -> bool:
        """Whether to print JSON or CSV for programs instead of tables."""
        return self.as_json or self.output not in (None, "table")

    @property
    def url_asked(self) -> str | None:
        """The URL from --url, from RMQ_URL or from the configuration file, or None."""
        return self.url or variable("RMQ_URL") or self._in_file("url")

    @property
    def url_known(self) -> str | None:
        """The URL for error messages, or None. This does not read the configuration file."""
        return self.url or variable("RMQ_URL") or (self.file or {}).get("url")

    @property
    def key_prefix(self) -> str:
        """The prefix of all keys and channels in Redis."""
        return self.prefix or variable("RMQ_PREFIX") or self._in_file("prefix") or "rmq"

    def _in_file(self, name: str) -> str | None:
        if self.file is None:
            from rmq.cli_framework import config_file

            self.file = config_file.read_where()
        return self.file.get(name)

    @contextmanager
    def client(self) -> Iterator[rmq.Client]:
        """Open a client for the duration of a command."""
        if self.open_client is not None:
            yield self.open_client
            return
        with rmq.Client(
            self.url_asked, prefix=self.key_prefix, retry_for=RETRY_FOR_S, timeout=REPLY_S
        ) as client:
            try:
                yield client
                self.note_act(client, "done")
            except KeyboardInterrupt:
                self.note_act(client, "interrupted")
                raise
            except rmq.TopicNotFound as error:
                name = str(error).partition("'")[2].partition("'")[0]
                near = nearest(name, client.admin.topics())
                what, semicolon, remedy = str(error).partition(";")
                raise rmq.TopicNotFound(f"{what}{near}{semicolon}{remedy}") from error

    def note(self, text: str) -> None:
        """Print a note on stderr. If the command prints JSON or CSV, print nothing."""
        if not self.json:
            click.echo(neutral(text), err=True)

    def report(self, record: Any, text: str) -> None:
        """Print the result of a command: JSON or CSV for programs, a line for people."""
        if self.json:
            output.document(record)
        else:
            click.echo(text)

    def listing(
        self,
        records: Sequence[Any],
        columns: Sequence[Column],
        rows: Sequence[Sequence[str]],
        none: str | None = None,
    ) -> None:
        """Print a list: JSON or CSV for programs, a table for people.

        If the list is empty, print the text in `none` instead of a table.
        """
        if self.json:
            output.document(records)
        elif rows or none is None:
            output.table(columns, rows)
        else:
            self.note(none)

    def details(self, record: Any, pairs: Sequence[tuple[str, str]]) -> None:
        """Print an object: JSON or CSV for programs, names and values for people."""
        if self.json:
            output.document(record)
        else:
            output.details(pairs)

    def settle(self) -> None:
        """Check that the options fit together, and configure the output of records."""
        if self.as_json and self.output is not None:
            raise click.UsageError("--json and -o: use only one of them")
        if self.columns is not None and (self.as_json or self.output in ("json", "ndjson")):
            raise click.UsageError("--columns: only for tables and -o csv")
        self.writer.format = self.output
        self.writer.columns = self.columns
        self.writer.repeating = self.watch is not None


def common_options() -> CommonOptions:
    """Return the common options of the running command."""
    options = click.get_current_context().find_root().obj
    assert isinstance(options, CommonOptions)
    return options


def store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Store the value of a common option."""
    root = ctx.find_root()
    if root.obj is None:
        root.obj = CommonOptions()
    if value is not None and value is not False:
        setattr(root.obj, str(param.name), value)


def _store_columns(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    names = None if value is None else [name for name in map(str.strip, value.split(",")) if name]
    if names == []:
        raise click.BadParameter("name at least one", ctx, param)
    store(ctx, param, names)


def common_params() -> list[click.Parameter]:
    """Return the options that every command takes."""

    def common(*names: str, callback: Any = store, **given: Any) -> click.Option:
        return click.Option(names, callback=callback, expose_value=False, is_eager=True, **given)

    url_help = "Where Redis is. Env RMQ_URL; default redis://localhost:6379/0."
    prefix_help = "First part of every key. Env RMQ_PREFIX; default rmq."
    output_help = "Print data as table, json, ndjson or csv."
    columns_help = "Columns of tables and csv to print, in this order."
    return [
        common("--url", metavar="URL", help=url_help),
        common("--prefix", metavar="WORD", help=prefix_help),
        common("--json", "as_json", is_flag=True, help="Print JSON for programs."),
        common("-o", "--output", type=click.Choice(FORMATS), metavar="FORMAT", help=output_help),
        common("--columns", metavar="A,B", help=columns_help, callback=_store_columns),
    ]


COMMON_NAMES = frozenset(
    ("--url", "--prefix", "--json", "--output", "--columns", "--help", "--version")
)


def json_errors(words: Sequence[str]) -> bool:
    """Return whether the arguments request JSON. The other arguments may be wrong."""
    for position, word in enumerate(words):
        if word in ("-o", "--output"):
            word = f"-o{''.join(words[position + 1 : position + 2])}"
        if word in ("--json", "-ojson", "-ondjson", "--output=json", "--output=ndjson"):
            return True
    return False


def filter_argument(command: F) -> F:
    """Add a filter of messages to a command: the argument FILTER and the option --filter.

    A user may give one of the two. The function of the command gets the parsed filter as the
    keyword `wanted`. If the user gives no filter or an empty filter, `wanted` is None.
    """
    from rmq.kernel.topic.filter import parse  # most commands need no filter

    @wraps(command)
    def with_filter(filter_text: str | None, filter_option: str | None, **given: Any) -> Any:
        if filter_text is not None and filter_option is not None:
            raise click.UsageError("use FILTER or --filter, not both")
        text = filter_text if filter_text is not None else filter_option
        wanted = None if text is None or not text.strip() else parse(text)
        return command(wanted=wanted, **given)

    option = click.option("--filter", "filter_option", metavar="FILTER", help="As FILTER.")
    argument = click.argument("filter_text", metavar="[FILTER]", required=False)
    return cast("F", argument(option(with_filter)))
