"""A driver of its own process group, that dies where it is told to; started by test_sink_stream.py.

    python -m tests.spark.sink_driver URL TOPIC DIRECTORY POINT

It copies DIRECTORY/in into the topic, or into those that the rows name if TOPIC is empty. POINT is
where everything is killed, or `end`: `staged` before the commit, `half` when some slots are
published, `between` when the first topic is published and the second is not noted as such,
`published` after the commit, before Spark notes it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from rmq.features.spark import scripts, stage_flows
from spark_connector import RmqDataSource, columns, options
from spark_connector.writer import RmqStreamWriter, _Sink
from tests.spark.driver import GROUP, POINT, die_at

HALF = 3  # calls of publish, of eight slots and two tasks


class Writer(RmqStreamWriter):
    """Dies where it is told to."""

    def commit(self, messages: list[Any], batchId: int) -> None:
        die_at("staged")
        if os.environ.get(POINT) == "half":
            made, calls = scripts.publish, iter(range(HALF))

            def counted(*given: Any) -> Any:
                if next(calls, None) is None:
                    die_at("half")
                return made(*given)

            stage_flows.PUBLISHES = 1
            scripts.publish = counted
        if os.environ.get(POINT) == "between":
            noted, ends = scripts.sink_end, iter(range(1))

            def end(*given: Any) -> Any:
                if next(ends, None) is None:
                    die_at("between")
                return noted(*given)

            scripts.sink_end = end
        super().commit(messages, batchId)
        die_at("published")


class Source(RmqDataSource):
    """The data source, with such a writer."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> Writer:
        fields = columns.checked(schema)
        return Writer(_Sink(options.sink(self.options, fields), fields))


def main(url: str, topic: str, directory: str, point: str) -> None:
    os.setsid()
    os.environ.update({GROUP: str(os.getpgid(0)), POINT: point})
    from tests.spark.conftest import environment, session

    os.environ.update(environment())
    spark = session("local[2]")
    spark.dataSource.register(Source)
    here = Path(directory)
    (
        spark.readStream.schema("value string" if topic else "value string, topic string")
        .option("maxFilesPerTrigger", "2")
        .json(str(here / "in"))
        .writeStream.format("rmq")
        .options(url=url, checkpointLocation=str(here / "checkpoint"))
        .options(**{"topic": topic} if topic else {})
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
