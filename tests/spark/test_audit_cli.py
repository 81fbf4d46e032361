"""`python -m spark_connector.audit`: options, exit codes, and what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock, call

import pytest

from rmq import MessageId
from spark_connector.audit import cli
from spark_connector.audit.cli import main
from spark_connector.audit.options import parse
from tests.spark.audits import AS_OF_MS, BEGIN_MS, Books, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Capture = pytest.CaptureFixture[str]
FINE = ["--ledger", "a", "--deliveries", "b", "--drained"]


def test_a_clean_run_exits_with_0_and_a_lost_message_with_1(
    spark: SparkSession, tmp_path: Path, capsys: Capture
) -> None:
    books = Books(6)
    assert main([*books.files(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "clean"

    lost = books.ids[2]
    books.forget(lost)
    out = tmp_path / "out"
    assert main([*books.files(tmp_path), "--out", str(out)]) == 1

    said = capsys.readouterr().out
    assert "lost                     1" in said
    assert "Found: 1 lost." in said
    assert (out / "resend.txt").read_text() == lost + "\n"
    assert json.loads((out / "totals.json").read_text())["totals"]["lost"] == 1
    assert lost in (out / "report.html").read_text()
    rows = {row["message_id"]: row for row in spark.read.parquet(str(out / "messages")).collect()}
    assert len(rows) == 6
    assert (rows[lost]["status"], rows[lost]["producer"], rows[lost]["seq"]) == ("lost", "p0", 2)
    assert spark.read.parquet(str(out / "gaps")).count() == 0


def test_ids_that_are_none_are_kept_out_of_the_list_to_resend(
    spark: SparkSession, tmp_path: Path, capsys: Capture
) -> None:
    books = Books(3)
    fine = books.send(4, "p9", 1)["message_id"]
    books.send(5, "p9", 2)["message_id"] = "x\n--all\n<b>"

    assert main([*books.files(tmp_path), "--out", str(tmp_path / "out")]) == 1

    lines = (tmp_path / "out" / "resend.txt").read_text().splitlines()
    assert [str(MessageId.parse(line)) for line in lines] == [fine]
    assert "1 lost ids are no message ids" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("master", "partitions", "given", "wanted"),
    [
        ("local[2]", "200", [], "32"),
        ("local[2]", "200", ["--conf", "spark.sql.shuffle.partitions=200"], None),
        ("local[2]", "64", [], None),
        ("spark://one:7077", "200", [], None),
    ],
)
def test_only_a_local_session_without_a_setting_has_fewer_partitions(
    monkeypatch: pytest.MonkeyPatch,
    master: str,
    partitions: str,
    given: list[str],
    wanted: str | None,
) -> None:
    settings = {"spark.master": master, "spark.sql.shuffle.partitions": partitions}
    made = Mock()
    made.conf.get.side_effect = lambda name, default=None: settings.get(name, default)
    builder = Mock()
    builder.appName.return_value = builder.config.return_value = builder
    builder.getOrCreate.return_value = made
    monkeypatch.setattr(cli, "SparkSession", Mock(builder=builder))

    cli._session(parse([*FINE, *given]))

    calls = [] if wanted is None else [call("spark.sql.shuffle.partitions", wanted)]
    assert made.conf.set.call_args_list == calls


def test_no_verdict_exits_with_3(spark: SparkSession, tmp_path: Path, capsys: Capture) -> None:
    books = Books(3)
    books.deliveries = []

    assert main(books.files(tmp_path)) == 3

    assert "No verdict: the delivery log is empty." in capsys.readouterr().out


def test_tables_csv_and_several_inputs_are_read(
    spark: SparkSession, tmp_path: Path, capsys: Capture
) -> None:
    books = Books(4)
    ledger = tmp_path / "ledger.csv"
    columns = list(books.ledger[0])
    lines = [",".join(str(row[name]) for name in columns) for row in books.ledger]
    ledger.write_text("\n".join([",".join(columns), *lines]) + "\n")
    books.frames(spark)[1].createOrReplaceTempView("audit_log")
    more = tmp_path / "more.jsonl"
    write(more, [{**books.deliveries[0], "outcome": "nack", "delivered_at": BEGIN_MS}])

    code = main(
        ["--ledger", str(ledger), "--deliveries", "table:audit_log", "--deliveries", str(more),
         "--drained", "--as-of", str(AS_OF_MS), "--settle", "10m",
         "--fail-on", "redelivered", "--json"]
    )  # fmt: skip

    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == 1
    assert found["found"] == {"redelivered": 1}
    assert found["totals"]["delivered"] == 4


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "--ledger, --outbox: neither is given; give one"),
        ([*FINE, "--outbox", "c"], "--ledger, --outbox: both are given"),
        (FINE[:2], "--deliveries: not given"),
        (FINE[:4], "--snapshot, --drained: neither is given"),
        ([*FINE, "--settle", "soon"], "--settle: 'soon' is not a duration; give 30s"),
        ([*FINE, "--as-of", "2026-01-01"], "--as-of: '2026-01-01' has no time zone; add Z"),
        (
            [*FINE, "--fail-on", "lost,late"],
            "--fail-on: 'lost,late' is not known; give some of lost,",
        ),
        ([*FINE, "--limit", "0"], "--limit: '0' is not a number; give 1 to 100000"),
        ([*FINE, "--conf", "x"], "--conf: 'x' is no setting; give KEY=VALUE"),
        ([*FINE, "--out", "s3://bucket/x"], "--out: 's3://bucket/x' is not a directory of this"),
        ([*FINE[:4], "--snapshot", "rmq:orders"], "--url: not given; give redis://"),
        ([*FINE, "--ledger", "rmq:orders"], "only the snapshot can be read from RMQ"),
        ([*FINE, "--ledger", "json:"], "--ledger: 'json:' names nothing; give json:PATH"),
        ([*FINE, "--nonsense"], "--nonsense"),
    ],
)
def test_an_option_that_cannot_work_exits_with_2_and_says_what_to_do(
    options: list[str], told: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RMQ_URL", raising=False)

    assert main(options) == 2

    said = capsys.readouterr().err
    assert said.startswith("audit: ")
    assert told in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read: [PATH_NOT_FOUND]"),
        ('{"id": 1, "at": 2}\n', "has id, at in its first lines; give one object a line, with"),
        ('{"message_id": "x", "topic": "y"}\n', "--ledger: no column 'produced_at' in"),
        ("no json\n", "has no objects in its first lines"),
    ],
)  # fmt: skip
def test_an_input_that_is_not_there_or_is_something_else_exits_with_2(
    spark: SparkSession, tmp_path: Path, capsys: Capture, content: str | None, told: str
) -> None:
    options = Books(2).files(tmp_path)
    path = tmp_path / "ledger.json"
    path.unlink()
    if content is not None:
        path.write_text(content)

    assert main(options) == 2

    assert told in capsys.readouterr().err
