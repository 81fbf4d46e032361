"""The command line of a soak: `run`, and `check` for a recorded history."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import click

from bench.soak import checker, controls, history as histories, plot as plots, run
from bench.soak.check import print_report
from bench.soak.faults import FAULTS
from rmq.cli_framework.app import INTERRUPTED, Command, CommandEntry, Refused, RootGroup
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import DURATION

PROGRAM = "python -m bench.soak"


class SoakCommands(RootGroup):
    """The commands of a soak, with the common options and exit codes of `rmq`."""

    entries: ClassVar[dict[str, CommandEntry]] = {
        "run": CommandEntry("bench.soak.command:run_soak", "Run RMQ under faults on this machine."),
        "check": CommandEntry("bench.soak.check:check", "Check the HISTORY of a run."),
    }


@click.group(
    cls=SoakCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def cli() -> None:
    """Run RMQ under faults for minutes or hours, and check what was recorded."""


def main(*words: str) -> None:
    """Run the command line with the arguments of this process, and exit."""
    cli.main(prog_name=PROGRAM)


@click.command(
    "run",
    cls=Command,
    examples=(
        f"{PROGRAM} run --minutes 5",
        f"{PROGRAM} run --fault kill-consumer --fault cut-replies --minutes 60 --seed 7",
        f"{PROGRAM} run --minutes 1 --control settle-first",
        f"{PROGRAM} run --minutes 5 --plot soak.svg --json",
    ),
)
@click.option(
    "--fault", "faults", multiple=True, type=click.Choice(list(FAULTS)), metavar="NAME",
    help=f"May be repeated; default: all of {', '.join(FAULTS)}.",
)  # fmt: skip
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True,
    help="How long faults happen. Controls, start and drain come to it.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), help="Plays the plan of another run again.")
@click.option(
    "--history", default="history.jsonl", show_default=True, type=click.Path(dir_okay=False),
    help="The file to record to; it must not be there yet.",
)  # fmt: skip
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw a chart: .svg, .png or .pdf.")
@click.option(
    "--control", type=click.Choice(list(controls.CONTROLS)), metavar="NAME",
    help=f"Break this on purpose, under the fault that shows it: {', '.join(controls.CONTROLS)}.",
)  # fmt: skip
@click.option(
    "--controls/--no-controls", "runs_controls", default=True, show_default=True,
    help="Run short controls first. Without them the verdict cannot be pass.",
)  # fmt: skip
@click.option(
    "--producers", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes."
)
@click.option(
    "--consumers", type=click.IntRange(1, 64), default=3, show_default=True, help="Processes."
)
@click.option(
    "--rate", type=click.FloatRange(min=1), default=200.0, show_default=True,
    help="Messages per second.",
)  # fmt: skip
@click.option(
    "--slots", type=click.IntRange(1, 1024), default=1, show_default=True, help="Of the topic."
)
@click.option(
    "--lease", type=DURATION, default="2s", show_default=True, help="At least 1s."
)  # fmt: skip
@click.option(
    "--every", type=DURATION, default="4s", show_default=True,
    help="The mean time from one fault to the next.",
)  # fmt: skip
def run_soak(
    faults: tuple[str, ...], minutes: float, seed: int | None, history: str, plot: str | None,
    control: str | None, runs_controls: bool, producers: int, consumers: int, rate: float,
    slots: int, lease: float, every: float,
) -> int:  # fmt: skip
    """Run RMQ under faults on this machine, record a history, and check it.

    It starts a Redis of its own (needs redis-server, or rmq[embedded]) behind a proxy, and
    producers and consumers as processes; it touches no other Redis, and --url has no effect.
    Exit code 0: pass. 1: fail. 7: unknown, nothing is proven. After Ctrl-C it checks what was
    recorded until then, and ends with 130. `check` checks the file again.
    """
    if os.path.exists(history):
        raise Refused(f"{history} is there already; name another file with --history")
    if plot:
        plots.load()  # fail before the run, not after it
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    options = run.Options(
        tuple(dict.fromkeys(faults or FAULTS)), minutes * 60, seed, history, producers, consumers,
        rate, max(1.0, lease), slots, max(0.1, every), control=control or "",
    )  # fmt: skip
    if control:
        chosen = controls.CONTROLS[control]
        options = controls.broken(chosen, options, seconds=options.seconds)
    common_options().note(f"seed {seed}, recording to {history}")
    interrupted = False
    run.end_on_sigterm()
    try:
        with _shown(options.seconds) as tell:
            if runs_controls and not control:
                for one in controls.needed(options.faults):
                    caught = controls.play(one, options, tell)
                    tell(f"control {one.name}: {'caught' if caught else 'NOT CAUGHT'}")
            run.run(options, tell)
    except KeyboardInterrupt:
        interrupted = True
        common_options().note("stopped; this is what was recorded until then")
    if not os.path.exists(history):
        return INTERRUPTED
    report = checker.check(histories.read(history))
    if interrupted:
        report.doubts.insert(0, "it was stopped")
    code = print_report(report, **_fields(options, interrupted))
    if plot:
        plots.draw(histories.read(history), plot)
        common_options().note(f"drew {plot}")
    return INTERRUPTED if interrupted else code


def _fields(options: Any, interrupted: bool) -> dict[str, Any]:
    return {"seed": options.seed, "history": options.history, "interrupted": interrupted}


@contextmanager
def _shown(seconds: float) -> Iterator[Callable[[str], None]]:
    """Show progress on stderr: a bar on a terminal, else a line for each part."""
    common = common_options()
    if not sys.stderr.isatty():
        yield lambda text: common.note(text) if ": " in text or text == "drain" else None
        return
    from rich.console import Console  # slow imports, not needed for pipes
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("start", total=None)
        begun: float | None = None

        def tell(text: str) -> None:
            nonlocal begun
            if text.startswith("control "):
                bar.update(task, description=text)
                return
            begun = begun or time.monotonic()
            done = min(seconds, time.monotonic() - begun)
            bar.update(task, description=text, total=seconds, completed=done)

        yield tell
