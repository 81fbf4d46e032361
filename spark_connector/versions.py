"""Stand-ins for what PySpark 4.0 and 4.1 lack, so that other modules need not ask its version.

Since 4.2 Spark tells a streaming read where its batch starts; without that, a query that starts
again after its last batch cannot know what it holds, so streaming reads are refused. 4.0 has no
filters for batch reads, and no Arrow batches for streaming writes.
"""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # Spark 4.0 looks for the other class, for streams too
        from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

        class DataSourceStreamArrowWriter(DataSourceArrowWriter, DataSourceStreamWriter):
            """A streaming write that gets Arrow batches."""


def has_starts() -> bool:
    """Return whether this Spark tells a streaming read where its batch starts."""
    return find_spec("pyspark.sql.streaming.datasource") is not None


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema of Arrow batches; their times are in UTC."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # in UTC in any case


__all__ = [
    "DataSourceStreamArrowWriter",
    "arrow_schema",
    "has_starts",
]
