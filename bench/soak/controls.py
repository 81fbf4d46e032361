"""Negative controls: broken variants, each with a fault under which the checker must catch it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from bench.soak import run
from bench.soak.checker import Report, check
from bench.soak.history import Recorder, read
from bench.soak.run import Options, Tell

SECONDS = 6.0


@dataclass(frozen=True)
class Control:
    """A broken variant.

    Attributes:
        name: Name in the option --control.
        breaks: Description of the mistake.
        fault: Fault under which the mistake shows.
        finding: Check that must find it.
        proves: Faults whose soak needs this control.
    """

    name: str
    breaks: str
    fault: str
    finding: str
    proves: tuple[str, ...]


_LINE = (
    "stop-redis", "delay", "cut-replies", "cut-frames", "black-hole", "reset", "client-kill",
    "script-flush",
)  # fmt: skip
CONTROLS = {
    control.name: control
    for control in (
        Control(
            "settle-first",
            "consumers ack before they handle",
            "kill-consumer",
            "lost",
            ("kill-consumer",),
        ),
        Control(
            "unfenced-ack",
            "consumers take a refused ack for an accepted one",
            "stop-consumer",
            "double acks",
            ("stop-consumer",),
        ),
        Control(
            "no-aof", "Redis writes nothing to its disk", "kill-redis", "lost", ("kill-redis",)
        ),
        Control(
            "new-id",
            "producers repeat a send under another id",
            "cut-replies",
            "copies",
            _LINE,
        ),
    )
}


def needed(faults: tuple[str, ...]) -> list[Control]:
    """Return the controls of these faults; at least one."""
    found = [control for control in CONTROLS.values() if set(control.proves) & set(faults)]
    return found or [CONTROLS["settle-first"]]


def play(control: Control, options: Options, tell: Tell) -> bool:
    """Run a control; record in the soak's history whether it was caught, and return that."""
    tell(f"control {control.name}")
    with tempfile.TemporaryDirectory(prefix="rmq-control-") as directory:
        path = Path(directory) / "history.jsonl"
        run.run(broken(control, replace(options, history=str(path))), lambda _: None)
        is_caught = caught(control, check(read(path)))
    recorder = Recorder(options.history)
    recorder.record("ok" if is_caught else "fail", "control", name=control.name)
    recorder.close()
    return is_caught


def broken(control: Control, options: Options, seconds: float = SECONDS) -> Options:
    """Return the options for a control's run, with few consumers that are always busy."""
    return replace(
        options, faults=(control.fault,), seconds=seconds, control=control.name, consumers=2,
        producers=1, rate=60.0, every=1.0, work=0.02,
    )  # fmt: skip


def caught(control: Control, report: Report) -> bool:
    """Return whether the control's check has found it."""
    return bool(report.findings[control.finding])
