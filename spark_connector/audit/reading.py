"""Read the inputs of an audit: `parquet:PATH`, `json:PATH`, `csv:PATH` or `table:NAME`.

If you give a path without a format, the extension of the path decides. Without an extension, the
format is parquet.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from spark_connector.audit.errors import UsageError

LIVE: Final = "rmq"
FORMATS: Final = ("parquet", "json", "csv", "table", LIVE)
_ENDINGS: Final = {
    ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".parquet": "parquet",
}  # fmt: skip
_SAMPLE_LINES: Final = 100  # lines of JSON that are searched for column names

Columns = tuple[tuple[str, ...], tuple[str, ...]]


class Place(NamedTuple):
    """An input of an audit, with its format and its path or table."""

    format: str
    where: str


def place(option: str, given: str, live: bool = False) -> Place:
    """Parse the text `FORMAT:PATH` of an input.

    Raises:
        UsageError: The path is missing, or the format is not allowed.
    """
    word, colon, rest = given.partition(":")
    formats = FORMATS if live else FORMATS[:-1]
    if colon and word in FORMATS:
        if word not in formats:
            raise UsageError(f"{option}: {given!r}; only the snapshot can be read from RMQ")
        if not rest:
            raise UsageError(f"{option}: {given!r} names nothing; give {word}:{_example(word)}")
        return Place(word, rest)
    if not given:
        raise UsageError(f"{option}: it is empty; give a path, or one of {', '.join(formats)}:...")
    path = given.removesuffix("/").removesuffix(".gz")
    by_ending = [kind for ending, kind in _ENDINGS.items() if path.endswith(ending)]
    return Place(by_ending[0] if by_ending else "parquet", given)


def _example(word: str) -> str:
    return {"table": "NAME", LIVE: "TOPIC"}.get(word, "PATH")


def read(spark: SparkSession, option: str, at: Place, columns: Columns) -> DataFrame:
    """Read a stored input.

    `columns` has the names of the required columns, and the names of the optional columns.

    Raises:
        UsageError: The input does not exist, or Spark cannot read it.
    """
    try:
        if at.format == "json":
            return _json(spark, option, at.where, columns)
        if at.format == "csv":
            # Databases escape a quote in CSV by doubling it (RFC 4180). Spark by default expects a
            # backslash.
            return spark.read.csv(at.where, header=True, escape='"')
        if at.format == "table":
            return spark.read.table(at.where)
        return spark.read.parquet(at.where)
    except AnalysisException as error:
        if (error.getCondition() or "").startswith("UNABLE_TO_INFER_SCHEMA"):
            raise UsageError(
                f"{option}: {at.where!r} has no parquet files; give a path that has, or json:PATH "
                "or csv:PATH"
            ) from error
        reason = str(error).partition("\n")[0]
        raise UsageError(f"{option}: {at.format} {at.where!r} cannot be read: {reason}") from error


def _json(spark: SparkSession, option: str, path: str, columns: Columns) -> DataFrame:
    """Read JSON lines as text columns. Spark then does not read the file twice to find the types.

    The first 100 lines decide which columns exist.
    """
    lines = [row[0] for row in spark.read.text(path).limit(_SAMPLE_LINES).collect()]
    present: dict[str, None] = {}
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            present.update(dict.fromkeys(value))
    known = (*columns[0], *columns[1])
    wanted = [name for name in known if name in present] if lines else list(columns[0])
    if not wanted:
        shown = ", ".join(present) or "no objects"
        raise UsageError(
            f"{option}: json {path!r} has {shown:.200} in its first lines; "
            f"give one object a line, with {', '.join(columns[0])}"
        )
    return spark.read.schema(", ".join(f"`{name}` STRING" for name in wanted)).json(path)


def live(spark: SparkSession, url: str, prefix: str, topic: str) -> DataFrame:
    """Return the messages that are in the queues of a topic now.

    Raises:
        rmq.RMQError: An option is wrong.
    """
    from spark_connector import RmqDataSource

    spark.dataSource.register(RmqDataSource)
    reader = spark.read.format("rmq").option("url", url).option("prefix", prefix)
    rows = reader.option("topic", topic).option("queue", "all").load()
    taken = rows.select("message_id", "topic", "queue", "slot").persist()
    taken.count()
    return taken
