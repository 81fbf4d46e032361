"""Flights through RMQ and Spark and back: delays by airport and hour, and alerts about the worst.

Every flight is a message. A streaming query reads them, adds up the delays of each airport and hour
under a watermark, and writes them to parquet. A second query turns bad hours into priority
messages, and a plain consumer takes these, the worst first. Both queries end
when no row waits.

    python examples/spark_flights.py                      842 flights of one day, a private server
    python examples/spark_flights.py --url redis://...    on yours (or set RMQ_URL)
    python examples/spark_flights.py --data FILE.csv.gz   another file with the same columns

An hour is written when the watermark has passed its end. To move the watermark after the last
flight, the program sends a message that has only a time, and starts the query again on its
checkpoint. It compares the results with the same sums in plain Python, and exits with 1 if they
differ.

It needs rmq[spark] and Java 17.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession, functions as F

import rmq
from rmq.kernel.transport.embedded.embedded import Embedded
from spark_connector import RmqDataSource

DATA = Path(__file__).with_name("flights-2013-01-01.csv")
HOME = Path(".rmq", "spark-flights")
FLIGHTS, ALERTS = "flights.delays", "flights.bad-hours"
LATE_BY = timedelta(hours=2)  # how long the watermark waits for flights out of order
BAD_MIN = 20  # minutes late on average
FLIGHT = "airport string, scheduled timestamp, late_min int"
HOUR = "airport string, hour timestamp, flights bigint, late_min bigint, worst_min int"


class Hour(NamedTuple):
    """An airport in one hour: number of flights, sum of the minutes late, and the largest."""

    airport: str
    hour: str
    flights: int
    late_min: int
    worst_min: int

    @property
    def is_bad(self) -> bool:
        """Return whether flights left late enough for an alert."""
        return self.late_min >= BAD_MIN * self.flights


def read(path: Path) -> list[dict[str, Any]]:
    """Return the flights that left, by scheduled departure; early flights are 0 minutes late."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    flights = [
        {
            "airport": row["origin"],
            "scheduled": row["sched_dep_utc"],
            "late_min": max(0, int(row["dep_delay_min"])),
        }
        for row in csv.DictReader(text.splitlines())
        if row["dep_delay_min"]
    ]
    return sorted(flights, key=lambda flight: str(flight["scheduled"]))


def expected(flights: list[dict[str, Any]]) -> list[Hour]:
    """Return the same sums, computed in plain Python."""
    late: dict[tuple[str, str], list[int]] = {}
    for flight in flights:
        at = (flight["airport"], f"{flight['scheduled'][:13]}:00")
        late.setdefault(at, []).append(flight["late_min"])
    return sorted(Hour(*at, len(all), sum(all), max(all)) for at, all in late.items())


def session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else tasks use python3 of PATH
    builder = SparkSession.builder.appName("flights").master("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(RmqDataSource)
    return spark


def delays(spark: SparkSession, url: str) -> DataFrame:
    """Return the streaming query that turns messages into sums by airport and hour."""
    messages = (
        spark.readStream.format("rmq")
        .option("url", url)
        .option("subscribe", FLIGHTS)
        .option("maxMessagesPerTrigger", 5_000)
        .load()
    )
    flights = messages.select(F.from_json(F.col("value").cast("string"), FLIGHT).alias("f"))
    sums = (
        flights.select("f.*")
        .withWatermark("scheduled", f"{LATE_BY.total_seconds():.0f} seconds")
        .groupBy(F.window("scheduled", "1 hour"), "airport")
        .agg(
            F.count("*").alias("flights"),
            F.sum("late_min").alias("late_min"),
            F.max("late_min").alias("worst_min"),
        )
    )
    # Do not filter out the message that only has a time: Spark would drop it before the watermark
    # has seen it. Its own hour is never complete.
    return sums.select(
        "airport", F.col("window.start").alias("hour"), "flights", "late_min", "worst_min"
    )


def alerts(hours: DataFrame) -> DataFrame:
    """Return bad hours as messages; worse hours have a larger priority."""
    return hours.filter(F.col("late_min") >= BAD_MIN * F.col("flights")).select(
        F.to_json(F.struct("airport", "hour", "flights", "late_min", "worst_min")).alias("value"),
        (17 + F.floor(F.col("late_min") / F.col("flights"))).cast("int").alias("priority"),
    )


def run_to_end(frame: DataFrame, home: Path, name: str, **options: str) -> None:
    """Run a query over all waiting rows, and check that no row was dropped as too late."""
    writer = frame.writeStream.option("checkpointLocation", str(home / f"{name}.checkpoint"))
    query = writer.options(**options).start()
    query.processAllAvailable()
    query.stop()
    for progress in query.recentProgress:
        dropped = sum(one.numRowsDroppedByWatermark for one in progress.stateOperators)
        assert not dropped, f"{name}: {dropped} rows came too late"


def clear(client: rmq.Client) -> None:
    """Remove the messages of an earlier run."""
    for topic in (client.topic(FLIGHTS, slots=4), client.topic(ALERTS, slots=1)):
        topic.open()
        client.admin.purge(topic.name, "store")


def through(
    spark: SparkSession, client: rmq.Client, url: str, flights: list[dict[str, Any]]
) -> list[Hour]:
    """Send the flights, run both queries, and return the hours in parquet."""
    clear(client)
    topic = client.topic(FLIGHTS)
    with tempfile.TemporaryDirectory(prefix="rmq-flights-") as name:
        home = Path(name)
        out = str(home / "hours")

        def sum_up() -> None:
            run_to_end(delays(spark, url), home, "delays", path=out)

        for start in range(0, len(flights), 1000):
            topic.send_many([rmq.Outgoing(one) for one in flights[start : start + 1000]])
        sum_up()
        end = datetime.fromisoformat(flights[-1]["scheduled"]) + LATE_BY + timedelta(hours=2)
        topic.send({"airport": None, "scheduled": f"{end:%Y-%m-%dT%H:%M:%SZ}", "late_min": 0})
        sum_up()
        hours = spark.readStream.schema(HOUR).parquet(out)
        writer = alerts(hours).writeStream.format("rmq")
        query = (
            writer.option("checkpointLocation", str(home / "alerts.checkpoint"))
            .options(url=url, topic=ALERTS, codec="json")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        rows = spark.read.parquet(out).withColumn(
            "hour", F.date_format("hour", "yyyy-MM-dd'T'HH:mm")
        )
        return sorted(Hour(**row.asDict()) for row in rows.collect())


def taken(client: rmq.Client) -> list[tuple[int, Hour]]:
    """Return the alerts as a consumer gets them: priority and hour."""
    found = []
    with client.topic(ALERTS).consumer() as consumer:
        while some := consumer.receive(max_messages=100, wait=0.5):
            for delivery in some:
                body = delivery.body
                body["hour"] = body["hour"][:16]
                found.append((delivery.priority or 0, Hour(**body)))
            consumer.ack(some)
    return found


@contextlib.contextmanager
def server(url: str | None) -> Iterator[str]:
    """Return the URL of a Redis that Spark's tasks can reach: yours, or a private one's socket."""
    if url:
        yield url
        return
    HOME.mkdir(parents=True, exist_ok=True)
    private = Embedded.open(HOME.absolute())
    try:
        yield f"unix://{private.socket}"
    finally:
        private.close()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Flights through RMQ and Spark and back.")
    parser.add_argument("--url", help=f"default: RMQ_URL, else a private server in {HOME}")
    parser.add_argument("--data", type=Path, default=DATA, help="CSV, or CSV.gz")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    asked = parser.parse_args(argv)
    flights = read(asked.data)
    with server(asked.url or os.environ.get("RMQ_URL")) as url, rmq.Client(url) as client:
        spark = session()
        try:
            found = through(spark, client, url, flights)
        finally:
            spark.stop()
        told = taken(client)

    right = expected(flights)
    bad = [hour for hour in right if hour.is_bad]
    same = found == right and sorted(hour for _, hour in told) == bad
    ordered = [priority for priority, _ in told] == sorted((p for p, _ in told), reverse=True)
    if asked.json:
        print(json.dumps({"flights": len(flights), "hours": len(found), "alerts": len(told),
                          "same": same, "ordered": ordered}))  # fmt: skip
    else:
        print(f"{len(flights)} flights, {len(found)} hours of airports, {len(told)} alerts\n")
        print("hour (UTC)        airport  flights  late on average  the worst")
        for _, hour in told[:10]:
            mean = hour.late_min / hour.flights
            late = f"{mean:>13.1f} min{hour.worst_min:>7} min"
            print(f"{hour.hour:<18}{hour.airport:<9}{hour.flights:>7}{late}")
        yes = {True: "yes", False: "NO"}
        print(f"\nthe same in plain Python: {yes[same]}; the worst first: {yes[ordered]}")
    return 0 if same and ordered else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except rmq.RMQError as error:
        sys.exit(f"spark_flights: {error}")
