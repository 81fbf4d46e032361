"""Import 20 000 rows in parallel, and write one report when all of them have ended.

Each row is a message, and all messages are members of one batch. A worker imports the rows, at most
five of a tenant at a time. A wrong row becomes a dead letter. When the last row has ended, RMQ
sends one message, and its handler writes the report.

    python examples/import_report.py                       on a private redis-server, in .rmq/import
    python examples/import_report.py --cancel-after 5000   cancel the import in the middle
    RMQ_URL=redis://... python examples/import_report.py   on your Redis

You may kill the program and start it again: it continues, and imports no row twice. The rows on
which it worked wait until their lease ends, 5 s after the kill. If the import has ended, the
program only shows the report. Give another --name to import again.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

import rmq

HOME = Path(".rmq", "import").absolute()
TENANTS = ("acme", "acme", "acme", "globex", "initech")  # acme has most of the rows
LOOK_S = 0.1  # between two looks at the batch
PATIENCE_S = 60.0  # for the report of a batch that has ended
SHOWN = 5  # failed rows that are printed; the file has all

Row = dict[str, Any]

client = rmq.Client(os.environ.get("RMQ_URL") or f"embedded://{HOME}")
rows = client.topic("import-rows", groups=rmq.Groups(order=False, concurrency=5), lease=5)
reports = client.topic("import-reports", lease=5)


@rows.handler(concurrency=16)
def import_row(row: Row, d: rmq.Delivery) -> None:
    if not row["price"].isdigit():
        raise rmq.Reject(f"the price {row['price']!r} is not a number")  # a dead letter, no retry
    store(d.headers["import"], row)


@reports.handler
def report(name: str, d: rmq.Delivery) -> None:
    write_report(name, d.batch_counts, list(failed_rows(name)))


def failed_rows(name: str) -> Iterator[Row]:
    """Yield the rows of an import that are dead letters, each with its error."""
    cursor: str | None = ""
    while cursor is not None:
        page = client.admin.dead_letters(
            rows.name, filter=f'header.import="{name}"', cursor=cursor or None, limit=1000
        )
        for letter in page.messages:
            yield {**letter.body, "error": letter.failure.error if letter.failure else ""}
        cursor = page.cursor


def message(name: str, row: Row) -> rmq.Outgoing:
    return rmq.Outgoing(
        row, group=row["tenant"], dedup_key=f"{name}/{row['number']}", headers={"import": name}
    )


def send(name: str, table: list[Row]) -> rmq.Batch:
    with client.batch(name, then=(reports, rmq.Outgoing(name))) as batch:
        batch.send_many(rows, [message(name, row) for row in table])
    return batch


def follow(batch: rmq.Batch, cancel_after: int | None) -> None:
    """Show the progress on a terminal until the report is written."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, disable=not sys.stdout.isatty()) as progress:
        bar, until = progress.add_task(batch.name), time.monotonic() + PATIENCE_S
        while not report_file(batch.name).exists():
            state = batch.read()
            ended = state.members - state.open
            progress.update(bar, completed=ended, total=state.members)
            if cancel_after is not None and ended >= cancel_after:
                cancel_after = None
                batch.cancel()
            if state.state != "done":
                until = time.monotonic() + PATIENCE_S
            elif time.monotonic() > until:
                sys.exit(f"{batch.name} has ended, and its report is in another directory")
            time.sleep(LOOK_S)


# --- the shop, the file of rows and the report: as in any program ---------------------------------


@cache
def shop() -> sqlite3.Connection:
    HOME.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(HOME / "shop.db", isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute(
        "CREATE TABLE IF NOT EXISTS price "
        "(import TEXT, number INTEGER, tenant TEXT, price INTEGER, PRIMARY KEY (import, number))"
    )
    return database


def store(name: str, row: Row) -> None:
    """Write a row. If a kill came between this write and the ack, the second write does nothing."""
    shop().execute(
        "INSERT INTO price VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (name, row["number"], row["tenant"], int(row["price"])),
    )


def read_table(count: int) -> list[Row]:
    """Return the rows to import. Two rows in a thousand have no price."""
    return [
        {
            "number": n,
            "tenant": TENANTS[n % len(TENANTS)],
            "price": "n/a" if n % 500 == 250 else str(n),
        }
        for n in range(1, count + 1)
    ]


def report_file(name: str) -> Path:
    return HOME / f"{name}.json"


def write_report(name: str, counts: rmq.BatchCounts | None, failed: list[Row]) -> None:
    assert counts is not None  # only the callback of a batch has counts
    new = HOME / f"{name}.new"
    failed.sort(key=lambda row: row["number"])
    new.write_text(json.dumps({"counts": counts._asdict(), "failed": failed}, indent=1))
    new.replace(report_file(name))


def print_report(name: str) -> None:
    written = json.loads(report_file(name).read_text())
    counts = written["counts"]
    state = "was cancelled" if counts["is_cancelled"] else "has ended"
    figures = [f"{counts['succeeded']} imported", f"{counts['dead']} failed"]
    figures += [f"{counts[each]} {each}" for each in ("cancelled", "lost") if counts[each]]
    print(f"{name} {state}: {', '.join(figures)}")
    for row in written["failed"][:SHOWN]:
        print(f"  row {row['number']} of {row['tenant']}: {row['error']}")
    print(f"  all failed rows: {os.path.relpath(report_file(name))}")


def main() -> int:
    parser = argparse.ArgumentParser(description="An import of many rows, with one report.")
    parser.add_argument("--name", default="import-1", help="name of the import (import-1)")
    parser.add_argument("--rows", type=int, default=20_000, help="number of rows (20000)")
    parser.add_argument("--cancel-after", type=int, metavar="N", help="cancel after N rows")
    asked = parser.parse_args()
    logging.getLogger("rmq").setLevel(logging.ERROR)  # the report names the rejected rows
    if not report_file(asked.name).exists():
        batch = send(asked.name, read_table(asked.rows))
        with rmq.Worker(client):
            follow(batch, asked.cancel_after)
    client.close()
    print_report(asked.name)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except rmq.RMQError as error:
        sys.exit(f"import_report: {error}")
