"""Use RMQ from Spark with `format("rmq")`. You can read and write batches and streams.

    from spark_connector import RmqDataSource

    spark.dataSource.register(RmqDataSource)

The package uses only RMQ's public API. It needs `rmq[spark]`, PySpark 4.0 or later, and pyarrow.
docs/spark.md describes the options and the guarantees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_connector.foreach_batch import read_stream
    from spark_connector.rejecting import nack, reject
    from spark_connector.source import RmqDataSource

__all__ = ["RmqDataSource", "nack", "read_stream", "reject"]


def __getattr__(name: str) -> Any:
    """Return a public name of this package. Import PySpark only at the first use."""
    if name == "RmqDataSource":
        from spark_connector.source import RmqDataSource

        return RmqDataSource
    if name in ("nack", "reject"):
        from spark_connector import rejecting

        return getattr(rejecting, name)
    if name == "read_stream":
        from spark_connector.foreach_batch import read_stream

        return read_stream
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
