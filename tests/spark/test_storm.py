"""Short storms, and those that the check of storms has to find."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

import rmq
from tests import clusters
from tests.spark import storm as storms
from tests.spark.conftest import MISSING
from tests.spark.long import long
from tests.spark.storm import (
    AHEAD,
    COPIES,
    EXECUTOR,
    FAILOVER,
    FROZEN,
    LOSS,
    LOSS_LEASE_S,
    STALE,
    CheckpointRefused,
    Storm,
    compare,
    storm,
)

pytestmark = pytest.mark.timeout(900)  # cold drivers, one for each kill, on a busy machine


@pytest.fixture(autouse=True)
def needs_spark() -> None:
    if MISSING:
        pytest.fail(MISSING)


def test_two_queries_lose_and_double_nothing_under_kills_and_resizes(tmp_path: Path) -> None:
    outcome = storm(tmp_path, kills=4, seed=7)

    assert outcome.is_exact, outcome
    assert outcome.sent > 0
    assert outcome.lapsed == outcome.lapses == outcome.told == 0


@pytest.mark.parametrize("broken", ["settles-early", "drops-ahead"])
def test_check_of_a_storm_finds_a_broken_source(tmp_path: Path, broken: str) -> None:
    try:
        outcome = storm(tmp_path, kills=3, seed=3, broken=broken)
    except CheckpointRefused:
        assert broken == "drops-ahead", "what it drops is settled before the checkpoint says so"
    else:
        assert outcome.missing > 0, outcome


@long("test_storm.py")
@pytest.mark.parametrize("own", [EXECUTOR, FAILOVER])
def test_kills_of_executors_and_of_masters_lose_and_double_nothing(
    tmp_path: Path, own: str
) -> None:
    outcome = storm(tmp_path, kills=3, seed=7, own=own)

    assert outcome.is_exact, outcome
    assert outcome.kills[own] == 2
    assert outcome.lapsed == outcome.lapses == outcome.told == 0


@long("test_storm.py")
def test_a_failover_that_loses_writes_loses_no_message_that_a_replica_confirmed(
    tmp_path: Path,
) -> None:
    outcome = storm(tmp_path, kills=3, seed=7, own=STALE)

    assert outcome.is_exact, outcome


@long("test_storm.py")
def test_a_failover_that_loses_writes_loses_messages_that_no_replica_confirmed(
    tmp_path: Path,
) -> None:
    outcome = storm(tmp_path, kills=1, seed=7, own=STALE, broken="unreplicated")

    assert outcome.missing > 0, outcome


def test_doubles_come_with_a_lapse_that_the_progress_counts(tmp_path: Path) -> None:
    outcome = storm(tmp_path, kills=1, seed=1, own=FROZEN, lease_s=3)

    assert outcome.is_exact, outcome
    assert outcome.lapsed > 0
    assert outcome.lapses > 0


@long("test_storm.py")
def test_check_of_a_storm_finds_a_lapse_that_is_not_counted(tmp_path: Path) -> None:
    outcome = storm(tmp_path, kills=1, seed=1, own=FROZEN, lease_s=3, broken="uncounted")

    assert outcome.lapsed > 0, outcome
    assert outcome.lapses == 0
    assert not outcome.is_exact


@long("test_storm.py")
def test_lost_topics_and_passwords_of_a_query_double_nothing_of_its_other_topics(
    tmp_path: Path,
) -> None:
    outcome = storm(tmp_path, kills=2, seed=1, own=LOSS, lease_s=LOSS_LEASE_S)

    assert outcome.is_exact, outcome
    assert outcome.lapsed == 0


@long("test_storm.py")
def test_check_of_a_storm_finds_a_renewal_that_ends_with_one_topic(tmp_path: Path) -> None:
    outcome = storm(
        tmp_path, kills=2, seed=1, own=LOSS, lease_s=LOSS_LEASE_S, broken="ends-renewal"
    )

    assert not outcome.is_exact, outcome
    assert outcome.lapsed > 0, outcome


class _Copied(NamedTuple):
    """Sends messages as the query that copies would send them."""

    topic: rmq.Topic

    def new_id(self, basis: str) -> rmq.MessageId:
        return self.topic.new_id(basis)

    def send_many(self, batch: list[rmq.Outgoing]) -> None:
        self.topic.send_many(
            [rmq.Outgoing({"n": one.body, "first": 1}, id=one.id) for one in batch]
        )


def test_a_storm_sends_more_messages_after_its_consumer_has_taken_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the producer waits for a batch, and the drivers wait for messages."""
    monkeypatch.setattr(storms, "MOST", 20)
    played = Storm(tmp_path, kills=0, seed=1, own=LOSS, lease_s=LOSS_LEASE_S, broken="")
    with rmq.Client(played._url) as client:
        topics = [_Copied(client.topic(name)) for name in COPIES]
        producer = threading.Thread(target=played._produce, args=(topics,), daemon=True)
        try:
            producer.start()
            clusters.until(lambda: played._sent > 20 * AHEAD)
            sent = played._sent
            played._consume(client)
            clusters.until(lambda: played._sent > sent, text="the producer sends again")
        finally:
            played._ended.set()
            producer.join()
            played._redis.stop()


@pytest.mark.parametrize(
    ("second", "exposed", "counted", "told", "kind", "is_exact"),
    [
        (1, (), 0, 0, "jvm", False),  # nothing says why it came twice
        (1, (), 1, 0, FROZEN, False),  # a lapse, but not of this message
        (2, (), 1, 0, FROZEN, True),
        (2, (), 0, 0, FROZEN, False),  # a lapse that was not counted
        (2, (), 0, 0, "jvm", False),
        (1, (0,), 0, 1, STALE, True),
        (1, (1,), 0, 1, STALE, False),  # another number was on its way
        (1, (0,), 0, 1, FAILOVER, False),  # it lost no writes, so no query may lose a lease
    ],
)
def test_check_of_a_storm_wants_a_cause_for_each_double(
    tmp_path: Path, second: int, exposed: tuple[int, ...], counted: int, told: int, kind: str,
    is_exact: bool,
) -> None:  # fmt: skip
    for name in ("batches", "lapses"):
        (tmp_path / name).mkdir()
    (tmp_path / "lapses" / "1").write_text(str(counted))
    for batch, attempt in ((1, 1), (2, second)):
        row = json.dumps({"n": "0", "first": "1", "second": attempt})
        (tmp_path / "batches" / str(batch)).write_text(json.dumps([row]))

    outcome = compare(tmp_path, 1, Counter([kind]), exposed, told)

    assert outcome.double + outcome.lapsed + outcome.failed_over == 1
    assert outcome.is_exact == is_exact
