"""Use the filters of a batch read in Spark to skip slots (parts of topics), queues and rows.

Spark checks all filters again. So a read may return rows that do not match, but must return all
rows that match.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

import rmq
from rmq.errors import InvalidValue
from spark_connector.versions import DataSourceReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_TIME = pa.timestamp("us", "UTC")
# Columns that a read can filter by, with their Python types.
_TYPES = {
    "slot": pa.int64(),
    "queue": pa.string(),
    "message_id": pa.string(),
    "timestamp": _TIME,
    "died": _TIME,
    "type": pa.string(),
    "group": pa.string(),
    "error_fingerprint": pa.string(),
}
# Names of Spark's filter classes, which PySpark 4.0 does not have. The class `In` is handled
# separately.
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "EqualTo": pc.equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
}


class Condition(NamedTuple):
    """A condition on a column. A row must meet all conditions.

    Attributes:
        column: Name of the column.
        kind: Name of Spark's filter class.
        values: Operands. Only the class In may have more than one operand.
    """

    column: str
    kind: str
    values: pa.Array

    def fits(self, values: pa.Array) -> pa.Array:
        """Return for each value whether it meets the condition. A null value never does."""
        if self.kind == "In":
            fits = pc.is_in(values, value_set=self.values)
        else:
            fits = _COMPARED[self.kind](values, self.values[0])
        return pc.fill_null(fits, False)


class Pushdown:
    """Collects the filters that Spark passes to a batch read.

    By default, spark.sql.python.filterPushdown.enabled is false. Spark then refuses every read
    whose class overrides `pushFilters`, although such a read would work without filters. To find an
    override, Spark compares the attribute `__func__` with the attribute of the base class. So an
    object of this class has the `__func__` of the base class, and Spark does not see an override.
    """

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", id))  # missing in 4.0

    def __init__(self, conditions: list[Condition], columns: Iterable[str]) -> None:
        self._conditions = conditions
        self._columns = frozenset(columns)

    def __call__(self, filters: Sequence[Filter]) -> Sequence[Filter]:
        """Keep the filters that RMQ can use.

        Return all filters, because Spark checks them again.
        """
        for each in filters:
            condition = self._condition(each)
            if condition is not None:
                self._conditions.append(condition)
        return filters

    def _condition(self, given: Any) -> Condition | None:
        kind = type(given).__name__
        if kind != "In" and kind not in _COMPARED:
            return None
        name = given.attribute[0].lower() if len(given.attribute) == 1 else ""
        if name not in _TYPES or name not in self._columns:
            return None
        values = list(given.value) if kind == "In" else [given.value]
        try:
            array = pa.array([value for value in values if value is not None], _TYPES[name])
        except (pa.ArrowException, TypeError, ValueError):
            return None
        if kind != "In" and not len(array):
            return None
        return Condition(name, kind, array)


def may_fit(conditions: Sequence[Condition], column: str, value: Any) -> bool:
    """Return whether messages in a slot (part of the topic) or a queue can meet the conditions.

    `column` is "slot" or "queue", and `value` is the slot or the queue.
    """
    given = pa.array([value], _TYPES[column])
    if not all(each.fits(given)[0].as_py() for each in conditions if each.column == column):
        return False
    if column == "queue" and value != "dead":  # only dead letters have a time of death
        return not any(each.column == "died" for each in conditions)
    if column == "slot":
        return all(
            any(_slot_of(text) == value for text in each.values.to_pylist())
            for each in conditions
            if each.column == "message_id" and each.kind in ("In", "EqualTo")
        )
    return True


def died_within(conditions: Sequence[Condition]) -> tuple[float, float]:
    """Return the earliest and the latest time of death that the conditions allow, in epoch ms."""
    low, high = -math.inf, math.inf
    for each in conditions:
        if each.column == "died" and len(each.values):
            ms = [us // 1000 for us in each.values.cast(pa.int64()).to_pylist()]
            if each.kind not in ("LessThan", "LessThanOrEqual"):
                low = max(low, min(ms))
            if each.kind not in ("GreaterThan", "GreaterThanOrEqual"):
                high = min(high, max(ms) + 1)
    return low, high


def _slot_of(text: str) -> int | None:
    try:
        return rmq.MessageId.parse(text).slot
    except InvalidValue:
        return None


def rows_that_fit(
    conditions: Sequence[Condition], columns: Mapping[str, Any], count: int
) -> list[int]:
    """Return the rows of a queue's page that meet the conditions.

    The function creates only columns that have conditions.
    """
    masks = []
    for each in conditions:
        if each.column in ("slot", "queue"):
            continue  # all rows of the page match
        values = columns[each.column]()
        if values is None:
            return []
        if isinstance(values, pa.Array):
            values = values.cast(_TYPES[each.column])
        else:
            values = pa.array(values, _TYPES[each.column])
        masks.append(each.fits(values))
    if not masks:
        return list(range(count))
    rows: list[int] = pc.indices_nonzero(reduce(pc.and_, masks)).to_pylist()
    return rows
