"""Complete names in the shell: topics, schedules, workers, and ids of messages.

If Redis is unreachable, slow, or denies access, there are no suggestions and no error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

import rmq
from rmq.cli_framework.options import CommonOptions

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:  # generic from click 8.2 on, and for type checkers only
    ParamType = click.ParamType

ANSWER_S = 0.15  # limit for one command, since the user is waiting
SUGGESTIONS_MAX = 100  # maximum number of suggestions
READ = 50  # messages that are read for ids

Read = Callable[[CommonOptions, click.Context], Iterable[tuple[str, str]]]


def choices(ctx: click.Context, incomplete: str, read: Read) -> list[CompletionItem]:
    """Return the names that begin with the typed text.

    Args:
        ctx: Context of the command that is being typed.
        incomplete: Typed beginning of the name.
        read: Function that returns the possible names and their help texts.
    """
    options = ctx.find_root().obj or CommonOptions()
    try:
        url = options.url_asked
        if url is not None and url.startswith("embedded:"):  # would start a server
            return []
        found = [
            CompletionItem(name, help=about)
            for name, about in read(options, ctx)
            if name.startswith(incomplete)
        ]
    except Exception:  # any error, even of a half-typed --url: completion must stay silent
        return []
    return found[:SUGGESTIONS_MAX]


def _client(options: CommonOptions) -> rmq.Client:
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
    group = ctx.parent.info_name if ctx.parent else None
    if group == "schedule":
        return _schedules(options, ctx)
    return _topics(options, ctx) if group == "topic" and ctx.info_name != "create" else []


def message_ids(options: CommonOptions, ctx: click.Context) -> Iterable[tuple[str, str]]:
    """Return the ids of a topic's first messages. For `rmq dlq`, use its first dead letters."""
    dead_only = ctx.parent is not None and ctx.parent.info_name == "dlq"
    with _client(options) as client:
        found = client.admin.peek(ctx.params["topic"], READ, "dead")
        if not dead_only:
            found += client.admin.peek(ctx.params["topic"], READ)
    return [(str(each.id), each.failure.error if each.failure else "") for each in found]


class Name(ParamType):
    """A type of argument that the shell completes with names from Redis."""

    name = "text"

    def __init__(self, read: Read) -> None:
        self._read = read

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin with the text that the user has typed."""
        return choices(ctx, incomplete, self._read)


# By parameter name, so that commands get completion automatically.
_TYPES = {
    "topic": Name(_topics), "topics": Name(_topics), "of_topic": Name(_topics),
    "worker": Name(_workers), "name": Name(_named),
}  # fmt: skip


def complete_names(params: Iterable[click.Parameter]) -> None:
    """Let the shell complete parameters with usual names, such as `topic` or `id`."""
    for param in params:
        if param.type is click.STRING and param.name in _TYPES:
            param.type = _TYPES[param.name]
