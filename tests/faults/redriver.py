"""A process that runs a job and kills itself inside a move of dead letters to another topic.

`python -m tests.faults.redriver <url> <job> <kind> <command> <nth>`: before the nth command of that
name, counted from 0; -1: it lives.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Generator
from typing import Any

import rmq
from rmq.features.dead_letters import redrive_to
from rmq.features.dead_letters.jobs import run
from rmq.kernel.transport.flow.steps import RawCommand

HOLD_MS = 300  # so long the next runner waits for a dead one
_move = redrive_to.Redrive._move


def main(url: str, job: str, kind: str, command: str, nth: str) -> None:
    seen = itertools.count()

    def dying(*args: Any) -> Generator[Any, Any, str]:
        flow = _move(*args)
        value = None
        while True:
            try:
                step = flow.send(value)
            except StopIteration as end:
                return str(end.value)
            sent = getattr(step, "commands", [step])[0]
            name = sent.words[0] if isinstance(sent, RawCommand) else sent.script.name
            if name == command and next(seen) == int(nth):
                os.kill(os.getpid(), signal.SIGKILL)
            value = yield step

    redrive_to.Redrive._move = dying  # type: ignore[method-assign]
    run.HOLD_MS = HOLD_MS
    run._Runner.take.__defaults__ = (HOLD_MS,)
    if kind == "sync":
        with rmq.Client(url) as client:
            client.admin.job_run(job)
    else:
        asyncio.run(_run(url, job))


async def _run(url: str, job: str) -> None:
    async with rmq.AsyncClient(url) as client:
        await client.admin.job_run(job)
