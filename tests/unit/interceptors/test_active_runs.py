"""Notes of an interceptor are visible inside their run only."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from rmq.interceptors import active_runs
from rmq.interceptors.active_runs import Runs
from rmq.kernel.core import ids
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.score import receipt_score
from rmq.kernel.delivery.delivery_blocking import Delivery
from rmq.kernel.delivery.inner_delivery import BatchOrigin, InnerDelivery

SETTLE_WITH: Any = None  # nothing is settled here


def delivery(
    attempt: int = 1, due_ms: int = 0, topic: str = "a_b-c.0", dedup_key: bytes = b""
) -> Delivery:
    origin = BatchOrigin(SlotKeys("rmq", topic, 12), 0, 16, 0.0)
    (id,) = ids.make(12, ids.topic_check("rmq", topic))
    if dedup_key:
        id = ids.derive(dedup_key, 12, id.check)
    head = bytes((1 if due_ms else 0,)) + bytes(7)
    entry = head + (due_ms.to_bytes(6, "big") if due_ms else b"") + b"{}"
    score = receipt_score(1_790_000_000, 17 - attempt, 1)
    return Delivery(InnerDelivery(origin, id, score, entry, 1, {}), SETTLE_WITH)


def test_the_topic_is_read_whatever_is_in_its_name() -> None:
    for name in ("orders", "a_b_3", "x.y-z", "_"):
        assert delivery(topic=name).topic == name


def test_a_run_is_known_until_it_ends_and_the_context_is_as_before() -> None:
    known: Runs[str] = Runs("test")
    one, before = delivery(), contextvars.copy_context()

    run = known.begin(one, "noted")
    assert known.now is run
    assert run is not None
    assert (run.first, run.size) == (one, 1)
    assert known.end(one) == ("noted", run)

    assert known.now is None
    assert contextvars.copy_context() == before


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_batch_is_one_run_that_ends_with_its_last_delivery(order: tuple[int, ...]) -> None:
    known: Runs[int] = Runs("test")
    batch, before = [delivery() for _ in range(3)], contextvars.copy_context()

    first = known.begin(batch[0], 0)
    assert first is not None
    assert [known.begin(one, n) for n, one in enumerate(batch[1:], 1)] == [None, None]
    assert (first.first, first.size) == (batch[0], 3)
    ended = [known.end(batch[n]) for n in order]

    assert ended == [(order[0], None), (order[1], None), (order[2], first)]
    assert contextvars.copy_context() == before


def test_an_end_without_a_beginning_is_nothing() -> None:
    known: Runs[int] = Runs("test")
    one = delivery()
    assert known.end(one) == (None, None)

    known.begin(one, 1)
    assert known.end(delivery()) == (None, None)
    assert known.end(one)[0] == 1
    assert known.end(one) == (None, None)


def test_a_run_in_an_inherited_context_is_another_one() -> None:
    known: Runs[int] = Runs("test")
    outer, inner = delivery(), delivery()
    run = known.begin(outer, 1)

    def elsewhere() -> None:
        assert known.now is run, "it knows where it came from"
        other = known.begin(inner, 2)
        assert other is not None
        assert other.first is inner
        assert known.end(inner) == (2, other)
        assert known.now is run

    async def task() -> None:
        elsewhere()

    async def in_task() -> None:
        await asyncio.create_task(task())

    thread = threading.Thread(target=contextvars.copy_context().run, args=(elsewhere,))
    thread.start()
    thread.join()
    asyncio.run(in_task())
    assert known.end(outer) == (1, run)
    assert known.now is None


def test_lateness_counts_from_when_it_was_due_or_made(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, timed = delivery(), delivery(due_ms=1_790_000_000_000)
    assert plain.id.made_at is not None
    made = plain.id.made_at.timestamp()
    monkeypatch.setattr(active_runs.time, "time", lambda: made + 2)
    assert active_runs.late_s(plain) == pytest.approx(2, abs=0.01)
    monkeypatch.setattr(active_runs.time, "time", lambda: 1_790_000_003.5)
    assert active_runs.late_s(timed) == 3.5
    assert active_runs.late_s(delivery(attempt=2)) is None
    assert active_runs.late_s(delivery(dedup_key=b"k")) is None, "its id holds no time"
    assert active_runs.late_s(delivery(dedup_key=b"k", due_ms=1_790_000_000_000)) == 3.5
