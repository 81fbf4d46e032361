"""Sequence numbers of audited messages, and the header that carries one."""

from __future__ import annotations

import os
import time

import msgpack
import pytest

from rmq.errors import InvalidValue
from rmq.kernel.core import record, sequence
from rmq.kernel.core.interceptor import Hooks
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.sequence import ProducerSequence, SlotSequence

KEYS = SlotKeys("rmq", "orders", 0)


@pytest.mark.parametrize("count", [0, 1, 14, 15, 16, 17, 32])
def test_number_is_the_first_header_and_the_others_stay(count: int) -> None:
    others = {f"h{n}": "v" * n for n in range(count)}

    packed = sequence.headers("0123456789", 4711, msgpack.packb(others) if others else b"")

    found = msgpack.unpackb(packed)
    assert list(found.items()) == [("rmq-audit", "0123456789.4711"), *others.items()]
    assert record.marks(found) == {"rmq-audit": "0123456789.4711"}


def test_numbers_below_the_first_one_under_way_are_reported() -> None:
    numbers = SlotSequence("0123456789", KEYS)
    taken = [numbers.next_number() for _ in range(6)]
    assert taken == [1, 2, 3, 4, 5, 6]

    numbers.finish([2, 3, 5], unused=[3])
    report = numbers.next_report()
    assert report == (0, 0, [(3, 3)], [3])
    numbers.finish([1])
    report = numbers.next_report()
    assert report == (0, 3, [(3, 3)], [3])
    numbers.confirm(report)
    assert numbers.next_report() is None
    numbers.finish([4, 6], unused=[4, 6])
    assert numbers.next_report() == (3, 6, [(4, 4), (6, 6)], [4, 6])


def test_numbers_completed_during_a_report_are_in_the_next_report() -> None:
    numbers = SlotSequence("0123456789", KEYS)
    first, second = numbers.next_number(), numbers.next_number()
    numbers.finish([first], unused=[first])
    report = numbers.next_report()
    assert report is not None
    numbers.finish([second], unused=[second])
    numbers.confirm(report)

    assert numbers.next_report() == (1, 2, [(2, 2)], [2])


def test_unused_numbers_beyond_one_call_are_reported_before_the_rest() -> None:
    numbers = SlotSequence("0123456789", KEYS)
    taken = [numbers.next_number() for _ in range(1500)]
    numbers.finish(taken, unused=taken)

    report = numbers.next_report()
    assert report is not None
    assert (report.sent, len(report.unused)) == (0, 1000)
    numbers.confirm(report)
    report = numbers.next_report()
    assert report is not None
    assert (report.old, report.sent, report.ranges) == (0, 1500, [(1001, 1500)])


def test_a_sequence_belongs_to_one_creation_of_a_topic_and_one_client() -> None:
    ours, theirs = ProducerSequence(), ProducerSequence()

    assert ours.slot_sequence(KEYS, b"1") is ours.slot_sequence(KEYS, b"1")
    assert ours.slot_sequence(KEYS, b"1") is not ours.slot_sequence(KEYS, b"2")
    assert ours.slot_sequence(KEYS, b"1").producer != theirs.slot_sequence(KEYS, b"1").producer


def test_a_producer_registers_first_and_after_a_long_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = SlotSequence("0123456789", KEYS)
    assert numbers.must_register
    numbers.confirm(sequence.Report(0, 0, [], []))
    assert not numbers.must_register
    later = time.monotonic() + sequence.RESTART_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)

    assert numbers.must_register


@pytest.mark.posix
def test_a_forked_child_is_another_producer() -> None:
    sequences = ProducerSequence()
    numbers = sequences.slot_sequence(KEYS, b"1")
    numbers.next_number()
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        mine = sequences.slot_sequence(KEYS, b"1")
        os.write(theirs, f"{mine.producer} {mine.next_number()}".encode())
        os._exit(0)
    os.waitpid(child, 0)

    producer, number = os.read(ours, 100).decode().split()

    assert producer != numbers.producer
    assert number == "1"
    assert sequences.slot_sequence(KEYS, b"1") is numbers


def test_one_caller_schedules_a_report_until_it_starts() -> None:
    sequences = ProducerSequence()

    assert [sequences.schedule_report(), sequences.schedule_report()] == [
        True,
        False,
    ]
    sequences.report_started()
    assert sequences.schedule_report()


def test_two_audits_of_one_client_are_refused() -> None:
    from rmq.features.audit.audit import Audit

    assert Hooks().producer_sequence is None
    assert Hooks([Audit()]).producer_sequence is not Hooks([Audit()]).producer_sequence
    with pytest.raises(InvalidValue, match=r"rmq\.Audit"):
        Hooks([Audit(), Audit()])
