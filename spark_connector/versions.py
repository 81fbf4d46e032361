"""What PySpark 4.0 and 4.1 lack, so that the other modules need not ask for its version.

Spark gives a limit and the start of a batch to sources since 4.2, and Arrow batches to streaming
writes since 4.1. docs/spark.md says what queries on older versions do without.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import StructType
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:  # Spark 4.0 and 4.1

        class ReadLimit:
            """A limit, which the reader gives to itself there."""

        class ReadAllAvailable(ReadLimit):
            """No limit."""

        class ReadMaxRows(ReadLimit):
            """A number of rows."""

            def __init__(self, max_rows: int) -> None:
                self.max_rows = max_rows

        class SupportsTriggerAvailableNow:
            """Asked by no Spark that lacks it."""

    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # Spark 4.0 looks for the other class, for streams too
        from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

        class DataSourceStreamArrowWriter(DataSourceArrowWriter, DataSourceStreamWriter):
            """A streaming write that gets Arrow batches."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema of Arrow batches; their times are in UTC."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # in UTC in any case


__all__ = [
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
]
