"""Unhandled messages: those whose type has no handler."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgpack
import pytest

import rmq
from rmq.kernel.core import ids, record
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.settings import Settings
from rmq.kernel.delivery.inner_delivery import BatchOrigin, InnerDelivery
from rmq.kernel.topic import clock as command_clock
from rmq.worker.settling import unhandled
from rmq.worker.settling.unhandled import Unhandled
from tests.foreign import own_records

START_MS = 1_900_000_000_000
HOUR_MS = 3_600_000


def at(ms: int) -> None:
    command_clock.set_clock((START_MS + ms) * 1000)


@pytest.fixture(autouse=True)
def test_clock() -> Iterator[None]:
    at(0)
    yield
    command_clock.set_clock(None)


def make_unhandled(**changes: Any) -> Unhandled:
    client = rmq.Client("redis://localhost:1/0")
    client.topic("orders").handler(type="known")(lambda body: None)
    handlers = client._handlers.by_topic["orders"]
    handlers.context.open_with(replace(Settings(), **changes), b"1")
    return Unhandled(handlers)


def delivery(message_type: str | None = "x", due_ms: int | None = None) -> InnerDelivery:
    headers = {} if message_type is None else {record.TYPE_MARK: message_type}
    flags = (record.HEADERS if headers else 0) | (0 if due_ms is None else record.TIMED)
    envelope = b"" if due_ms is None else (START_MS + due_ms).to_bytes(6, "big")
    if headers:
        envelope += record.length_prefixed(msgpack.packb(headers))
    entry = record.head(1, flags, 100) + bytes(4) + envelope + b"{}"
    origin = BatchOrigin(SlotKeys("rmq", "orders", 0, b"1"), 0, 16, 0.0)
    return InnerDelivery(origin, ids.make(0, 0)[0], 0.0, entry, 1, {})


def test_it_is_released_for_as_long_again_as_it_has_been_due() -> None:
    decide = make_unhandled()
    waits = []
    for ms in (0, 150, 1000, 40_000, 600_000):
        at(ms)
        disposition = decide.disposition(delivery(due_ms=0))
        assert disposition.verb == "release"
        waits.append(disposition.wait_s)

    assert waits == [0.1, 0.15, 1.0, 40.0, 60.0]


def test_a_fresh_message_of_a_type_met_long_ago_comes_back_soon() -> None:
    decide = make_unhandled()
    decide.disposition(delivery(due_ms=0))
    at(HOUR_MS)

    assert decide.disposition(delivery(due_ms=HOUR_MS - 200)).wait_s == 0.2


def test_after_the_topics_time_it_is_dead_with_a_reason_that_says_what_to_do() -> None:
    decide = make_unhandled()
    decide.disposition(delivery(due_ms=0))
    at(HOUR_MS - 1)
    assert decide.disposition(delivery(due_ms=0)).verb == "release"
    at(HOUR_MS)

    end = decide.disposition(delivery(due_ms=0))

    assert (end.verb, end.kind) == ("reject", "n")
    assert end.error == (
        "no handler for messages of type 'x' within 1h; start a worker that has one, and then send "
        "them back: rmq dlq redrive orders --reason unhandled --type x"
    )


def test_an_old_message_is_kept_while_its_type_is_new_to_the_process() -> None:
    decide = make_unhandled()
    old = delivery(due_ms=-2 * HOUR_MS)

    first = decide.disposition(old)
    at(unhandled.TYPE_KNOWN_MIN_MS - 1)
    before = decide.disposition(old)
    at(unhandled.TYPE_KNOWN_MIN_MS)
    after = decide.disposition(old)

    assert (first.verb, first.wait_s, before.verb, after.verb) == (
        "release", 0.1, "release", "reject",
    )  # fmt: skip


def test_with_unhandled_off_it_waits_for_ever() -> None:
    decide = make_unhandled(unhandled_ms=0)
    decide.disposition(delivery(due_ms=0))
    at(1000 * HOUR_MS)

    assert decide.disposition(delivery(due_ms=0)).verb == "release"


def test_a_message_without_a_type_is_told_so() -> None:
    decide = make_unhandled(unhandled_ms=1000)
    decide.disposition(delivery(None))
    at(1000)

    end = decide.disposition(delivery(None))

    assert str(end.error).startswith("no handler for messages without a type within 1s; ")
    assert str(end.error).endswith("rmq dlq redrive orders --reason unhandled")


def test_the_age_of_a_message_without_a_due_time_is_that_of_its_id() -> None:
    decide = make_unhandled()
    command_clock.set_clock(None)

    fresh = decide.disposition(delivery())

    assert (fresh.verb, fresh.wait_s) == ("release", 0.1)


def test_the_log_names_a_type_once(caplog: pytest.LogCaptureFixture) -> None:
    decide = make_unhandled()
    with caplog.at_level(logging.WARNING, "rmq"):
        for name in ("x", "x", "y"):
            decide.disposition(delivery(name))

    assert [one.getMessage() for one in own_records(caplog)] == [
        f"topic 'orders': this worker has no handler for messages of type {name!r}; they wait for "
        "a worker that has one, and are dead after 1h"
        for name in ("x", "y")
    ]


def test_it_remembers_a_limited_number_of_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unhandled, "TYPES_MAX", 2)
    decide = make_unhandled()
    for name in ("x", "y", "z"):
        decide.disposition(delivery(name))

    assert list(decide._first_seen_ms) == ["y", "z"]
