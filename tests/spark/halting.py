"""A source and a sink that wait at a chosen moment, so that Redis can die in it.

Files in a directory tell across processes: whoever comes first to a moment that a test has asked
for takes its file, and waits until the test says that it is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_connector import RmqDataSource, columns, options
from spark_connector.stream import RmqStreamReader
from spark_connector.writer import RmqStreamWriter, _Sink
from tests.servers import Server

if TYPE_CHECKING:
    from pyarrow import RecordBatch

PATIENCE_S = 180.0  # a machine with much else to do
AWAY_S = 2.0


def halt(where: str, moment: str) -> None:
    """Wait here, if a test has asked for this moment and nobody else is in it."""
    try:
        Path(where, moment).rename(Path(where, f"{moment}-met"))
    except FileNotFoundError:
        return
    wait_for(Path(where, f"{moment}-over"))


def wait_for(file: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while not file.exists():
        assert time.monotonic() < until, f"{file.name} did not come"
        time.sleep(0.01)


def outage(server: Server, where: Path, moment: str, away_s: float = AWAY_S) -> None:
    """Kill Redis when a query is in this moment, which then goes on; start it again later."""
    in_moment(where, moment, server.kill)
    time.sleep(away_s)  # Redis is away for so long
    server.start()


def in_moment(where: Path, moment: str, strike: Callable[[], object]) -> None:
    """Do something when a query is in this moment, which then goes on."""
    (where / moment).touch()
    wait_for(where / f"{moment}-met")
    strike()
    (where / f"{moment}-over").touch()


def source(where: str) -> type[RmqDataSource]:
    """The data source, waiting at `reading`, `staging` and `committing`.

    Made here, so that Spark pickles the classes with all that they know.
    """

    class Reader(RmqStreamReader):
        def read(self, partition: InputPartition) -> Iterator[Any]:
            for batch in super().read(partition):
                yield batch
                halt(where, "reading")

    def halting(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            halt(where, "staging")
            yield batch

    class Writer(RmqStreamWriter):
        def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
            return super().write(halting(iterator))

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            halt(where, "committing")
            super().commit(messages, batchId)

    class Source(RmqDataSource):
        def streamReader(self, schema: StructType) -> Reader:
            return Reader(options.stream(self.options), schema)

        def streamWriter(self, schema: StructType, overwrite: bool) -> Writer:
            return Writer(_Sink(options.sink(self.options), columns.checked(schema)))

    return Source
