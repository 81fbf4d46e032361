"""What a worker tells: at the start what it serves, at the end what it did, and how it ended.

All of it on stderr: stdout is for what handlers print.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import rmq
from rmq.cli import output
from rmq.cli.app import Session
from rmq.cli.output import Column
from rmq.core.validation import format_duration
from rmq.worker.worker import FINISHED, HANDED_BACK, STUCK

OPS = ("taken", "ack", "nack", "reject", "release", "lost", "own")
GUARDED = ("duplicate", "claim_lost")  # shown where a handler has guards

COLUMNS = (
    Column("TOPIC"),
    Column("HANDLER"),
    Column("KIND"),
    Column("CONCURRENCY", right=True),
    Column("PREFETCH", right=True),
    Column("ORDERED"),
    Column("LEASE", right=True),
)


def handlers_of(made: rmq.Worker) -> list[dict[str, Any]]:
    """What a worker serves, for JSON."""
    return [
        {
            "topic": one.context.name,
            "handler": one.name,
            "kind": ("async" if one.is_async else "sync") + (f", {one.batch}" if one.batch else ""),
            "concurrency": one.concurrency,
            "prefetch": one.prefetch,
            "ordered": one.ordered,
            "lease": _lease_s(one),
        }
        for one in made.handlers
    ]


def _lease_s(one: Any) -> float | None:
    """The lease of a handler, seconds; None: the topic's, which is not known yet."""
    if one.lease_ms is None and not one.context.is_open:
        return None
    return float(one.lease_ms or one.context.settings.lease_ms) / 1000


def row(one: Mapping[str, Any]) -> list[str]:
    """A handler for a table."""
    lease = "topic's" if one["lease"] is None else format_duration(one["lease"])
    return [
        one["topic"], one["handler"], one["kind"], output.number(one["concurrency"]),
        output.number(one["prefetch"]), "yes" if one["ordered"] else "no", lease,
    ]  # fmt: skip


def how(code: int) -> str:
    """How a worker ended, in words."""
    if code == FINISHED:
        return "stopped; everything that had started was finished"
    if code == HANDED_BACK:
        return (
            "stopped; the grace time ran out, or Redis was away: what was still running was handed "
            "back, and what could not be acked is delivered again"
        )
    if code == STUCK:
        return "stuck: nothing moved, although there was work; the stacks are above"
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"ended at once, by {signal.Signals(code - 128).name}"
    return "failed; the reason is above"


class Account:
    """What is told on stderr: at the start what is served, at the end what was done."""

    def __init__(self, here: Session, module: str, processes: int | None = None) -> None:
        self._here = here
        self._module = module
        self._processes = processes
        self._since = time.monotonic()

    def begin(self, handlers: list[dict[str, Any]], url: str | None) -> None:
        """The handlers are at work. `url`: of the probes, where there are any."""
        if self._here.json:
            self._line(
                event="started", module=self._module, pid=os.getpid(), handlers=handlers,
                processes=self._processes, health=url,
            )  # fmt: skip
            return
        with contextlib.redirect_stdout(sys.stderr):
            output.table(COLUMNS, [row(one) for one in handlers])
        inside = ""
        if self._processes:
            inside = f" in {self._processes} process{'' if self._processes == 1 else 'es'}"
        probing = f"; {url}/readyz" if url else ""
        self._here.talk(f"{self._module}: at work{inside}, pid {os.getpid()}{probing}")

    def end(self, code: int, counts: Mapping[str, Mapping[str, int]], restarts: int = 0) -> None:
        """The worker has ended."""
        seconds = time.monotonic() - self._since
        if self._here.json:
            self._line(
                event="ended", module=self._module, exit=code, how=how(code),
                seconds=round(seconds, 3), restarts=restarts, counts=counts,
            )  # fmt: skip
            return
        if counts:
            more = [op for op in GUARDED if any(op in one for one in counts.values())]
            ops = (*OPS, *more, "held")
            columns = [Column(op.upper().replace("_", "-"), right=True) for op in ops]
            rows = [
                [topic, *(output.number(one.get(op, 0)) for op in ops)]
                for topic, one in counts.items()
            ]
            with contextlib.redirect_stdout(sys.stderr):
                output.table([Column("TOPIC"), *columns], rows)
        again = f", {output.plural(restarts, 'restart')}" if restarts else ""
        self._here.talk(f"{self._module}: {how(code)} ({output.span(seconds * 1000)}{again})")

    @staticmethod
    def _line(**facts: Any) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            output.line(facts)
