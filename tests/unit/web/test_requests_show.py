"""`show` makes an answer of a value of the library."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from rmq.http_framework.requests import Answer, show
from rmq.kernel.core.ids import MessageId

ID = MessageId(range(16))
AT = datetime(2026, 11, 27, tzinfo=UTC)


class Range(NamedTuple):
    first: int
    last: int


class ShownRange(Answer):
    """A range."""

    last: int
    first: int


@dataclass(frozen=True, slots=True)
class Report:
    id: MessageId
    into: MessageId | None
    at_ms: int
    wait: timedelta | None
    counts: Any
    lost: list[Range]
    next: Range | None
    secret: str = "s"

    @property
    def at(self) -> datetime:
        return AT


class ShownReport(Answer):
    """A report."""

    id: str
    into: str | None
    at: datetime
    wait: float | None
    counts: dict[str, int]
    lost: list[ShownRange]
    next: ShownRange | None


class Named(Answer):
    """An answer with the names of show's own parameters."""

    kind: str
    value: int
    first: int


def report(**changed: Any) -> Report:
    counts = MappingProxyType({"a": 1})
    given = {"id": ID, "into": None, "at_ms": 0, "wait": timedelta(minutes=1), "counts": counts}
    return Report(**given | {"lost": [Range(1, 2)], "next": None} | changed)


def test_each_field_is_the_attribute_of_its_name_also_a_property() -> None:
    shown = show(report(), ShownReport)

    assert shown == ShownReport(
        id=str(ID), into=None, at=AT, wait=60.0, counts={"a": 1},
        lost=[ShownRange(first=1, last=2)], next=None,
    )  # fmt: skip


def test_what_may_be_none_is_shown_when_it_is_there() -> None:
    shown = show(report(into=ID, next=Range(3, 4), wait=timedelta(0)), ShownReport)

    assert (shown.into, shown.next) == (str(ID), ShownRange(first=3, last=4))
    assert show(report(wait=None), ShownReport).wait is None
    assert shown.wait == 0.0


def test_mappings_and_lists_are_those_of_the_answer_alone() -> None:
    value = report(counts={"a": 1})

    shown = show(value, ShownReport)
    shown.counts["a"] = 2
    shown.lost.clear()

    assert (value.counts, value.lost) == ({"a": 1}, [Range(1, 2)])


def test_given_fields_stand_for_attributes_whatever_their_names() -> None:
    assert show(Range(1, 2), Named, kind="k", value=7) == Named(kind="k", value=7, first=1)
    assert show(Range(1, 2), ShownRange, first=0) == ShownRange(first=0, last=2)


def test_a_field_that_the_value_lacks_is_an_error_that_names_both() -> None:
    with pytest.raises(TypeError, match=r"ShownReport\.id: 'Range' object has no attribute 'id'"):
        show(Range(1, 2), ShownReport)
    with pytest.raises(TypeError, match=r"ShownRange\.last: 'str' object has no attribute 'last'"):
        show(report(lost=["1-2"]), ShownReport)
    with pytest.raises(TypeError, match=r"ShownRange\.last: 'NoneType' object has no attribute"):
        show(None, ShownRange)


def test_a_given_field_that_the_answer_lacks_is_an_error() -> None:
    with pytest.raises(TypeError, match="missing"):
        show(Range(1, 2), ShownRange, missing=1)
