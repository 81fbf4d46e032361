"""A Spark session for all tests here. Without Java or PySpark they are skipped, and fail in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
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
    brought = os.environ.get("PYTHONPATH", "").split(":")  # another version of Spark, and pandas
    return {
        "PYTHONPATH": ":".join(dict.fromkeys((str(ROOT), *filter(None, brought)))),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def jvm() -> str:
    """Options of a JVM for tests."""
    if not ARCHIVE.exists():
        return QUICK
    return f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} -Xshare:auto -Xlog:disable"


def session(
    master: str = "local[2,4]", java: str = "", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A small Spark on this machine: two tasks at a time, each tried four times."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master)
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    made = (
        builder.appName("rmq tests")
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
    # 3.5 has no data sources in Python, and 4.0 refuses a name that it has found by itself.
    if not made.version.startswith(("3.5.", "4.0.")):
        from spark_connector import RmqDataSource

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


@pytest.fixture
def halting(spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """Spark with a data source that waits in the middle of its work."""
    from spark_connector import RmqDataSource
    from tests.spark.halting import source

    spark.dataSource.register(source(str(tmp_path)))
    yield spark
    spark.dataSource.register(RmqDataSource)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """An interpreter with what RMQ needs on every machine, and without RMQ."""
    if MISSING:
        pytest.fail(MISSING)
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
