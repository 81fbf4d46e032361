"""Ranges agree with sets of numbers."""

from __future__ import annotations

import itertools
import random

from rmq.kernel.core.validation import Ranges, count, difference, from_numbers, intersection, union


def numbers_of(ranges: Ranges) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


def do_not_touch(ranges: Ranges) -> bool:
    return all(left[1] + 1 < right[0] for left, right in itertools.pairwise(ranges))


def test_operations_on_ranges_agree_with_those_on_sets() -> None:
    chance = random.Random(3)
    for _ in range(300):
        left, right = (
            {chance.randrange(1, 40) for _ in range(chance.randrange(25))} for _ in range(2)
        )
        a, b = from_numbers(sorted(left)), from_numbers(sorted(right))
        assert (numbers_of(a), numbers_of(b)) == (left, right)
        assert do_not_touch(a)
        assert count(a) == len(left)
        assert numbers_of(intersection(a, b)) == left & right
        assert numbers_of(difference(a, b)) == left - right
        assert do_not_touch(difference(a, b))
        mixed = [*a, *b]
        chance.shuffle(mixed)
        assert numbers_of(union(mixed)) == left | right
        assert do_not_touch(union(mixed))
