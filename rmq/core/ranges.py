"""Ranges of whole numbers: sets as growing lists of (first, last) pairs that do not touch."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = list[tuple[int, int]]


def from_numbers(numbers: Iterable[int]) -> Ranges:
    """Return growing numbers as ranges."""
    result: Ranges = []
    for number in numbers:
        if result and number <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(number, result[-1][1]))
        else:
            result.append((number, number))
    return result


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return ranges that came in any order, sorted and merged."""
    result: Ranges = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result


def intersection(left: Ranges, right: Ranges) -> Ranges:
    """Return the numbers that are in both."""
    result, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        first, last = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if first <= last:
            result.append((first, last))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return result


def difference(left: Ranges, right: Ranges) -> Ranges:
    """Return the numbers that are in `left` and not in `right`."""
    result, start = [], 0
    for first, last in left:
        while start < len(right) and right[start][1] < first:
            start += 1
        j = start
        while j < len(right) and right[j][0] <= last:
            if right[j][0] > first:
                result.append((first, right[j][0] - 1))
            first = right[j][1] + 1
            j += 1
        if first <= last:
            result.append((first, last))
    return result


def count(ranges: Iterable[tuple[int, int]]) -> int:
    """Return how many numbers the ranges hold."""
    return sum(last - first + 1 for first, last in ranges)
