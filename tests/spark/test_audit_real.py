"""The whole way: real producers and consumers, messages dropped behind RMQ's back, a real look."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rmq
from rmq.kernel.core.ids import members_of
from rmq.kernel.core.interceptor import Interceptor, Outcome
from spark_connector.audit.cli import main
from tests.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


WAITING = ("retries", "priority", "due", "later", "in_flight")  # of admin.stats


class Books(Interceptor):
    """The ledger of a producer and the log of a consumer, as docs/spark.md shows them."""

    def __init__(self, path: Path, producer: str) -> None:
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()
        self._producer = producer
        self._numbers: dict[tuple[str, int], itertools.count[int]] = defaultdict(
            lambda: itertools.count(1)
        )

    def after_send(self, topic: str, message: rmq.Outgoing, result: Any) -> None:
        if isinstance(result, BaseException):
            return
        with self._lock:
            number = next(self._numbers[topic, result.slot])
            self._note(
                producer=self._producer, seq=number, message_id=str(result.message_id),
                topic=topic, slot=result.slot, produced_at=time.time_ns() // 1_000_000,
            )  # fmt: skip

    def after_handle(self, delivery: Any, outcome: Outcome) -> None:
        with self._lock:
            self._note(
                message_id=str(delivery.id), topic=delivery.topic, attempt=delivery.attempt,
                delivered_at=time.time_ns() // 1_000_000, outcome=outcome.verb,
            )  # fmt: skip

    def _note(self, **row: Any) -> None:
        self._file.write(json.dumps(row) + "\n")


def test_what_was_dropped_behind_rmqs_back_is_found(
    spark: SparkSession, own_server: Server, name: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    ledger, log = tmp_path / "ledger.jsonl", tmp_path / "log.jsonl"
    with rmq.Client(own_server.url, interceptors=[Books(ledger, "web-1")]) as producer:
        topic = producer.topic(name, slots=4, max_retries=0)
        first = [topic.send({"n": n}).id for n in range(40)]
        doomed = topic.send({"n": -1}).id

    with rmq.Client(own_server.url, interceptors=[Books(log, "")]) as consumer:

        @consumer.topic(name).handler(concurrency=4)
        def handle(delivery: rmq.Delivery) -> None:
            if delivery.body["n"] < 0:
                raise ValueError("cannot be handled")

        with rmq.Worker(consumer, heartbeat="thread"):
            until = time.monotonic() + 60
            while any(consumer.admin.stats(name)[part] for part in WAITING):
                assert time.monotonic() < until
                time.sleep(0.05)

    with rmq.Client(own_server.url, interceptors=[Books(ledger, "web-2")]) as producer:
        rest = [producer.topic(name).send({"n": n}).id for n in range(20)]
        held = producer.topic(name).consumer(lease=600).receive(max_messages=1)
    waiting = [one for one in rest if one != held[0].id]
    gone = waiting[:3]
    with own_server.raw() as redis:
        drop(redis, gone)

    code = main(
        ["--ledger", str(ledger), "--deliveries", str(log), "--snapshot", f"rmq:{name}",
         "--url", own_server.url, "--settle", "0s", "--out", str(tmp_path / "out"), "--json"]
    )  # fmt: skip

    found = json.loads(capsys.readouterr().out)
    assert code == 1
    assert found["found"] == {"lost": 3}
    assert {key: count for key, count in found["totals"].items() if count} == {
        "delivered": len(first), "dead": 1, "in_flight": 1, "waiting": 16, "lost": 3,
    }  # fmt: skip
    assert found["gaps"] == 0
    lost = (tmp_path / "out" / "resend.txt").read_text().split()
    assert sorted(lost) == sorted(map(str, gone))
    assert str(doomed) in (tmp_path / "out" / "report.html").read_text()


def drop(redis: Any, gone: list[rmq.MessageId]) -> None:
    """Delete messages as a careless script would: their records and their places in the queue."""
    for key in redis.scan_iter():
        kind = redis.type(key)
        if kind == b"zset":
            redis.zrem(key, *members_of(gone))
        elif kind == b"hash":
            redis.hdel(key, *members_of(gone))
