"""The audit on DataFrames: what was planted is found, and nothing else is."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame

from rmq import MessageId
from rmq.kernel.core import ids
from rmq.sql.outbox import tables as outbox_ids
from spark_connector import audit as audits
from spark_connector.audit import Findings, UsageError, audit, gaps, inputs, outbox, words
from spark_connector.audit.states import ROWS_PER_TASK, states
from tests.spark.audits import AS_OF_MS, BEGIN_MS, HORIZON_MS, SETTLE_MS, Books, frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, books: Books, **more: Any) -> Findings:
    given: dict[str, Any] = {"as_of_ms": AS_OF_MS, "settle_ms": SETTLE_MS, **more}
    return audit(*books.frames(spark), **given)


def listed(found: Findings, status: str) -> set[str]:
    return {one.message_id for one in found.listed.get(status, ())}


def test_a_clean_run_reports_nothing(spark: SparkSession) -> None:
    books = Books(20)

    found = run(spark, books)

    assert found.code == 0
    assert found.totals == {"delivered": 20}
    assert found.found() == {}
    assert found.doubts() == []
    assert (found.gaps, found.gap_numbers, found.redelivered) == (0, 0, 0)
    assert found.listed == {}
    assert found.topics == {"orders": {"delivered": 20}}
    assert (sum(m.sent for m in found.timeline), sum(m.delivered for m in found.timeline)) == (
        20,
        20,
    )


def test_every_planted_fault_is_found_and_nothing_else(spark: SparkSession) -> None:
    books = Books(40)
    own = books.ids
    lost, nacked_and_gone, twice, again, copied, dead, rejected = own[0:7]
    prepared, waiting, cancelled, gap, redriven, own_way = own[7:13]
    for one in (
        lost,
        nacked_and_gone,
        dead,
        rejected,
        prepared,
        waiting,
        cancelled,
        redriven,
        own_way,
    ):
        books.forget(one)
    books.deliver(nacked_and_gone, BEGIN_MS + 20_000, "nack")
    books.deliver(nacked_and_gone, BEGIN_MS + 30_000, None, 2)
    books.deliver(twice, BEGIN_MS + 900_000)
    books.deliver(again, BEGIN_MS + 100, "nack")
    books.deliveries += [row for row in books.deliveries if row["message_id"] == copied]
    books.queue(dead, "dead")
    books.deliver(rejected, BEGIN_MS + 70_000, "reject")
    books.queue(prepared, "prepare")
    books.queue(waiting, "store")
    books.deliver(cancelled, BEGIN_MS + 100_000, "cancel")
    books.deliver(redriven, BEGIN_MS + 100_000, "reject")
    books.queue(redriven, "store")
    books.deliver(own_way, BEGIN_MS + 140_000, "own")
    books.ledger = [row for row in books.ledger if row["message_id"] != gap]
    young = books.send(301, "p1", 21)["message_id"]
    strange = str(ids.make(3, 77)[0])
    books.deliver(strange, BEGIN_MS + 5_000)
    late = str(ids.make(3, 77)[0])
    books.deliver(late, HORIZON_MS + 1)

    found = run(spark, books)

    assert found.totals == {
        "delivered": 30, "duplicated": 1, "lost": 2, "dead": 2, "in_flight": 1,
        "waiting": 2, "removed": 1, "unknown": 2, "pending": 2,
    }  # fmt: skip
    assert listed(found, audits.LOST) == {lost, nacked_and_gone}
    assert listed(found, audits.DUPLICATED) == {twice}
    assert listed(found, audits.DEAD) == {dead, rejected}
    assert listed(found, audits.UNKNOWN) == {strange, gap}
    assert found.redelivered == 2  # `again`, and the copied row
    assert [(g.producer, g.slot, g.first, g.last) for g in found.gap_list] == [("p0", 3, 6, 6)]
    assert (found.gaps, found.gap_numbers) == (1, 1)
    assert found.code == 1
    assert found.found() == {"lost": 2, "duplicated": 1, "gaps": 1}
    assert sum(m.lost for m in found.timeline) == 2
    assert young not in listed(found, audits.LOST)


def test_only_the_topics_and_faults_that_were_asked_for_count(spark: SparkSession) -> None:
    books, others = Books(6), Books(6, topic="mails")
    books.forget(books.ids[1])
    books.queue(books.ids[1], "dead")
    others.forget(others.ids[0])
    books.ledger += others.ledger
    books.deliveries += others.deliveries

    found = run(spark, books, topics=("orders",), faults=("lost", "dead"))

    assert found.topics == {"orders": {"delivered": 5, "dead": 1}}
    assert found.code == 1
    assert replace(found, faults=words.FAULTS_DEFAULT).code == 0


# --- no verdict --------------------------------------------------------------------------------


def test_without_anything_to_go_by_there_is_no_verdict(spark: SparkSession) -> None:
    empty, early, torn = Books(0), Books(4), Books(4)
    torn.deliveries[0]["message_id"] = None

    def doubts(books: Books, **more: Any) -> list[str]:
        found = run(spark, books, **more)
        assert found.code == 3
        return found.doubts()

    assert doubts(empty) == ["the ledger is empty", "the delivery log is empty"]
    assert "is older than the horizon" in doubts(early, as_of_ms=BEGIN_MS)[0]
    del torn.ledger[0]
    assert doubts(torn) == ["1 row of the delivery log cannot be read"]


def test_rows_that_cannot_be_read_do_not_hide_what_was_lost(spark: SparkSession) -> None:
    books = Books(4)
    books.ledger[3]["topic"] = None
    books.forget(books.ids[0])

    found = run(spark, books)

    assert found.code == 1
    assert found.doubts() == ["1 row of the ledger cannot be read"]


def test_when_the_snapshot_was_taken_may_stand_in_it(spark: SparkSession) -> None:
    books = Books(4)
    books.queue(books.ids[0], "store")
    books.forget(books.ids[0])
    books.snapshot[0]["taken_at"] = AS_OF_MS

    assert run(spark, books, as_of_ms=None).horizon_ms == HORIZON_MS

    del books.snapshot[0]["taken_at"]
    with pytest.raises(UsageError, match=r"^as-of: not given.*give the time"):
        run(spark, books, as_of_ms=None)


def test_rows_are_shuffled_before_they_are_grouped_to_tasks_of_bounded_size(
    spark: SparkSession,
) -> None:
    ledger, deliveries, snapshot = Books(3).frames(spark)
    three = inputs.ledger(ledger), inputs.deliveries(deliveries), inputs.snapshot(snapshot)

    grouped = states(*three, HORIZON_MS, 2 * ROWS_PER_TASK + 1, 1)

    plan = grouped._jdf.queryExecution().executedPlan().toString()
    # A partial aggregate would hold each row of an input in the memory of the task that reads it.
    assert re.search(r"functions=\[bit_or\(", plan)
    assert "partial_bit_or" not in plan
    assert re.search(r"hashpartitioning\(topic#\d+, message_id#\d+, 3\)", plan)


# --- numbers -----------------------------------------------------------------------------------


EDGE, RUN, LATE_S = gaps.BLOCK, gaps.RUN, (HORIZON_MS - BEGIN_MS) // 1000
FAR = (1 << 60) + EDGE  # a double cannot tell such numbers apart

# Ledgers of one producer each, which has a name here; all of them are counted in one job. Numbers
# from the first to the last, and when the first was produced, in seconds; one each 10 ms.
PRODUCERS: dict[str, list[tuple[int, int, int, str]]] = {
    "edges": [
        (1, EDGE - 1, 0, ""), (EDGE + 1, 2 * EDGE - 2, 50, ""), (2 * EDGE, 2 * EDGE + 9, 100, ""),
        (5 * EDGE + 1, 5 * EDGE + 5, 110, ""),
    ],
    "runs": [
        (1, RUN - 1, 0, ""), (RUN + 1, 2 * RUN - 2, 1, ""), (2 * RUN, 2 * RUN, 2, ""),
        (4 * RUN, 4 * RUN + 1, 3, ""),
    ],
    "below zero": [(-2 * RUN - 1, -RUN, 0, ""), (-RUN + 2, 1, 2, "")],
    "beyond 2^53": [(FAR - 2, FAR, 0, ""), (FAR + 2, FAR + 3, 1, "")],
    "young": [(1, 10, 0, ""), (12, 20, LATE_S + 1, "")],
    "just old enough": [(1, 10, 0, ""), (12, 20, LATE_S, "")],
    "again": [(1, 50, 0, ""), (1, 30, 100, ""), (1, 80, 200, "")],
    # The ledger begins in the middle of an epoch, and the next one is shorter.
    "again, shorter": [(900, 1000, 0, ""), (1, 50, 100, "")],
    "again, with a gap": [(1, 50, 0, ""), (1, 20, 100, ""), (23, 50, 110, "")],
    "epochs": [(1, 5, 0, "a"), (1, 3, 0, "b"), (5, 9, 1, "b")],
}  # fmt: skip

Gaps = dict[str, list[tuple[str | None, int, int]]]


@pytest.fixture(scope="module")
def jumps(spark: SparkSession) -> Gaps:
    """By producer: epoch, first and last number of what is missing."""
    rows = reduce(
        DataFrame.unionByName,
        (
            spark.range(first, last + 1).selectExpr(
                "'orders' AS topic", f"'{name}' AS producer", "0 AS slot", f"'{epoch}' AS epoch",
                "id AS seq", f"{BEGIN_MS + at_s * 1000} + (id - {first}) * 10 AS at",
            )
            for name, parts in PRODUCERS.items()
            for first, last, at_s, epoch in parts
        ),
    )  # fmt: skip
    found = gaps.gaps(rows, HORIZON_MS)
    assert found is not None
    listed: Gaps = {name: [] for name in PRODUCERS}
    for row in found.orderBy("first").collect():
        listed[row["producer"]].append((row["epoch"], row["first"], row["last"]))
    return listed


def test_gaps_at_the_edges_of_blocks_are_found(jumps: Gaps) -> None:
    assert jumps["edges"] == [
        (None, EDGE, EDGE),
        (None, 2 * EDGE - 1, 2 * EDGE - 1),
        (None, 2 * EDGE + 10, 5 * EDGE),
    ]


def test_gaps_at_the_edges_of_runs_are_found(jumps: Gaps) -> None:
    assert jumps["runs"] == [
        (None, RUN, RUN),
        (None, 2 * RUN - 1, 2 * RUN - 1),
        (None, 2 * RUN + 1, 4 * RUN - 1),
    ]


def test_gaps_of_numbers_of_any_size_are_found(jumps: Gaps) -> None:
    assert jumps["below zero"] == [(None, -RUN + 1, -RUN + 1)]
    assert jumps["beyond 2^53"] == [(None, FAR + 1, FAR + 1)]


def test_gaps_of_random_numbers_are_those_that_a_sort_finds(spark: SparkSession) -> None:
    chance = random.Random(30)
    numbers = {
        f"p{part}": [
            number
            for number in range(chance.randrange(200), chance.randrange(4000, 9000))
            if chance.random() < (0.999, 0.9, 0.01)[part % 3]
        ]
        for part in range(12)
    }
    rows = [
        ("orders", producer, 0, "", number, BEGIN_MS + number)
        for producer, present in numbers.items()
        for number in [*present, *present[: len(present) // 2]]  # half of them twice
    ]
    chance.shuffle(rows)
    columns = "topic string, producer string, slot int, epoch string, seq bigint, at bigint"

    found = gaps.gaps(spark.createDataFrame(rows, columns), HORIZON_MS)

    assert found is not None
    assert {(row["producer"], row["first"], row["last"]) for row in found.collect()} == {
        (producer, before + 1, number - 1)
        for producer, present in numbers.items()
        for before, number in itertools.pairwise(present)
        if number > before + 1
    }


def test_a_gap_younger_than_the_horizon_is_none_yet(jumps: Gaps) -> None:
    assert jumps["young"] == []
    assert jumps["just old enough"] == [(None, 11, 11)]


def test_a_producer_that_starts_anew_has_no_gap_for_it(jumps: Gaps) -> None:
    assert jumps["again"] == jumps["again, shorter"] == []


def test_a_gap_after_a_new_start_is_found(jumps: Gaps) -> None:
    assert jumps["again, with a gap"] == [("2", 21, 22)]


def test_epochs_that_the_ledger_tells_are_counted_apart(jumps: Gaps) -> None:
    assert jumps["epochs"] == [("b", 4, 4)]


def counted(spark: SparkSession, books: Books, scope: gaps.Scope = "slot") -> int | None:
    """Gaps in the numbers of a ledger."""
    found = gaps.gaps(gaps.numbered(inputs.ledger(books.frames(spark)[0]), scope), HORIZON_MS)
    return None if found is None else found.count()


def test_a_producer_may_count_across_slots(spark: SparkSession) -> None:
    books = Books(6, producers=1)
    for n, row in enumerate(books.ledger):
        row["slot"] = n % 2

    assert counted(spark, books) == 4
    found = run(spark, books, scope="producer")

    assert (found.gaps, found.code) == (0, 0)


def test_a_ledger_without_numbers_has_no_gaps_to_tell(spark: SparkSession) -> None:
    books = Books(4)
    for row in books.ledger:
        row["seq"] = None

    assert counted(spark, books) is None


# --- the outbox --------------------------------------------------------------------------------


def test_the_id_of_a_stub_is_found_from_any_message_id(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    some = [MessageId(bytes([n * 7 % 256, *range(n, n + 15)])) for n in range(0, 200, 9)]
    some += [MessageId(b"\xff" * 16), MessageId(b"\0" * 16), ids.make(1023, 0x3FFF)[0]]
    rows = spark.createDataFrame([(str(one),) for one in some], "id string")

    made = [row[0] for row in rows.select(outbox.stub_id(F.col("id"))).collect()]

    assert made == [str(outbox_ids.stub_id(one)) for one in some]


def test_rows_of_the_outbox_are_a_ledger(spark: SparkSession) -> None:
    books = Books(0)
    stubs = []
    for n in range(7):
        stubs.append(
            {
                "id": str(outbox_ids.new_id()), "topic": "orders", "status": "unconfirmed",
                "sends": 1, "created": BEGIN_MS + n, "sent_at": BEGIN_MS + n + 5,
                "confirm": True, "slot": 5,
            }
        )  # fmt: skip
    acked, lost, unsent, young, confirmed, void, sent_only = stubs
    message = MessageId.parse(str(acked["id"])).with_slot(5, 77)
    books.deliver(str(message), BEGIN_MS + 100)
    unsent.update(sends=0, sent_at=None, slot=None)
    young.update(sends=0, sent_at=None, slot=None, created=HORIZON_MS + 1)
    confirmed.update(status="confirmed")
    void.update(status="void", sends=0)
    sent_only.update(status="confirmed", confirm=False)

    found = audit(
        frame(spark, stubs, "id"), books.frames(spark)[1], None,
        as_of_ms=AS_OF_MS, settle_ms=SETTLE_MS, is_outbox=True,
    )  # fmt: skip

    assert found.totals == {"delivered": 2, "lost": 2, "unsent": 1, "pending": 1, "removed": 1}
    assert listed(found, audits.LOST) == {lost["id"], sent_only["id"]}
    assert listed(found, audits.UNSENT) == {unsent["id"]}
    assert (found.gaps, found.code) == (None, 1)


# --- inputs ------------------------------------------------------------------------------------


def test_times_of_every_kind_are_the_same_time(spark: SparkSession) -> None:
    rows = spark.sql(
        "SELECT timestamp_millis(1790000000123) AS a, 1790000000123L AS b, '1790000000123' AS c, "
        "'2026-09-21T14:13:20.123Z' AS d, '2026-09-21 16:13:20.123+02:00' AS e, 'nonsense' AS f"
    )

    row = rows.select(*(inputs.time_ms(rows, name, "x").alias(name) for name in "abcdef")).collect()

    assert tuple(row[0]) == (1_790_000_000_123,) * 5 + (None,)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (
            "d.drop('delivered_at')",
            r"^deliveries: no column 'delivered_at' in \(message_id, .*it needs",
        ),
        (
            "d.selectExpr('* except(outcome)', \"'success' AS outcome\")",
            "^deliveries: column 'outcome' has 'success'; it may be ack, own,",
        ),
        (
            "d.withColumn('message_id', d.message_id.cast('binary'))",
            "'message_id' is binary; give text",
        ),
        (
            "d.withColumn('delivered_at', d.delivered_at.cast('double'))",
            "is double; give a timestamp",
        ),
    ],
)
def test_an_input_that_cannot_work_is_refused(spark: SparkSession, spoil: str, told: str) -> None:
    ledger, deliveries, snapshot = Books(2).frames(spark)
    spoilt = eval(spoil, {"d": deliveries})

    with pytest.raises(UsageError, match=told):
        audit(ledger, spoilt, snapshot, as_of_ms=AS_OF_MS, settle_ms=SETTLE_MS)
