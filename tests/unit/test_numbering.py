"""Numbers, ranges of them, and the header that carries one."""

from __future__ import annotations

import itertools
import os
import random
import time

import msgpack
import pytest

from rmq.core import record, sequence
from rmq.core.interceptor import Hooks
from rmq.core.keys import SlotKeys
from rmq.core.sequence import Line, Numbering, common, joined, ranges, size, without
from rmq.errors import InvalidValue

KEYS = SlotKeys("rmq", "orders", 0)


def numbers(some: list[tuple[int, int]]) -> set[int]:
    return {n for first, last in some for n in range(first, last + 1)}


def tidy(some: list[tuple[int, int]]) -> bool:
    return all(a[1] + 1 < b[0] for a, b in itertools.pairwise(some))


def test_ranges_are_the_sets_they_stand_for() -> None:
    chance = random.Random(3)
    for _ in range(300):
        one, other = (
            {chance.randrange(1, 40) for _ in range(chance.randrange(25))} for _ in range(2)
        )
        a, b = ranges(sorted(one)), ranges(sorted(other))
        assert (numbers(a), numbers(b)) == (one, other)
        assert tidy(a)
        assert size(a) == len(one)
        assert numbers(common(a, b)) == one & other
        assert numbers(without(a, b)) == one - other
        assert tidy(without(a, b))
        mixed = [*a, *b]
        chance.shuffle(mixed)
        assert numbers(joined(mixed)) == one | other
        assert tidy(joined(mixed))


@pytest.mark.parametrize("count", [0, 1, 14, 15, 16, 17, 32])
def test_number_is_the_first_header_and_the_others_stay(count: int) -> None:
    others = {f"h{n}": "v" * n for n in range(count)}

    packed = sequence.headers("0123456789", 4711, msgpack.packb(others) if others else b"")

    found = msgpack.unpackb(packed)
    assert list(found.items()) == [("rmq-audit", "0123456789.4711"), *others.items()]
    assert record.marks(found) == {"rmq-audit": "0123456789.4711"}


def test_all_up_to_the_first_under_way_may_be_told() -> None:
    line = Line("0123456789", KEYS)
    taken = [line.take() for _ in range(6)]
    assert taken == [1, 2, 3, 4, 5, 6]

    line.settle([2, 3, 5], void=[3])
    told = line.untold()
    assert told == (0, 0, [(3, 3)], [3])
    line.settle([1])
    told = line.untold()
    assert told == (0, 3, [(3, 3)], [3])
    line.tell(told)
    assert line.untold() is None
    line.settle([4, 6], void=[4, 6])
    assert line.untold() == (3, 6, [(4, 4), (6, 6)], [4, 6])


def test_what_was_settled_meanwhile_is_told_the_next_time() -> None:
    line = Line("0123456789", KEYS)
    first, second = line.take(), line.take()
    line.settle([first], void=[first])
    told = line.untold()
    assert told is not None
    line.settle([second], void=[second])
    line.tell(told)

    assert line.untold() == (1, 2, [(2, 2)], [2])


def test_more_void_than_a_call_carries_is_told_before_the_rest() -> None:
    line = Line("0123456789", KEYS)
    taken = [line.take() for _ in range(1500)]
    line.settle(taken, void=taken)

    told = line.untold()
    assert told is not None
    assert (told.sent, len(told.void)) == (0, 1000)
    line.tell(told)
    told = line.untold()
    assert told is not None
    assert (told.old, told.sent, told.ranges) == (0, 1500, [(1001, 1500)])


def test_line_is_of_one_life_of_a_topic_and_one_client() -> None:
    one, other = Numbering(), Numbering()

    assert one.line(KEYS, b"1") is one.line(KEYS, b"1")
    assert one.line(KEYS, b"1") is not one.line(KEYS, b"2")
    assert one.line(KEYS, b"1").producer != other.line(KEYS, b"1").producer


def test_line_is_new_at_first_and_after_a_long_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line("0123456789", KEYS)
    assert line.is_new
    line.tell(sequence.Told(0, 0, [], []))
    assert not line.is_new
    later = time.monotonic() + sequence.ANEW_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)

    assert line.is_new


def test_forked_child_is_another_producer() -> None:
    one = Numbering()
    line = one.line(KEYS, b"1")
    line.take()
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        mine = one.line(KEYS, b"1")
        os.write(theirs, f"{mine.producer} {mine.take()}".encode())
        os._exit(0)
    os.waitpid(child, 0)

    producer, number = os.read(ours, 100).decode().split()

    assert producer != line.producer
    assert number == "1"
    assert one.line(KEYS, b"1") is line


def test_only_one_is_to_tell_until_it_does() -> None:
    one = Numbering()

    assert [one.will_tell(), one.will_tell()] == [True, False]
    one.tells()
    assert one.will_tell()


def test_two_audits_of_one_client_are_refused() -> None:
    from rmq.core.audit import Audit

    assert Hooks().numbering is None
    assert Hooks([Audit()]).numbering is not Hooks([Audit()]).numbering
    with pytest.raises(InvalidValue, match=r"rmq\.Audit"):
        Hooks([Audit(), Audit()])
