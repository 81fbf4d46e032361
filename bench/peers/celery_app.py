"""Celery: JSON is its default; it acks before the task runs unless acks_late is set."""

from __future__ import annotations

from celery import Celery

from bench.peers import tally

app = Celery("bench", broker=tally.URL)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=int(tally.option("PREFETCH", "4")),
    worker_hijack_root_logger=False,
    task_acks_late=True,
)


@app.task(name="noop")
def noop(body: str) -> None:
    tally.handled(body)


async def send(body: str) -> None:
    noop.delay(body)


async def fill(bodies: list[str]) -> None:
    for body in bodies:
        noop.delay(body)
