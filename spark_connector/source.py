"""The door: what Spark asks of a data source named `rmq`.

Name:
    rmq
Schema:
    message_id, topic, slot, value, timestamp, priority, attempt and more, see docs/spark.md; the
    body is `value`, as its producer's codec wrote it.
Options:
    url, subscribe, and those of `spark_connector.options`, each with its unit and default.
Guarantee:
    A streaming read settles a batch when Spark has committed it, and replays it exactly before; a
    sink that knows batches it has seen makes that exactly once. A batch read takes nothing.

    from spark_connector import RmqDataSource

    spark.dataSource.register(RmqDataSource)
    orders = (
        spark.readStream.format("rmq")
        .option("url", "redis://localhost:6379/0")
        .option("subscribe", "orders")
        .load()
    )
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class RmqDataSource(DataSource):
    """RMQ as a source and a sink, for batches and for streams.

    Holds the options alone: Spark pickles it to every process that it starts. Everything else is
    loaded where it is used, since Spark may load this class only to learn its name.
    """

    @classmethod
    def name(cls) -> str:
        """What `format()` is given."""
        return "rmq"

    def schema(self) -> StructType:
        """The columns; a look at a queue has more of them than a stream.

        Spark does not say which of the two is meant. An option that only a batch read has does.
        """
        from spark_connector import options, schema

        if options.of_batch(self.options):
            return schema.snapshot_schema(options.snapshot(self.options).headers)
        return schema.stream_schema(options.stream(self.options).headers)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The streaming read."""
        from spark_connector import options
        from spark_connector.schema import same, stream_schema
        from spark_connector.stream import RmqStreamReader

        found = options.stream(self.options)
        same(schema, stream_schema(found.headers))
        return RmqStreamReader(found, schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch read."""
        from rmq.errors import ConfigurationError
        from spark_connector import options
        from spark_connector.reader import RmqReader
        from spark_connector.schema import same, snapshot_schema

        if not self.options:  # spark.read without options does not come so far
            raise ConfigurationError(f"this is a table that was made USING rmq; {options.TABLE}")
        found = options.snapshot(self.options)
        same(schema, snapshot_schema(found.headers))
        return RmqReader(found, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The batch write."""
        from spark_connector.writer import batch_writer

        return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The streaming write."""
        from spark_connector.writer import stream_writer

        return stream_writer(dict(self.options), schema, overwrite)
