"""The keeper's rounds: what is renewed, in how many calls, and what is left alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rmq.core import ids
from rmq.core.codec import JSON
from rmq.core.delivery import BatchOrigin, DeliveryData
from rmq.core.replay_session import ReplaySessions
from rmq.core.score import receipt_deadline_ms, receipt_score
from rmq.core.settings import BATCH_MAX, Settings
from rmq.core.topic_context import TopicContext
from rmq.errors import OutcomeUnknown, Unavailable
from rmq.protocol.commands import ExtendReply
from rmq.worker.lease_renewer import ROUND_MOST_S, ROUNDS_PER_LEASE, LeaseRenewer
from rmq.worker.lease_table import LeaseTable

LEASE_MS, LEASE_S = 30_000, 30.0
DEADLINE_S = 1_790_000_100


class Redis:
    """Answers `extend` as a server does, and keeps what was asked."""

    def __init__(self) -> None:
        self.calls: list[list[bytes]] = []
        self.leases: list[int] = []
        self.lost: set[bytes] = set()
        self.away = self.silent = False
        self.receipts: list[list[str]] = []
        self.stored: dict[bytes, bytes] = {}  # the PrepareQueue

    def raw_command(self, name: str, *words: Any) -> list[bytes | None]:
        assert words[0] == "ZMSCORE"
        return [self.stored.get(member) for member in words[2:]]

    def run(self, flow: Any) -> Any:
        reply: Any = None
        try:
            while True:
                step = flow.send(reply)
                if self.away:
                    raise Unavailable("away")
                if self.silent:
                    raise OutcomeUnknown("no reply")
                many = getattr(step, "commands", None)
                reply = self._answer(step) if many is None else [self._answer(one) for one in many]
        except StopIteration as end:
            return end.value

    def _answer(self, command: Any) -> ExtendReply:
        assert command.script.name == "extend"
        _clock, _number, lease_ms, *rest = command.args
        asked = rest[: len(rest) // 2]
        self.calls.append(asked)
        self.receipts.append(rest[len(rest) // 2 :])
        self.leases.append(lease_ms)
        return ExtendReply(DEADLINE_S, "".join("01"[one not in self.lost] for one in asked))


class Scene:
    """A worker's board, and a keeper for it."""

    def __init__(self, rows: int) -> None:
        self.handles = [
            TopicContext("rmq", name, JSON, ReplaySessions(), {}) for name in ("orders", "mail")
        ]
        for handle in self.handles:
            handle.mark_open(Settings(), b"1")
        self.lease_table = LeaseTable(rows)
        self.redis = Redis()
        self.keeper = LeaseRenewer(self.lease_table, self.redis, self.handles)  # type: ignore[arg-type]

    def hold(
        self, count: int, age: float, topic: int = 0, lease_ms: int = LEASE_MS
    ) -> list[DeliveryData]:
        """Deliveries that were leased `age` seconds ago."""
        origin = BatchOrigin(
            SimpleNamespace(lease_table=self.lease_table), SimpleNamespace(index=0), 1, 16, 0.0
        )  # type: ignore[arg-type]
        made = [
            DeliveryData(origin, one, receipt_score(1_790_000_000, 16, n), b"", n, None)
            for n, one in enumerate(ids.make(0, self.handles[topic].check, count))
        ]
        self.lease_table.add(made, topic, lease_ms, time.monotonic() - age)
        return made


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene(20_000)
    yield made
    made.lease_table.close()


def test_ten_thousand_leases_are_ten_calls(scene: Scene) -> None:
    ones = scene.hold(10_000, age=15)

    scene.keeper.renew_due()

    assert [len(call) for call in scene.redis.calls] == [BATCH_MAX] * 10
    assert {one for call in scene.redis.calls for one in call} == {one.id.member for one in ones}
    assert scene.keeper.renewals == 10_000
    scene.keeper.renew_due()
    assert len(scene.redis.calls) == 10  # they were renewed just now


def test_a_lease_is_renewed_when_a_third_of_it_has_passed(scene: Scene) -> None:
    scene.hold(1, age=LEASE_S / 3 - 2)
    scene.keeper.renew_due()
    assert scene.redis.calls == []

    scene.hold(1, age=LEASE_S / 3 + 0.1)
    scene.keeper.renew_due()

    assert [len(call) for call in scene.redis.calls] == [2]  # the first goes along: one call


def test_what_was_leased_just_now_waits_for_the_next_call(scene: Scene) -> None:
    (old,) = scene.hold(1, age=15)
    scene.hold(5, age=0)

    scene.keeper.renew_due()

    assert scene.redis.calls == [[old.id.member]]


def test_after_a_renewal_the_worker_has_the_new_receipt_and_the_new_time(scene: Scene) -> None:
    (one,) = scene.hold(1, age=15)
    before = time.monotonic()

    scene.keeper.renew_due()

    assert scene.lease_table.refresh(one)
    assert receipt_deadline_ms(one._score) == DEADLINE_S * 1000
    assert one.retries_left == 16
    # Counted from before Redis was asked: never later than the lease that it gave.
    assert before + LEASE_S <= scene.lease_table.safe_until(one) <= time.monotonic() + LEASE_S
    assert not scene.lease_table.is_renewing(one)


def test_topics_and_leases_of_another_length_have_calls_of_their_own(scene: Scene) -> None:
    scene.hold(2, age=15)
    scene.hold(3, age=15, topic=1)
    scene.hold(4, age=6, lease_ms=12_000)

    scene.keeper.renew_due()

    asked = sorted(
        (len(call), lease)
        for call, lease in zip(scene.redis.calls, scene.redis.leases, strict=True)
    )
    assert asked == [(2, LEASE_MS), (3, LEASE_MS), (4, 12_000)]


def test_beyond_its_limit_a_lease_is_not_renewed(scene: Scene) -> None:
    over, within, free = scene.hold(3, age=15)
    scene.lease_table.renew_until(over, time.monotonic() - 0.001)
    scene.lease_table.renew_until(within, time.monotonic() + 60)

    scene.keeper.renew_due()

    assert scene.redis.calls == [[within.id.member, free.id.member]]


def test_what_redis_says_is_lost_is_marked_and_never_asked_for_again(scene: Scene) -> None:
    ours, taken = scene.hold(2, age=15)
    scene.redis.lost = {taken.id.member}

    scene.keeper.renew_due()

    assert taken.lost
    assert not ours.lost
    scene.redis.calls.clear()
    scene.lease_table.remove([ours])
    scene.keeper.renew_due()
    assert scene.redis.calls == []


def test_while_redis_is_away_nothing_is_lost_before_its_time_and_it_is_tried_again(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    (one,) = scene.hold(1, age=15)
    scene.redis.away = True

    with caplog.at_level(logging.WARNING, "rmq"):
        scene.keeper.renew_due()

    assert "not renewed just now" in caplog.text
    assert not one.lost
    assert not scene.lease_table.is_renewing(one)
    scene.redis.away = False
    scene.keeper.renew_due()
    assert scene.lease_table.refresh(one)


def test_after_a_renewal_without_a_reply_the_receipt_is_read_from_redis(scene: Scene) -> None:
    (one,) = scene.hold(1, age=15)
    scene.redis.silent = True
    scene.keeper.renew_due()
    renewed = receipt_score(1_790_000_030, 16, 0)  # Redis carried it out
    scene.redis.stored = {one.id.member: repr(renewed).encode()}
    scene.redis.silent = False

    scene.keeper.renew_due()

    assert scene.redis.receipts == [[repr(renewed)]]
    assert not one.lost


def test_a_lease_that_has_passed_is_asked_for_all_the_same(scene: Scene) -> None:
    (one,) = scene.hold(1, age=LEASE_S + 5)
    assert one.lost

    scene.keeper.renew_due()  # nobody rolled it back meanwhile

    assert not one.lost


def test_it_looks_more_often_the_shorter_the_leases_are(scene: Scene) -> None:
    assert scene.keeper.renew_due() == pytest.approx(1 / ROUNDS_PER_LEASE)  # before anybody knows
    scene.lease_table.set_shortest_lease_ms(12_000)
    assert scene.keeper.renew_due() == pytest.approx(12 / ROUNDS_PER_LEASE)
    scene.lease_table.set_shortest_lease_ms(3_600_000)
    assert scene.keeper.renew_due() == ROUND_MOST_S


def test_every_round_is_a_beat_even_with_nothing_in_hand(scene: Scene) -> None:
    scene.keeper.renew_due()
    first = scene.lease_table.last_round()
    assert first > 0
    time.sleep(0.01)  # the clock is to move
    scene.keeper.renew_due()
    assert scene.lease_table.last_round() > first
