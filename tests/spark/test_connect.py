"""Spark Connect: a client without a JVM; source and sink run at the server, which may lack RMQ."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import rmq
from tests.servers import Server
from tests.spark.conftest import ROOT

pytestmark = [
    pytest.mark.timeout(300),  # a cold Spark on a busy machine
    pytest.mark.skipif(
        find_spec("grpc") is None or find_spec("pandas") is None,
        reason="no grpcio, no pandas: make spark-versions brings what pyspark[connect] needs",
    ),
]

HEAD = """
import sys
import time
import warnings

warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

url, topic, home, archive = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()

def read(name):
    return spark.read.format("rmq").options(url=url, subscribe=name, queue="store").load()

def write(df, batch=0):
    df.write.format("rmq").mode("append").options(url=url, topic=topic + "-copy").save()
"""

STREAMS = """
rows = []

class Listener(StreamingQueryListener):
    def onQueryStarted(self, event): pass
    def onQueryProgress(self, event): rows.append(event.progress.numInputRows)
    def onQueryTerminated(self, event): rows.append("end")

def stream(name):
    return spark.readStream.format("rmq").options(url=url, subscribe=name).load().select("value")

def run(writer, name):
    query = writer.option("checkpointLocation", f"{home}/{name}").trigger(availableNow=True).start()
    query.awaitTermination()

spark.streams.addListener(Listener())
run(stream(topic).writeStream.format("rmq").options(url=url, topic=topic + "-copy"), "copy")
copy = stream(topic + "-copy")
run(copy.writeStream.format("parquet").option("path", home + "/out"), "parquet")
print("] COPIED", spark.read.parquet(home + "/out").count())
write(spark.range(10).selectExpr("cast(id as string) value"))
run(copy.writeStream.foreachBatch(write), "batches")
print("] AGAIN", read(topic + "-copy").count())
try:
    spark.readStream.format("rmq").options(url=url, subscribe=topic, limits=1).load().schema
except Exception as error:
    print("] REFUSED", "a streaming read has no such option" in str(error))
until = time.monotonic() + 60
while rows.count("end") < 3 and time.monotonic() < until:
    time.sleep(0.1)
print("] PROGRESS", sum(row for row in rows if row != "end"))
spark.stop()
"""

BATCHES = """
import spark_connector

spark.addArtifacts(archive, pyfile=True)
spark.dataSource.register(spark_connector.RmqDataSource)
write(read(topic).select("value"))
print("] COPIED", read(topic + "-copy").count())
spark.stop()
"""


def run(program: str, python: str, path: list[Path | str], *words: object) -> list[str]:
    """Return what a program printed; progress bars come before `]`."""
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, path)), "PYSPARK_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip
    file = Path(str(words[2]), "program.py")
    file.write_text(HEAD + program)
    done = subprocess.run(
        [sys.executable, file, *map(str, words)],
        cwd=file.parent, env=env, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return [line.rpartition("] ")[2] for line in done.stdout.splitlines() if "] " in line]


# What `make spark-versions` has put there: Spark, grpcio, pandas.
BROUGHT: list[Path | str] = [
    path
    for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if path and Path(path) != ROOT
]


def test_a_client_streams_reads_and_writes_where_the_server_has_rmq(
    client: rmq.Client, server: Server, name: str, tmp_path: Path
) -> None:
    client.topic(name, slots=2).send_many([rmq.Outgoing(n) for n in range(30)])

    said = run(STREAMS, sys.executable, [ROOT, *BROUGHT], server.url, name, tmp_path, "")

    assert said == ["COPIED 30", "AGAIN 10", "REFUSED True", "PROGRESS 70"]
    stats = client.admin.stats(name), client.admin.stats(f"{name}-copy")
    assert [(one["in_flight"], one["settled"]) for one in stats] == [(0, 30), (0, 40)]


def test_a_client_that_ships_rmq_as_an_artifact_reads_and_writes_batches(
    client: rmq.Client, server: Server, name: str, tmp_path: Path, bare: Path, archive: Path
) -> None:
    client.topic(name, slots=2).send_many([rmq.Outgoing(n) for n in range(30)])

    assert run(BATCHES, str(bare), BROUGHT, server.url, name, tmp_path, archive) == ["COPIED 30"]
