"""The question before a verb that cannot be undone, and the progress of one that takes long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rmq.cli.app import Refused, session
from rmq.cli.output import neutral, number


def confirm(
    name: str,
    what: str,
    yes: bool,
    named: str = "topic",
    *,
    means: str = "",
    look: str = "--dry-run to look",
) -> None:
    """Go on only if a person types the name of the topic (or of what `named` says), or said --yes.

    Args:
        name: what is to be typed.
        what: what will be done, after "This will".
        yes: it was confirmed already.
        named: what `name` is the name of.
        means: a sentence on what follows from it.
        look: how to see beforehand what it would do.

    Raises:
        Refused: nobody can be asked, or another name was typed; nothing was done.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused(
            f"{what} needs a person to confirm it, and stdin is no terminal; nothing was done. "
            f"Add --yes to do it, or {look} first"
        )
    click.echo(f"This will {neutral(what)}.", err=True)
    if means:
        click.echo(neutral(means), err=True)
    click.echo(f"Type the name of the {named} to go on: ", err=True, nl=False)
    if sys.stdin.readline().strip() != name:
        raise Refused(f"that is not the name of the {named}; nothing was done")


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, where that is a terminal; yields what is called with (done, all).

    Where Ctrl-C ends it, it says how far it was.
    """
    reached = (0, 0)

    try:
        with _bar(label) as move:

            def moved(done: int, whole: int) -> None:
                nonlocal reached
                reached = done, whole
                move(done, whole)

            yield moved
    except KeyboardInterrupt:
        done, whole = reached
        far = f"after {number(done)} of {number(whole)}" if whole else "before the first one"
        session().talk(f"stopped while {label}, {far}; run it again to go on")
        raise


@contextmanager
def _bar(label: str) -> Iterator[Callable[[int, int], None]]:
    if not sys.stderr.isatty():
        yield lambda done, whole: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)
