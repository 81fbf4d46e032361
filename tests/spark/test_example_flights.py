"""The flights example, as a user runs it: a process of its own, on an embedded server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import any_binary
from tests.spark.conftest import ROOT, environment


@pytest.mark.timeout(300)
def test_delays_by_airport_and_hour_are_those_that_python_counts(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if name != "RMQ_URL"}

    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "spark_flights.py"), "--json"],
        cwd=tmp_path, env={**clean, **environment(), "RMQ_REDIS_SERVER": any_binary()},
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "flights": 838, "hours": 54, "alerts": 11, "same": True, "ordered": True,
    }  # fmt: skip
