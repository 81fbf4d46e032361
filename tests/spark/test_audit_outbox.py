"""The audit of an outbox: a real table, a real relay, real consumers, and what went wrong.

And `--table`: the rows of an audit as tables of Spark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

import rmq
from rmq.kernel.core.interceptor import Interceptor, Outcome
from rmq.outbox import Outbox, Relay, metadata, stub_id
from rmq.sql.outbox.tables import stubs
from spark_connector.audit.cli import main
from tests.databases import Database
from tests.servers import Server
from tests.spark.audits import Books
from tests.spark.long import long

pytestmark = [pytest.mark.timeout(600), long("test_audit_outbox.py")]

CLEAN = 20
# What a CSV has to quote, and Spark to read as one column.
HEADERS = {"note": 'he said "no", and\nleft', "path": "C:\\new"}


class Log(Interceptor):
    """The delivery log, as docs/spark.md shows it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()

    def after_handle(self, delivery: Any, outcome: Outcome) -> None:
        with self._lock:
            row = {
                "message_id": str(delivery.id), "topic": delivery.topic, "slot": delivery.slot,
                "attempt": delivery.attempt, "delivered_at": time.time_ns() // 1_000_000,
                "outcome": outcome.verb,
            }  # fmt: skip
            self._file.write(json.dumps(row) + "\n")


class Shop:
    """Orders in a database, an outbox beside them, and consumers that come and go."""

    def __init__(self, database: Database, server: Server, name: str, home: Path) -> None:
        self.database, self.server, self.name, self.home = database, server, name, home
        self.engine = database.engine()
        metadata.create_all(self.engine)
        with self.engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE orders (id INT PRIMARY KEY)")
        self.outbox = Outbox()
        self.client = rmq.Client(server.url, retry_for=2)
        self.topic = self.client.topic(name, slots=2, dedup_window=0, max_retries=0)
        self.topic.open()
        self.relay = Relay(self.outbox, self.engine, self.client)
        self.log = home / "log.jsonl"
        self.log.touch()
        self.orders = 0
        self.done: Counter[int] = Counter()

    def place(self, fails: bool = False, **options: Any) -> str:
        """An order and its message, in one transaction; the id of the stub."""
        self.orders += 1
        with self.engine.begin() as connection:
            transaction = connection.begin_nested()
            insert = sa.text("INSERT INTO orders VALUES (:id)")
            connection.execute(insert, {"id": self.orders})
            body = {"order": self.orders}
            made = self.outbox.send(connection, self.name, body, headers=HEADERS, **options)
            if fails:
                transaction.rollback()
        return str(made)

    def consume(self, confirms: bool = True, fails: bool = False) -> None:
        """A worker, until nothing waits."""
        with rmq.Client(self.server.url, interceptors=[Log(self.log)]) as consumer:

            def handle(order: dict[str, int]) -> None:
                if fails:
                    raise ValueError("cannot be handled")
                self.done[order["order"]] += 1

            guarded = self.outbox.confirms(self.engine)(handle) if confirms else handle
            consumer.topic(self.name).handler(guarded)
            with rmq.Worker(consumer, heartbeat="thread"):
                until = time.monotonic() + 60
                while any(self._left()):
                    assert time.monotonic() < until
                    time.sleep(0.02)

    def _left(self) -> Iterator[int]:
        stats = self.client.admin.stats(self.name)
        yield from (stats[part] for part in ("retries", "priority", "due", "later"))
        yield max(0, stats["in_flight"] - self.held)

    held = 0

    def drop(self, stub: str) -> None:
        """Delete the message of a stub, as a careless script would."""
        (waiting,) = [
            one.id
            for one in self.client.admin.peek(self.name, limit=100)
            if str(stub_id(one.id)) == stub
        ]
        with self.server.raw() as redis:
            for key in redis.scan_iter():
                kind = redis.type(key)
                if kind == b"zset":
                    redis.zrem(key, waiting.member)
                elif kind == b"hash":
                    redis.hdel(key, waiting.member)

    def exported(self) -> str:
        """The table in a file, as a person would bring it to Spark; the option's value."""
        if self.database.dialect == "postgresql":
            path = self.home / "stubs.csv"  # psql: \copy rmq_stub TO 'stubs.csv' CSV HEADER
            raw = cast(Any, self.engine.raw_connection())
            with (
                path.open("wb") as out,
                raw.cursor() as cursor,
                cursor.copy("COPY rmq_stub TO STDOUT WITH CSV HEADER") as copy,
            ):
                for data in copy:
                    out.write(data)
            raw.close()
            return str(path)
        path = self.home / "stubs.jsonl"
        with self.engine.connect() as connection, path.open("w") as lines:
            columns = [one for one in stubs.c if one.name not in ("body", "slot_basis")]
            for row in connection.execute(sa.select(*columns)):
                lines.write(json.dumps(row._asdict()) + "\n")
        return str(path)

    def audit(self, *more: str) -> int:
        return main(
            [
                "--outbox", self.exported(), "--deliveries", str(self.log),
                "--snapshot", f"rmq:{self.name}", "--url", self.server.url, "--settle", "0s",
                "--out", str(self.home / "out"), "--json", *more,
            ]
        )  # fmt: skip

    def rmq(self, *words: str, stdin: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rmq", *words], input=stdin, capture_output=True, text=True,
            env=os.environ | {"RMQ_DATABASE_URL": self.database.url(), "RMQ_URL": self.server.url},
            timeout=60,
        )  # fmt: skip


@pytest.fixture
def shop(database: Database, forgetful: Server, name: str, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(database, forgetful, name, tmp_path)
    yield made
    made.client.close()


def totals(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the totals that are not 0, and the faults."""
    told = json.loads(capsys.readouterr().out)
    return {name: count for name, count in told["totals"].items() if count}, told["found"]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
def test_audit_of_an_outbox_finds_what_was_planted_and_its_list_brings_the_lost_back(
    spark: SparkSession, shop: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for _ in range(CLEAN):
        shop.place()
    shop.place(fails=True)  # rolled back: no order, no stub, no message
    assert shop.relay.run_once() == CLEAN
    shop.consume()
    assert shop.audit() == 0
    assert totals(capsys) == ({"delivered": CLEAN}, {})

    twice = shop.place()
    shop.relay.run_once()
    shop.consume(confirms=False)  # done, and nobody told the producer
    with shop.engine.begin() as connection:
        shop.outbox.resend(connection, twice)
    shop.relay.run_once()
    shop.consume(confirms=False)
    shop.place()
    shop.relay.run_once()
    shop.consume(fails=True)  # a dead letter
    lost = [shop.place(), shop.place()]
    numbers = [shop.orders - 1, shop.orders]
    shop.relay.run_once()
    for one in lost:
        shop.drop(one)
    shop.place()
    shop.relay.run_once()
    with shop.topic.consumer(lease=600) as slow:
        (held,) = slow.receive(1)
        shop.place()
        shop.relay.run_once()  # waits
        with shop.engine.begin() as connection:
            shop.outbox.void(connection, shop.place())
        unsent = shop.orders + 1
        shop.place()

        code = shop.audit()

        assert code == 1
        assert totals(capsys) == (
            {
                "delivered": CLEAN, "duplicated": 1, "dead": 1, "in_flight": 1, "waiting": 1,
                "removed": 1, "unsent": 1, "lost": 2,
            },
            {"lost": 2, "duplicated": 1},
        )  # fmt: skip
        resend = (tmp_path / "out" / "resend.txt").read_text()
        assert sorted(resend.split()) == sorted(lost)
        held.release()

    dry = shop.rmq("outbox", "resend", "-", "--dry-run", stdin=resend)
    assert (dry.returncode, dry.stdout) == (0, "would send 2 stubs again; nothing was changed\n")
    told = shop.rmq("outbox", "resend", "-", "--json", stdin=resend)
    assert told.returncode == 0, told.stderr
    assert [one["status"] for one in json.loads(told.stdout)] == ["resent", "resent"]
    assert all(shop.done[one] == 0 for one in numbers)
    assert shop.relay.run_once() == 3  # and the one that had not been sent
    shop.consume()
    assert [shop.done[one] for one in (*numbers, unsent)] == [1, 1, 1]

    assert shop.audit() == 1
    assert totals(capsys) == (
        {"delivered": CLEAN + 5, "duplicated": 1, "dead": 1, "removed": 1}, {"duplicated": 1},
    )  # fmt: skip
    assert (tmp_path / "out" / "resend.txt").read_text() == ""
    assert shop.audit("--fail-on", "lost") == 0


def test_row_of_a_stub_whose_columns_have_slipped_is_not_believed(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a CSV would have it whose commas were not quoted."""
    books = Books(2)
    sent, slipped = books.ids
    books.forget(slipped)
    at = 1_790_000_000_000
    stubs_csv = tmp_path / "stubs.csv"
    stubs_csv.write_text(
        "id,topic,options,status,sends,created\n"
        f'{sent},orders,"{{""headers"": {{""a"": ""b,c""}}}}",unconfirmed,1,{at}\n'
        f'{slipped},orders,{{""headers"": {{""a"": ""b,c""}}}},unconfirmed,1,{at}\n'
    )
    given = books.files(tmp_path)[2:]

    code = main(["--outbox", str(stubs_csv), *given, "--json"])

    assert code == 3
    told = json.loads(capsys.readouterr().out)
    assert told["totals"]["delivered"] == 1
    assert told["totals"]["lost"] == 0


def test_rows_of_an_audit_go_into_tables_and_replace_those_of_the_last_one(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    books = Books(20)
    books.forget(books.ids[7])  # lost
    books.ledger.pop(4)  # a gap, and unknown
    spark.sql(f"CREATE DATABASE audits LOCATION '{(tmp_path / 'warehouse').as_uri()}'")
    try:
        given = [*books.files(tmp_path / "in"), "--table", "audits.day", "--json"]
        code = main(given)

        assert code == 1
        assert totals(capsys)[1] == {"lost": 1, "gaps": 1}
        rows = spark.table("audits.day").collect()
        assert Counter(row.status for row in rows) == {"delivered": 18, "lost": 1, "unknown": 1}
        assert spark.table("audits.day_gaps").count() == 1
        assert sorted(one.name for one in (tmp_path / "warehouse").iterdir()) == ["day", "day_gaps"]

        books.deliver(books.ids[6], 1_790_000_070_000)  # which had not been noted
        given = [*books.files(tmp_path / "in"), "--table", "audits.day", "--json"]
        assert main([*given, "--out", str(tmp_path / "out")]) == 1
        assert totals(capsys)[1] == {"gaps": 1}
        rows = spark.table("audits.day").collect()
        assert Counter(row.status for row in rows) == {"delivered": 19, "unknown": 1}
        page = sorted(one.name for one in (tmp_path / "out").iterdir())
        assert page == ["report.html", "resend.txt", "totals.json"]  # no rows: they are in tables

        # Files of a table that the catalog has forgotten: no verdict, so not the code of a loss.
        (tmp_path / "warehouse" / "old").mkdir()
        (tmp_path / "warehouse" / "old" / "file").touch()
        assert main([*books.files(tmp_path / "in"), "--table", "audits.old"]) == 2
        told = capsys.readouterr().err
        assert "audit: --table: 'audits.old' cannot be written: [LOCATION_ALREADY_EXISTS]" in told
    finally:
        spark.sql("DROP DATABASE audits CASCADE")
