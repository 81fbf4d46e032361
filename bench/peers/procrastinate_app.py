"""procrastinate, on PostgreSQL; done jobs are deleted, since no peer keeps results."""

from __future__ import annotations

import sys

import procrastinate

from bench.peers import tally

QUEUE = "noop"
BATCH = 500

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=tally.DATABASE))
_open: list[bool] = []


@app.task(name="noop", queue=QUEUE)
async def noop(body: str) -> None:
    tally.handled(body)


async def _opened() -> None:
    if not _open:
        _open.append(True)
        await app.open_async()


async def send(body: str) -> None:
    await _opened()
    await noop.defer_async(body=body)


async def fill(bodies: list[str]) -> None:
    await _opened()
    for first in range(0, len(bodies), BATCH):
        await noop.batch_defer_async(*({"body": body} for body in bodies[first : first + BATCH]))


if __name__ == "__main__":
    if sys.argv[1:] == ["schema"]:
        with app.open():
            app.schema_manager.apply_schema()
    else:
        app.run_worker(
            queues=[QUEUE], concurrency=int(tally.option("CONCURRENCY", "1")),
            delete_jobs="successful",
        )  # fmt: skip
