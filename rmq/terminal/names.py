"""Types of arguments that the shell completes: topics, schedules, workers, ids of messages.

Completion is silent: where Redis is away or slow, or denies it, there is nothing to choose from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from rmq.terminal.options import CommonOptions

if TYPE_CHECKING:
    import rmq

    ParamType = click.ParamType[Any]
else:  # generic from click 8.2 on, and for type checkers only
    ParamType = click.ParamType

ANSWER_S = 0.15  # of one command; a person presses Tab and waits
MOST = 100  # names to choose from
READ = 50  # messages of which the ids are offered

Read = Callable[[CommonOptions, click.Context], Iterable[tuple[str, str]]]


def choices(ctx: click.Context, incomplete: str, read: Read) -> list[CompletionItem]:
    """Return the names that begin with what was typed.

    Args:
        ctx: of the command that is typed.
        incomplete: what was typed of the name.
        read: returns names, each with a help text.
    """
    options = ctx.find_root().obj or CommonOptions()
    try:
        url = options.url_asked
        if url is not None and url.startswith("embedded:"):  # it would start a server
            return []
        found = [
            CompletionItem(name, help=about)
            for name, about in read(options, ctx)
            if name.startswith(incomplete)
        ]
    except Exception:  # a half-typed --url, too; whatever it is, this is no place to say it
        return []
    return found[:MOST]


def _client(options: CommonOptions) -> rmq.Client:
    import rmq

    prefix = options.key_prefix
    return rmq.Client(options.url_asked, prefix=prefix, retry_for=0, timeout=ANSWER_S)


def _topics(options: CommonOptions, ctx: click.Context) -> Iterable[tuple[str, str]]:
    with _client(options) as client:
        return [(name, "") for name in client.admin.topics()]


def _schedules(options: CommonOptions, ctx: click.Context) -> Iterable[tuple[str, str]]:
    with _client(options) as client:
        return [(state.name, "") for state in client.admin.schedules(ctx.params["topic"])]


def _workers(options: CommonOptions, ctx: click.Context) -> Iterable[tuple[str, str]]:
    with _client(options) as client:
        workers = client.admin.workers()
    return [(each.id, f"{each.host} {' '.join(each.topics)}") for each in workers]


def _named(options: CommonOptions, ctx: click.Context) -> Iterable[tuple[str, str]]:
    """Names of what the group of the command is about."""
    group = ctx.parent.info_name if ctx.parent else None
    if group == "schedule":
        return _schedules(options, ctx)
    return _topics(options, ctx) if group == "topic" and ctx.info_name != "create" else []


def message_ids(options: CommonOptions, ctx: click.Context) -> Iterable[tuple[str, str]]:
    """Ids of a topic's first messages: dead letters for rmq dlq, else those that wait, too."""
    dead_only = ctx.parent is not None and ctx.parent.info_name == "dlq"
    with _client(options) as client:
        found = client.admin.peek(ctx.params["topic"], READ, "dead")
        if not dead_only:
            found += client.admin.peek(ctx.params["topic"], READ)
    return [(str(each.id), each.failure.error if each.failure else "") for each in found]


class Name(ParamType):
    """A text that the shell completes from what Redis has."""

    name = "text"

    def __init__(self, read: Read) -> None:
        self._read = read

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin with what was typed."""
        return choices(ctx, incomplete, self._read)


# By the name of the parameter; every command has them without doing anything.
_TYPES = {
    "topic": Name(_topics), "topics": Name(_topics), "of_topic": Name(_topics),
    "worker": Name(_workers), "name": Name(_named),
}  # fmt: skip


def complete_names(params: Iterable[click.Parameter]) -> None:
    """Let the shell complete the parameters whose names say what they are."""
    for param in params:
        if param.type is click.STRING and param.name in _TYPES:
            param.type = _TYPES[param.name]
