"""Define the data source `rmq` of Spark.

Name:
    rmq
Schema:
    message_id, topic, slot, value, timestamp, priority, attempt and more. docs/spark.md describes
    all columns. The column `value` is the body as the producer's codec wrote it.
Options:
    url, subscribe, and the options in `spark_connector.options`.
Guarantee:
    A streaming read settles a batch after Spark has committed it. Until then, Spark can replay the
    batch with the same messages. With a sink that recognizes repeated batches, each message is
    processed exactly once. A batch read only shows messages, and does not receive them.

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

    The object has only the options, because Spark pickles it for every process that it starts. The
    object imports other modules only when it needs them, because Spark may load this class only to
    read its name.
    """

    @classmethod
    def name(cls) -> str:
        """Return "rmq", the name to pass to `format()`."""
        return "rmq"

    def schema(self) -> StructType:
        """Return the columns. A batch read has more columns than a streaming read.

        Spark does not say which kind of read it wants. If you set an option that only batch reads
        have, the method returns the columns of a batch read.
        """
        from spark_connector import options, schema

        if options.of_history(self.options):
            kept = options.history(self.options)
            return schema.history_schema(kept.headers, kept.columns)
        if options.of_batch(self.options):
            looked = options.snapshot(self.options)
            return schema.snapshot_schema(looked.headers, looked.columns, looked.attempts)
        parsed = options.stream(self.options)
        return schema.stream_schema(parsed.headers, parsed.query)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the object with which Spark reads a stream.

        With the option for a history, Spark reads acked messages from the history of a topic.
        Otherwise Spark receives messages from the queue.
        """
        from spark_connector import options
        from spark_connector.schema import history_schema, refuse_other_schema, stream_schema

        if options.of_history(self.options) == "stream":
            from spark_connector.history import HistoryStreamReader

            kept = options.history(self.options)
            refuse_other_schema(schema, history_schema(kept.headers))
            return HistoryStreamReader(kept, schema)
        from spark_connector.stream import RmqStreamReader

        parsed = options.stream(self.options)
        refuse_other_schema(schema, stream_schema(parsed.headers, parsed.query))
        return RmqStreamReader(parsed, schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the object with which Spark reads a batch. The read does not change the queues."""
        from rmq.errors import ConfigurationError
        from spark_connector import options
        from spark_connector.reader import RmqReader
        from spark_connector.schema import history_schema, refuse_other_schema, snapshot_schema

        if not self.options:  # `spark.read` without options has failed before
            raise ConfigurationError(f"this is a table that was made USING rmq; {options.TABLE}")
        if options.of_history(self.options) == "batch":
            from spark_connector.history import HistoryReader

            kept = options.history(self.options)
            refuse_other_schema(schema, history_schema(kept.headers, kept.columns))
            return HistoryReader(kept, schema)
        parsed = options.snapshot(self.options)
        refuse_other_schema(
            schema, snapshot_schema(parsed.headers, parsed.columns, parsed.attempts)
        )
        return RmqReader(parsed, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the object with which Spark writes a batch.

        Raises:
            ConfigurationError: An option or the schema is wrong.
        """
        from spark_connector.writer import batch_writer

        return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the object with which Spark writes a stream. It publishes each batch once."""
        from spark_connector.writer import stream_writer

        return stream_writer(dict(self.options), schema, overwrite)
