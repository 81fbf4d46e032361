"""Commands whose modules are imported when they are used: help and completion need none of them."""

from __future__ import annotations

import importlib
from typing import ClassVar, NamedTuple

import click
from click.shell_completion import CompletionItem


class Place(NamedTuple):
    """Where a command is.

    Attributes:
        command: module:attribute.
        summary: the first sentence of its help.
        more: modules that add commands to it.
    """

    command: str
    summary: str
    more: tuple[str, ...] = ()


class LazyCommands(click.Group):
    """The part of a group that knows where its commands are."""

    places: ClassVar[dict[str, Place]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.places:
            return None
        if cmd_name not in self.commands:
            place = self.places[cmd_name]
            module, _, attribute = place.command.partition(":")
            self.commands[cmd_name] = getattr(importlib.import_module(module), attribute)
            for each in place.more:
                importlib.import_module(each)
        return self.commands[cmd_name]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.summary) for name, place in self.places.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command, or an option."""
        if incomplete[:1] == "-":
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=place.summary)
            for name, place in self.places.items()
            if name.startswith(incomplete)
        ]
