"""The option --watch, which runs a command again and again.

On a terminal, each output replaces the previous output.
"""

from __future__ import annotations

import io
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any

import click

from rmq.cli_framework.options import CommonOptions, store
from rmq.cli_framework.tables import styled

EVERY = "2"  # seconds, if --watch has no number
NO_WRAP, WRAP = "\x1b[?7l", "\x1b[?7h"
TO_LINE_END, TO_SCREEN_END = "\x1b[K", "\x1b[J"


class _Terminal(io.TextIOWrapper):
    """Collects the text that a command prints for a terminal."""

    def isatty(self) -> bool:
        return True


@contextmanager
def _captured() -> Iterator[Callable[[], str]]:
    kept = io.BytesIO()
    stream = _Terminal(kept, encoding="utf-8", errors="backslashreplace", write_through=True)
    with redirect_stdout(stream), redirect_stderr(stream):
        yield lambda: kept.getvalue().decode()


def repeat(run: Callable[[], Any], options: CommonOptions, describe: Callable[..., str]) -> None:
    """Run a command again and again until Ctrl-C.

    Args:
        run: Function that runs the command once.
        options: Common options. `watch` has the number of seconds between two runs.
        describe: Function that converts an error to one line. An error of the first run ends the
            command. After an error of a later run, RMQ prints the line and continues, because the
            next run may succeed.
    """
    assert options.watch is not None
    in_place = sys.stdout.isatty() and not options.json
    with options.client() as client:
        options.open_client = client
        try:
            if in_place:
                _redraw(run, options.watch, describe)
            else:
                _append(run, options, options.watch, describe)
        finally:
            options.open_client = None


def _append(
    run: Callable[[], Any], options: CommonOptions, interval: float, describe: Callable[..., str]
) -> None:
    run()
    while True:
        options.writer.finish()
        sys.stdout.flush()
        time.sleep(interval)
        if not options.json:
            click.echo()
        try:
            run()
        except (BrokenPipeError, click.UsageError):
            raise
        except Exception as error:
            click.echo(describe(error), err=True)


def _redraw(run: Callable[[], Any], interval: float, describe: Callable[..., str]) -> None:
    height = 0
    sys.stdout.write(NO_WRAP)
    try:
        while True:
            with _captured() as printed:
                try:
                    run()
                except click.UsageError:
                    raise
                except Exception as error:
                    if not height:
                        raise
                    click.echo(describe(error))
            foot = f"{time.strftime('%H:%M:%S')}, every {interval:g} s; Ctrl-C ends"
            height = _draw(printed(), foot, height)
            time.sleep(interval)
    finally:
        with suppress(OSError):
            sys.stdout.write(WRAP)
            sys.stdout.flush()


def _draw(text: str, foot: str, height: int) -> int:
    """Print over the previous output. Return the number of printed lines."""
    lines = text.splitlines()
    room = max(1, shutil.get_terminal_size().lines - 2)
    if len(lines) > room:
        foot = f"{len(lines) - room} more lines; {foot}"
    shown = [*lines[:room], styled(foot, "bright_black")]
    up = f"\x1b[{height}A" if height else ""
    drawn = "".join(f"{line}{TO_LINE_END}\n" for line in shown)
    sys.stdout.write(f"{up}\r{drawn}{TO_SCREEN_END}")
    sys.stdout.flush()
    return len(shown)


def _store_watch(ctx: click.Context, param: click.Parameter, value: float | None) -> None:
    if value is not None and value <= 0:
        raise click.BadParameter("give more than 0 seconds", ctx, param)
    store(ctx, param, value)


def watch_param() -> click.Parameter:
    """Return the option --watch for commands that users may repeat."""
    from rmq.cli_framework.param_types import DURATION  # a slow import, which help does not need

    return click.Option(
        ["--watch"],
        is_flag=False,
        flag_value=EVERY,
        type=DURATION,
        metavar="[SECONDS]",
        help=f"Repeat every SECONDS, until Ctrl-C.  [{EVERY}]",
        expose_value=False,
        callback=_store_watch,
    )
