"""Let Spark find `format("rmq")` without a call of `spark.dataSource.register`.

Spark imports every installed top-level module whose name begins with `pyspark_`, and uses its class
`DefaultSource`. If such an import raises, Spark finds no other data source either. So this module
imports only the class of the data source.
"""

from spark_connector.source import RmqDataSource

__all__ = ["DefaultSource"]


class DefaultSource(RmqDataSource):
    """Provide the data source `rmq` under the name that Spark looks for."""
