"""spark-submit --py-files: RMQ in one zip, on an interpreter that has no RMQ of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

import rmq
from tests.servers import Server
from tests.spark.conftest import MISSING, ROOT, jvm

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


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """An interpreter with what RMQ needs on every machine, and without RMQ."""
    home = tmp_path / "bare"
    venv.create(home, with_pip=False)
    (site,) = home.glob("lib/python*/site-packages")
    names = ["redis", "hiredis", "msgpack", "pyarrow"]
    if sys.version_info < (3, 11, 3):  # Debian 12 has 3.11.2
        names.append("async_timeout")  # redis needs it there
    for name in names:
        spec = find_spec(name)
        assert spec is not None, name
        assert spec.submodule_search_locations
        (site / name).symlink_to(spec.submodule_search_locations[0])
    return home / "bin" / "python"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The zip, made as docs/spark.md says."""
    words = ["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    words += ["--no-build-isolation", "-w", str(tmp_path), str(ROOT)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    return Path(shutil.copy(wheel, tmp_path / "rmq.zip"))


def submit(bare: Path, archive: Path, path: str, *words: str) -> str:
    """Return the output of a job that gets the zip by --py-files."""
    if MISSING:
        pytest.fail(MISSING)
    pyspark = find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.submodule_search_locations
    home = Path(pyspark.submodule_search_locations[0])
    job = archive.with_name("job.py")
    job.write_text(JOB)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK", "RMQ"))}
    env = clean | {
        "SPARK_HOME": str(home), "PYSPARK_PYTHON": str(bare), "PYSPARK_DRIVER_PYTHON": str(bare),
        "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path,
    }  # fmt: skip
    done = subprocess.run(
        [
            home / "bin" / "spark-submit", "--master", "local[2]",
            "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false",
            "--conf", f"spark.driver.extraJavaOptions={jvm()}", "--driver-memory", "768m",
            "--py-files", archive, job, *words,
        ],
        cwd=archive.parent, env=env, capture_output=True, text=True,
    )  # fmt: skip
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
