"""Checks and encoding of a message before it has an id."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

import rmq
from rmq.errors import InvalidValue
from rmq.kernel.core import record
from rmq.kernel.core.codec import JSON
from rmq.kernel.core.delivery_limits import HEADERS_BYTES, HEADERS_MAX
from rmq.kernel.core.settings import Settings
from rmq.kernel.producer.encode import EncodedMessage, encode
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySessions


def encoded(out: rmq.Outgoing, **settings: object) -> EncodedMessage:
    context = TopicContext("rmq", "orders", JSON, ReplaySessions(), {})
    context.open_with(Settings(slots=4), b"1")
    return encode(context, Settings(slots=4, **settings), out)  # type: ignore[arg-type]


def test_a_timed_message_has_no_priority_unless_one_is_given() -> None:
    assert encoded(rmq.Outgoing(1, delay=5)).head == record.head(JSON.number, record.TIMED, 0)
    assert encoded(rmq.Outgoing(1, delay=5, priority=30)).head == record.head(
        JSON.number, record.TIMED, 30
    )


def test_a_delay_of_zero_is_due_at_once() -> None:
    made = encoded(rmq.Outgoing(1, delay=0))

    assert (made.head, made.envelope) == (record.head(JSON.number, 0, 100), b"")


def test_a_message_expires_as_its_topic_says_unless_it_says_otherwise() -> None:
    assert encoded(rmq.Outgoing(1), expires_ms=7000).envelope == (7000).to_bytes(6, "big")
    assert encoded(rmq.Outgoing(1, expires=2), expires_ms=7000).envelope == (2000).to_bytes(
        6, "big"
    )


def test_a_merging_message_goes_to_the_slot_of_its_key() -> None:
    made = encoded(rmq.Outgoing(1, merge_key="user:42", time_range=0.5))

    assert (made.basis, made.merge_key, made.mode) == ("user:42", "user:42", "first")
    assert encoded(rmq.Outgoing(1, merge_key="k", time_range=1, slot_basis="b")).basis == "b"


def test_the_id_of_a_dedup_key_is_the_same_each_time_and_of_the_slot_of_its_basis() -> None:
    first, again = (encoded(rmq.Outgoing(1, dedup_key="order-7")).id for _ in range(2))
    other = encoded(rmq.Outgoing(1, dedup_key="order-8")).id

    assert first == again != other


def test_a_body_may_be_as_large_as_max_body_and_no_larger() -> None:
    assert encoded(rmq.Outgoing("x" * 98), max_body=100).body == b'"' + b"x" * 98 + b'"'
    with pytest.raises(rmq.PayloadTooLarge, match="101 bytes as json; the topic's max_body is 100"):
        encoded(rmq.Outgoing("x" * 99), max_body=100)


@pytest.mark.parametrize(
    ("out", "error"),
    [
        (rmq.Outgoing(1, delay=1, at=1_900_000_000_000), "delay and at"),
        (rmq.Outgoing(1, merge_key="k"), "merge_key: given without time_range"),
        (rmq.Outgoing(1, time_range=1), "time_range: given without merge_key"),
        (rmq.Outgoing(1, merge="last"), "need merge_key"),
        (rmq.Outgoing(1, merge_key="k", time_range=1, delay=1), "waits for its time_range"),
        (rmq.Outgoing(1, merge_key="k", time_range=1, extend=True), "give max_wait too"),
        (rmq.Outgoing(1, merge_key="k", time_range=1, max_wait=2), "give extend=True too"),
        (rmq.Outgoing(1, merge_key="k" * 1025, time_range=1), "1 to 1024 bytes"),
        (rmq.Outgoing(1, dedup_key="k", merge_key="k", time_range=1), "dedup_key: given with"),
        (rmq.Outgoing(1, headers={"rmq-x": "1"}), "do not begin with rmq-"),
        (rmq.Outgoing(1, headers={str(n): "" for n in range(HEADERS_MAX + 1)}), "33 entries"),
        (rmq.Outgoing(1, headers={"a": "x" * HEADERS_BYTES}), "give at most 4096"),
    ],
)
def test_a_message_that_cannot_work_is_refused_and_its_field_named(
    out: rmq.Outgoing, error: str
) -> None:
    with pytest.raises(rmq.InvalidValue, match=error):
        encoded(out)


def test_a_group_chooses_the_slot_and_stands_first_among_the_headers() -> None:
    made = encoded(rmq.Outgoing(1, group="a", headers={"h": "1"}, type="t"), groups=rmq.Groups())
    by_basis = encoded(rmq.Outgoing(1, slot_basis="a"))

    assert (made.basis, made.slot) == ("a", by_basis.slot)
    assert list(msgpack.unpackb(made.headers)) == ["rmq-group", "h", "rmq-type"]
    for basis in ("a", b"a"):
        out = rmq.Outgoing(1, group="a", slot_basis=basis)
        assert encoded(out, groups=rmq.Groups()).slot == made.slot


@pytest.mark.parametrize(
    ("options", "mark"),
    [
        ({}, "a"),
        ({"share_key": "b"}, "\x011\x01b\x01a"),
        ({"share_key": "gold"}, "\x014\x01gold\x01a"),
        ({"share_key": "gold", "weight": 2}, "\x012\x01gold\x01a"),
        ({"weight": 64}, "\x0164\x01\x01a"),
    ],
)
def test_a_weight_is_that_of_the_message_or_that_of_the_setting(
    options: dict[str, Any], mark: str
) -> None:
    made = encoded(rmq.Outgoing(1, group="a", **options), groups=rmq.Groups(share={"gold": 4}))

    assert msgpack.unpackb(made.headers)["rmq-group"] == mark


def test_in_a_topic_with_groups_a_timed_message_has_a_priority() -> None:
    made = encoded(rmq.Outgoing(1, delay=5), groups=rmq.Groups())

    assert made.head == record.head(JSON.number, record.TIMED, 100)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"share_key": "s"}, "share_key: given without group"),
        ({"weight": 2}, "weight: given without group"),
        ({"group": "a", "weight": 65}, "weight: 65"),
        ({"group": ""}, "group: ''"),
        ({"group": "x" * 201}, "group: 'xxx"),
        ({"group": "a\n"}, "group: 'a\\\\n'"),
        ({"group": "a", "share_key": ""}, "share_key: ''"),
        ({"group": "a", "slot_basis": "b"}, "the group chooses the slot"),
        ({"group": "a", "merge_key": "k", "time_range": 1}, "group: given with merge_key"),
    ],
)
def test_what_cannot_be_said_of_a_group_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidValue, match=told):
        encoded(rmq.Outgoing(1, **options), groups=rmq.Groups())


def test_a_group_is_refused_in_a_topic_without_groups() -> None:
    with pytest.raises(InvalidValue, match=r"'orders' has no groups.*groups=rmq\.Groups\(\)"):
        encoded(rmq.Outgoing(1, group="a", share_key="s", weight=2))
