"""A process that runs a job and kills itself inside a move of dead letters to another topic.

`python -m tests.faults.redriver <url> <job> <kind> <move> <command>`: before that command of that
move, both counted from 0; -1: it lives.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Generator
from typing import Any

import rmq
from rmq.protocol.flows import job_run, redrive_to

HOLD_MS = 300  # so long the next runner waits for a dead one
_move = redrive_to._move
_moves = itertools.count()


def main(url: str, job: str, kind: str, move: str, command: str) -> None:
    def dying(*args: Any) -> Generator[Any, Any, str]:
        number = next(_moves)
        flow = _move(*args)
        value = None
        for place in itertools.count():
            try:
                step = flow.send(value)
            except StopIteration as end:
                return str(end.value)
            if (number, place) == (int(move), int(command)):
                os.kill(os.getpid(), signal.SIGKILL)
            value = yield step
        raise AssertionError

    redrive_to._move = dying  # type: ignore[assignment]
    job_run.HOLD_MS = HOLD_MS
    job_run._Runner.take.__defaults__ = (HOLD_MS,)
    if kind == "sync":
        with rmq.Client(url) as client:
            client.admin.job_run(job)
    else:
        asyncio.run(_run(url, job))


async def _run(url: str, job: str) -> None:
    async with rmq.AsyncClient(url) as client:
        await client.admin.job_run(job)
