"""A process that runs a replay and kills itself between two commands.

`python -m tests.faults.replayer <url> <job> <command> <nth>`: before the nth command of that name,
counted from 0; -1: it lives.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Generator
from typing import Any

import rmq
from rmq.features.dead_letters.jobs import run
from rmq.kernel.transport.flow.steps import RawCommand

HOLD_MS = 300  # so long the next runner waits for a dead one
_run = run._Runner.run


def main(url: str, job: str, command: str, nth: str) -> None:
    seen = itertools.count()

    def dying(self: Any) -> Generator[Any, Any, bool]:
        flow = _run(self)
        value = None
        while True:
            try:
                step = flow.send(value)
            except StopIteration as end:
                return bool(end.value)
            sent = getattr(step, "commands", [step])[0]
            name = sent.words[0] if isinstance(sent, RawCommand) else _script_of(sent)
            if name == command and next(seen) == int(nth):
                os.kill(os.getpid(), signal.SIGKILL)
            value = yield step

    run._Runner.run = dying  # type: ignore[method-assign]
    run.BATCH_MAX = 100  # so that the job has some batches
    run.HOLD_MS = HOLD_MS
    run._Runner.take.__defaults__ = (HOLD_MS,)
    with rmq.Client(url) as client:
        client.admin.job_run(job)


def _script_of(sent: Any) -> str:
    return str(getattr(getattr(sent, "script", None), "name", ""))
