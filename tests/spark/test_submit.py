"""spark-submit with RMQ in one zip, on an interpreter that has none; spark-sql and spark-shell."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import rmq
from tests.servers import Server
from tests.spark.cluster import submission
from tests.spark.conftest import ROOT
from tests.spark.long import long
from tests.spark.target import taken

pytestmark = pytest.mark.timeout(300)  # a cold Spark on a busy machine

JOB = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")

import spark_connector

spark.dataSource.register(spark_connector.RmqDataSource)
what, url, topic, home = sys.argv[1:]
if what == "batch":
    rows = spark.range(10).selectExpr("cast(id as string) value")
    rows.write.format("rmq").mode("append").options(url=url, topic=topic).save()
    waiting = spark.read.format("rmq").options(url=url, subscribe=topic, queue="store").load()
    print("ROWS", waiting.count())
else:
    seen = []
    query = (
        spark.readStream.format("rmq").options(url=url, subscribe=topic).load()
        .writeStream.foreachBatch(lambda df, batch: seen.append(df.count()))
        .option("checkpointLocation", home).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    print("ROWS", sum(seen))
print("FROM", spark_connector.__file__)
"""


def submit(bare: Path, archive: Path, path: str, *words: str) -> str:
    """Return the output of a job that gets the zip by --py-files."""
    job = archive.with_name("job.py")
    job.write_text(JOB)
    command, env = submission(bare, "local[2]", archive, path)
    done = subprocess.run(
        [*command, str(job), *words], cwd=archive.parent, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_a_zip_of_rmq_is_all_that_py_files_needs_besides_dependencies(
    bare: Path, archive: Path, client: rmq.Client, server: Server, name: str, tmp_path: Path
) -> None:
    client.topic(name, slots=2, codec="bytes").open()
    own = subprocess.run([bare, "-c", "import rmq"], cwd=tmp_path, env={}, capture_output=True)
    assert b"No module named 'rmq'" in own.stderr

    told = submit(bare, archive, "", "batch", server.url, name, "")

    assert "ROWS 10" in told
    assert "rmq.zip/spark_connector/__init__.py" in told


def test_a_streaming_read_finds_the_zip_by_the_drivers_pythonpath(
    bare: Path, archive: Path, client: rmq.Client, server: Server, name: str, tmp_path: Path
) -> None:
    """Spark 4.3 looks for --py-files in a wrong directory in the process that plans streams."""
    topic = client.topic(name, slots=2, codec="bytes")
    topic.send_many([rmq.Outgoing(b"%d" % n) for n in range(10)])
    home = str(tmp_path / "checkpoint")

    told = submit(bare, archive, str(archive), "stream", server.url, name, home)

    assert "ROWS 10" in told
    assert client.admin.stats(name)["settled"] == 10


SCALA = """
def options(topic: String) = Map("url" -> "URL", "subscribe" -> topic)
val waiting = spark.read.format("rmq").options(options("TOPIC") + ("queue" -> "store")).load()
println("ROWS " + waiting.count())
val copy = (spark.readStream.format("rmq").options(options("TOPIC")).load().select("value")
  .writeStream.format("rmq").option("url", "URL").option("topic", "TOPIC-copy")
  .option("checkpointLocation", "HOME/checkpoint")
  .trigger(org.apache.spark.sql.streaming.Trigger.AvailableNow()).start())
copy.awaitTermination()
System.exit(0)
"""


def start_shell(program: str, home: Path, *words: str) -> str:
    """Return the output of a program without a driver in Python, which ends by itself."""
    command, env = submission(Path(sys.executable), "local[2]", None, str(ROOT))
    command[0] = str(Path(command[0]).with_name(program))
    done = subprocess.run(
        [*command, *words], cwd=home, env=env, stdin=subprocess.DEVNULL, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_spark_sql_finds_rmq_in_the_interpreter_of_pyspark_python(
    client: rmq.Client, server: Server, name: str, tmp_path: Path
) -> None:
    client.topic(name).send_many([rmq.Outgoing(n) for n in range(7)])
    view = f"OPTIONS (url '{server.url}', subscribe '{name}', queue 'store')"

    told = start_shell(
        "spark-sql", tmp_path, "-e",
        f"CREATE TEMPORARY VIEW waiting USING rmq {view}; SELECT count(*) FROM waiting",
    )  # fmt: skip

    assert told.split()[-1] == "7"


@long("test_submit.py")
def test_scala_reads_and_copies_a_topic(
    client: rmq.Client, server: Server, name: str, tmp_path: Path
) -> None:
    client.topic(name).send_many([rmq.Outgoing(n) for n in range(7)])
    target = client.topic(f"{name}-copy")
    program = SCALA.replace("URL", server.url).replace("TOPIC", name)
    (tmp_path / "copy.scala").write_text(program.replace("HOME", str(tmp_path)))

    told = start_shell("spark-shell", tmp_path, "-i", str(tmp_path / "copy.scala"))

    assert "ROWS 7" in told
    assert taken(target) == Counter(range(7))
    assert client.admin.stats(name)["settled"] == 7
