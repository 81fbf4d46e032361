"""Print a worker's report on stderr.

At the start, the report has the handlers. At the end, it has the counts and the reason for the
exit. It does not use stdout, because handlers may use stdout.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import rmq
from rmq.cli_framework import output, text
from rmq.cli_framework.options import CommonOptions
from rmq.cli_framework.tables import Column
from rmq.kernel.core.validation import format_duration
from rmq.worker.worker import FINISHED, HANDED_BACK, LIFESPAN_FAILED, RECYCLED, STUCK

OPS = ("received", "ack", "nack", "reject", "release", "lost", "own")
GUARD_OPS = ("duplicate", "claim_lost")  # shown if a handler has guards

COLUMNS = (
    Column("TOPIC"),
    Column("HANDLER"),
    Column("KIND"),
    Column("CONCURRENCY", right=True),
    Column("PREFETCH", right=True),
    Column("ORDERED"),
    Column("LEASE", right=True),
)


def handlers_of(worker: rmq.Worker) -> list[dict[str, Any]]:
    """Return the handlers of a worker as JSON values."""
    return [
        {
            "topic": handler.context.name,
            "handler": handler.name,
            "types": list(handler.types),
            "kind": ("async" if handler.is_async else "sync")
            + (f", {handler.batch}" if handler.batch else ""),
            "concurrency": handler.concurrency,
            "prefetch": handler.prefetch,
            "prefetch_adapts": not handler.is_prefetch_chosen,
            "ordered": handler.ordered,
            "lease": _lease_s(handler),
        }
        for handler in worker.handlers
    ]


def _lease_s(handler: Any) -> float | None:
    if handler.lease_ms is None and not handler.context.is_open:
        return None
    return float(handler.lease_ms or handler.context.settings.lease_ms) / 1000


def row(handler: Mapping[str, Any]) -> list[str]:
    """Return the table row for a handler."""
    name = handler["handler"]
    if handler["types"]:
        name += f" ({', '.join(handler['types'])})"
    lease = "topic's" if handler["lease"] is None else format_duration(handler["lease"])
    return [
        handler["topic"], name, handler["kind"],
        text.number(handler["concurrency"]),
        "adapts" if handler["prefetch_adapts"] else text.number(handler["prefetch"]),
        "yes" if handler["ordered"] else "no", lease,
    ]  # fmt: skip


_EXIT_TEXTS = {
    FINISHED: "stopped; everything that had started was finished",
    HANDED_BACK: "stopped; the grace time ended, or Redis was away: running messages were handed "
    "back, and messages that could not be acked are delivered again",
    STUCK: "stuck: no progress, although there was work; the stacks are above",
    LIFESPAN_FAILED: "a lifespan failed; the log above says which",
    RECYCLED: "stopped at a limit, to be replaced; everything that had started was finished",
}


def exit_text(code: int) -> str:
    """Describe how a worker ended."""
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"ended at once, by {signal.Signals(code - 128).name}"
    return _EXIT_TEXTS.get(code, "failed; the reason is above")


class WorkerReport:
    """Prints the handlers of a worker at its start, and counts at its end."""

    def __init__(self, common: CommonOptions, module: str, processes: int | None = None) -> None:
        self._here = common
        self._module = module
        self._processes = processes
        self._since = time.monotonic()

    def begin(self, handlers: list[dict[str, Any]], url: str | None) -> None:
        """Print the handlers and, if there are health probes, their URL."""
        if self._here.json:
            self._line(
                event="started", module=self._module, pid=os.getpid(), handlers=handlers,
                processes=self._processes, health=url,
            )  # fmt: skip
            return
        with text.on_stderr():
            output.table(COLUMNS, [row(handler) for handler in handlers])
        where = ""
        if self._processes:
            where = f" in {self._processes} process{'' if self._processes == 1 else 'es'}"
        probing = f"; {url}/readyz" if url else ""
        self._here.note(f"{self._module}: at work{where}, pid {os.getpid()}{probing}")

    def end(
        self,
        code: int,
        counts: Mapping[str, Mapping[str, int]],
        restarts: int = 0,
        recycled: int = 0,
    ) -> None:
        """Print how the worker ended, and its counts."""
        seconds = time.monotonic() - self._since
        if self._here.json:
            self._line(
                event="ended", module=self._module, exit=code, how=exit_text(code),
                seconds=round(seconds, 3), restarts=restarts, recycled=recycled,
                counts=counts,
            )  # fmt: skip
            return
        if counts:
            guard_ops = [
                op
                for op in GUARD_OPS
                if any(op in topic_counts for topic_counts in counts.values())
            ]
            ops = (*OPS, *guard_ops, "in_flight")
            heads = ("by-handler" if op == "own" else op for op in ops)
            columns = [Column(head.upper().replace("_", "-"), right=True) for head in heads]
            rows = [
                [topic, *(text.number(topic_counts.get(op, 0)) for op in ops)]
                for topic, topic_counts in counts.items()
            ]
            with text.on_stderr():
                output.table([Column("TOPIC"), *columns], rows)
        restarts_text = f", {text.plural(restarts, 'restart')}" if restarts else ""
        restarts_text += f", {text.number(recycled)} recycled" if recycled else ""
        self._here.note(
            f"{self._module}: {exit_text(code)} ({text.span(seconds * 1000)}{restarts_text})"
        )

    @staticmethod
    def _line(**facts: Any) -> None:
        with text.on_stderr():
            output.line(facts)
