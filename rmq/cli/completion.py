"""`rmq completion`: the script that lets a shell complete rmq's commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from rmq.cli.app import Command

SHELLS: dict[str, type[ShellComplete]] = {
    "bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete,
}  # fmt: skip


@click.command(
    cls=Command,
    examples=(
        'eval "$(rmq completion bash)"',
        "rmq completion zsh > ~/.zfunc/_rmq",
        "rmq completion fish > ~/.config/fish/completions/rmq.fish",
    ),
)
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """Print the completion script for a SHELL: bash, zsh or fish.

    It completes commands, options, and names that Redis has at the time: topics, schedules, ids of
    workers and messages. It needs bash 4.4 or later.
    """
    complete = SHELLS[shell](click.Group("rmq"), {}, "rmq", "_RMQ_COMPLETE")
    # Not source(): for bash that starts bash, to look at its version.
    click.echo(complete.source_template % complete.source_vars())
