"""Ask for confirmation before a command does something that cannot be undone.

This module also shows progress bars.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from rmq.cli_framework.app import Refused
from rmq.cli_framework.options import common_options
from rmq.cli_framework.text import neutral, number

YES = click.option("--yes", is_flag=True, help="Do not ask.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only count; change nothing.")


def confirm(
    name: str,
    action: str,
    yes: bool,
    name_of: str = "topic",
    *,
    means: str = "",
    look: str = "--dry-run to look",
) -> None:
    """Ask the user to type a name, unless the user has passed --yes.

    Args:
        name: Text that the user must type.
        action: Description of the action. It follows "This will".
        yes: Whether the user has passed --yes.
        name_of: Kind of object that `name` names.
        means: Sentence about the consequences.
        look: How the user can see the effect first, for example "--dry-run to look".

    Raises:
        Refused: stdin is not a terminal, or the user has typed another name. Nothing was done.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused(
            f"stdin is no terminal, so nobody can confirm: {action}; nothing was done. "
            f"Add --yes to do it, or {look} first"
        )
    click.echo(f"This will {neutral(action)}.", err=True)
    if means:
        click.echo(neutral(means), err=True)
    click.echo(f"Type the name of the {name_of} to continue: ", err=True, nl=False)
    if sys.stdin.readline().strip() != name:
        raise Refused(f"that is not the name of the {name_of}; nothing was done")


@contextmanager
def progress(
    label: str, again: str = "run it again to continue"
) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr if stderr is a terminal.

    The context manager yields a function that updates the bar. Call the function with the number of
    finished items and the number of all items. After Ctrl-C, the context manager prints the
    progress and the text in `again`, which says how to continue.
    """
    reached = (0, 0)

    try:
        with bar(label) as update_bar:

            def report_progress(done: int, total: int) -> None:
                nonlocal reached
                reached = done, total
                update_bar(done, total)

            yield report_progress
    except KeyboardInterrupt:
        done, total = reached
        position = f"after {number(done)} of {number(total)}" if total else "before the first one"
        common_options().note(f"stopped while {label}, {position}; {again}")
        raise


@contextmanager
def bar(label: str, wanted: bool = True) -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar.

    The context manager yields a function that updates the bar. Call the function with the number of
    finished items and the number of all items. If you do not know the number of all items, pass
    None.
    """
    if not wanted or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console  # a slow import that pipes do not need
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
