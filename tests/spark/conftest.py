"""A Spark session for all tests here. Without Java or PySpark they are skipped, and fail in CI."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # for a JVM that lives for seconds
ARCHIVE = Path(sys.prefix) / "spark.jsa"  # of tests/spark/archive.py


def _missing() -> str:
    for module in ("pyspark", "pyarrow"):
        if find_spec(module) is None:
            return f"no {module}: pip install -e '.[spark]'"
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        return "no java: apt-get install openjdk-17-jre-headless"
    return ""


MISSING = _missing()
if MISSING and not os.environ.get("CI"):
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str | None:
    return f"tests/spark is left out: {MISSING}" if MISSING else None


def environment() -> dict[str, str]:
    """Set the environment in which Spark's Python processes run this checkout."""
    return {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def jvm() -> str:
    """Options of a JVM for tests."""
    if not ARCHIVE.exists():
        return QUICK
    return f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} -Xshare:auto -Xlog:disable"


def session(master: str = "local[2,4]", java: str = "") -> SparkSession:
    """A small Spark on this machine: two tasks at a time, each tried four times."""
    from pyspark.sql import SparkSession

    from spark_connector import RmqDataSource

    made = (
        SparkSession.builder.master(master)
        .appName("rmq tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "768m")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.driver.extraJavaOptions", java or jvm())
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")  # compiles for longer than it runs
        .config("spark.sql.session.timeZone", "Asia/Kolkata")  # so that a time zone shows
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("OFF")
    made.dataSource.register(RmqDataSource)
    return made


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A SparkSession; shared by the tests of a session."""
    if MISSING:
        pytest.fail(MISSING)
    before = {name: os.environ.get(name) for name in environment()}
    os.environ.update(environment())
    made = session()
    yield made
    made.stop()
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
