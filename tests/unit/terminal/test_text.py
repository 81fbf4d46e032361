"""`fields` makes JSON of a value of the library."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from rmq.cli_framework.text import dumps, fields
from rmq.kernel.core.ids import MessageId

ID = MessageId(range(16))


class Range(NamedTuple):
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Report:
    id: MessageId
    into: MessageId | None
    at: datetime | None
    counts: Any
    lost: list[Range]

    @property
    def has_lost(self) -> bool:
        return bool(self.lost)


REPORT = Report(
    ID, None, datetime(2026, 11, 27, 1, 2, 3, 4500, UTC), MappingProxyType({3: 1}), [Range(1, 2)]
)


def test_all_fields_in_their_order_with_times_and_ids_as_text() -> None:
    shown = fields(REPORT)

    assert list(shown) == ["id", "into", "at", "counts", "lost"]
    assert shown == {
        "id": str(ID), "into": None, "at": "2026-11-27T01:02:03.004Z", "counts": {"3": 1},
        "lost": [{"first": 1, "last": 2}],
    }  # fmt: skip
    assert dumps(fields(Range(1, 2))) == '{"first":1,"last":2}'


def test_only_the_attributes_that_are_named_also_properties() -> None:
    assert fields(REPORT, "has_lost", "into") == {"has_lost": True, "into": None}


def test_an_attribute_that_the_value_lacks_is_an_error_that_names_both() -> None:
    with pytest.raises(AttributeError, match="'Range' object has no attribute 'middle'"):
        fields(Range(1, 2), "first", "middle")
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute"):
        fields(None)
