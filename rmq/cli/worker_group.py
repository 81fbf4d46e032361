"""The group `rmq worker`: `rmq worker MODULE` is short for `rmq worker run MODULE`."""

from __future__ import annotations

import click

from rmq.cli.worker import worker as run
from rmq.features.workers.cli import list_workers, show
from rmq.terminal.app import CommandGroup

_WITH_VALUE = ("--url", "--prefix")  # common options whose value may be the next word


class _WorkerGroup(CommandGroup):
    """A group that runs handlers where no other command is named; its help is that of `run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Add `run`, unless a command of this group follows the common options."""
        words = iter(args)
        for word in words:
            if word in _WITH_VALUE:
                next(words, None)
            elif word in self.commands or (word in ("-h", "--help") and word == args[0]):
                return super().parse_args(ctx, args)
            elif word != "--json" and not word.startswith(tuple(f"{o}=" for o in _WITH_VALUE)):
                break
        return super().parse_args(ctx, ["run", *args])

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of `run`, and the other commands."""
        run.format_help(ctx, formatter)
        self.format_commands(ctx, formatter)


worker = _WorkerGroup("worker", help="Run handlers, or list the processes that run them.")
worker.add_command(run)
worker.add_command(list_workers)
worker.add_command(show)
