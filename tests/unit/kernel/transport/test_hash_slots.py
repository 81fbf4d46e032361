"""The table of hash slots: ranges, MOVED replies, nodes that do not know their own address."""

from __future__ import annotations

import pytest
from redis.exceptions import AskError, MovedError

from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.transport import hash_slots
from rmq.kernel.transport.hash_slots import HASH_SLOTS, MOVED_MAX, SlotTable, address_of, hash_slot

A, B, C = ("a", 1), ("b", 2), ("c", 3)
REPLY = [[0, 99, [b"a", 1, b"id"], [b"c", 3, b"id"]], [100, HASH_SLOTS - 1, [b"b", 2, b"id"]]]


@pytest.fixture
def table() -> SlotTable:
    made = SlotTable([A])
    made.read(REPLY, A)
    return made


def test_the_keys_of_a_slot_of_a_topic_are_in_one_hash_slot() -> None:
    keys = SlotKeys("rmq", "orders", 3)
    everything = [getattr(keys, name) for name in ("slot", "store", "prepare", "claim_stem")]
    assert {hash_slot(key) for key in everything} == {hash_slot("{orders_3}")}
    assert hash_slot(b"123456789") == 0x31C3  # the check value of the cluster specification


def test_a_range_belongs_to_its_master(table: SlotTable) -> None:
    assert table.node_of(0) == table.node_of(99) == A
    assert table.node_of(100) == table.node_of(HASH_SLOTS - 1) == B
    assert table.masters() == [A, B]
    assert table.nodes == {A, B, C}


def test_slots_that_nobody_serves_have_no_node() -> None:
    table = SlotTable([A])
    assert table.node_of(7) is None
    table.read([[5, 6, [b"a", 1]]], A)
    assert table.node_of(6) == A
    assert table.node_of(7) is None


def test_moved_patches_one_slot(table: SlotTable) -> None:
    assert table.note_moved(50, B) is False
    assert table.node_of(50) == B
    assert table.node_of(49) == table.node_of(51) == A


def test_many_moved_slots_ask_for_the_whole_table_which_begins_anew(table: SlotTable) -> None:
    asked = [table.note_moved(slot, B) for slot in range(MOVED_MAX)]
    assert asked == [False] * (MOVED_MAX - 1) + [True]
    table.read(REPLY, A)
    assert table.node_of(0) == A
    assert table.note_moved(0, B) is False


@pytest.mark.parametrize("host", [None, b"", b"?", "", "None"])
def test_a_node_without_a_host_has_that_of_the_node_that_answered(host: object) -> None:
    assert address_of(host, 7001, ("10.0.0.5", 7000)) == ("10.0.0.5", 7001)


@pytest.mark.parametrize("text", ["50 :7001", "50 ?:7001", "50 None:7001"])
def test_moved_and_ask_without_a_host_lead_to_the_host_that_answered(text: str) -> None:
    for error in (MovedError(text), AskError(text)):
        assert address_of(error.host, error.port, ("10.0.0.5", 7000)) == ("10.0.0.5", 7001)


@pytest.mark.parametrize(("took_s", "pause_s"), [(None, 0), (0.0, 0.1), (0.5, 0.5), (24.0, 1.0)])
def test_a_node_that_did_not_answer_is_asked_again_within_a_second(
    table: SlotTable, monkeypatch: pytest.MonkeyPatch, took_s: float | None, pause_s: float
) -> None:
    now = 100.0
    monkeypatch.setattr(hash_slots.time, "monotonic", lambda: now)
    table.note_failed(A, took_s)

    now += pause_s * 0.99
    assert table.is_unreachable(A) == (took_s is not None)
    now += pause_s * 0.02
    assert not table.is_unreachable(A)


def test_suspects_are_asked_last(table: SlotTable) -> None:
    table.failed_nodes = {A, B}
    assert table.candidates()[0] == C
    assert table.any_node() in (A, B)  # better than none
    table.failed_nodes = {A}
    assert {table.any_node() for _ in range(50)} == {B}
