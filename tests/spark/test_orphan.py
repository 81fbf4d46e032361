"""A source runner whose JVM was killed: it lets go, in the middle of a call too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rmq
from tests.servers import Server
from tests.spark.conftest import ROOT

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, *sys.argv[1:]])
print(child.pid, flush=True)
time.sleep(600)
"""
RUNNER = """
import json, sys
from spark_connector import options
from spark_connector.schema import stream_schema
from spark_connector.stream import RmqStreamReader

found = options.stream(json.loads(sys.argv[1]))
reader = RmqStreamReader(found, stream_schema(False))
try:  # as Spark's runner does
    start = reader.initialOffset()
    reader.latestOffset(start, reader.getDefaultReadLimit())
    with open(sys.argv[2], "w") as told:
        told.write(json.dumps(start))
    reader.latestOffset(start, reader.getDefaultReadLimit())  # waits for messages, for a minute
finally:
    reader.stop()
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_runner_ends_with_its_jvm_and_the_next_driver_goes_on(
    client: rmq.Client, server: Server, name: str, tmp_path: Path
) -> None:
    client.topic(name).open()
    runner, told = tmp_path / "python_streaming_source_runner.py", tmp_path / "told"
    runner.write_text(RUNNER)
    given = {"url": server.url, "subscribe": name, "pollWaitMs": "60000", "ownerLeaseSeconds": "60"}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(runner), json.dumps(given), str(told)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        until = time.monotonic() + 60
        while not told.exists() or not told.read_text():
            assert time.monotonic() < until
            time.sleep(0.05)
        run = json.loads(told.read_text())["run"]
        next_one = client.topic(name).query(run, "another:1:1", owner_lease=1)
        with pytest.raises(rmq.QueryOwned):
            next_one.renew({})

        parent.kill()
        parent.wait()

        until = time.monotonic() + 30  # half of what the runner would have waited and owned
        while not gone(child):
            assert time.monotonic() < until, "the runner outlives its JVM"
            time.sleep(0.05)
        until = time.monotonic() + 5
        while True:
            try:
                next_one.renew({})
                break
            except rmq.QueryOwned:
                assert time.monotonic() < until, "the runner ended and is still the owner"
                time.sleep(0.1)
    finally:
        parent.kill()
        if not gone(child):
            os.kill(child, signal.SIGKILL)
