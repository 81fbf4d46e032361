"""Replace parts of PySpark that the versions 4.0 and 4.1 lack.

Because of this module, other modules need not check versions. Since 4.2 Spark passes the start of a
batch to a streaming read. Without the start, a restarted query cannot find its messages after the
last batch. So streaming reads are refused before 4.2. PySpark 4.0 also has no filters for batch
reads, and no Arrow batches for streaming writes.
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
    except ImportError:  # Spark 4.0 uses this class for streams as well
        from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

        class DataSourceStreamArrowWriter(DataSourceArrowWriter, DataSourceStreamWriter):
            """A writer of streams that receives Arrow batches."""


def has_starts() -> bool:
    """Return whether this Spark passes the start of a batch to a streaming read."""
    return find_spec("pyspark.sql.streaming.datasource") is not None


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema of Arrow batches, with time zone UTC for all times."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # always in UTC


__all__ = [
    "DataSourceStreamArrowWriter",
    "arrow_schema",
    "has_starts",
]
