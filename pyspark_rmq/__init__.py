"""How Spark finds `format("rmq")` without `spark.dataSource.register`.

Spark imports every installed top-level module named pyspark_*, and takes its DefaultSource. An
exception here would break the look-up of every other data source, so nothing but the door is
loaded.
"""

from spark_connector.source import RmqDataSource

__all__ = ["DefaultSource"]


class DefaultSource(RmqDataSource):
    """The data source `rmq`."""
