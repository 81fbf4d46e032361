"""Run kombu's and Celery's own integration tests on RMQ.

This script fetches nothing. Get the sources of the installed versions first, and start a Redis:

    pip download kombu==5.7.0 celery==5.7.0 --no-deps --no-binary :all:
    tar xzf kombu-5.7.0.tar.gz; tar xzf celery-5.7.0.tar.gz
    python -m tests.celery.upstream kombu-5.7.0 rmq://localhost:6379/9
    python -m tests.celery.upstream celery-5.7.0 rmq://localhost:6379/9

Kombu 5.7.0: 46 of 47 tests pass. `test_Failover::test_failover_switches_to_alternate_url` fails,
because it expects the port of the URL in the connection, which keeps the whole URL instead.

Celery 5.7.0: docs/celery.md lists the tests that fail. The run takes about 20 minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

OF_KOMBU = """
import os
import kombu
import pytest
import rmq.celery
from .common import (
    BaseEventLoop, BaseExchangeTypes, BaseFailover, BaseMessage, BasePriority, BaseTimeToLive,
    BasicFunctionality,
)
URL, DEAD = os.environ["TEST_BROKER"], "rmq://localhost:1"
connection = pytest.fixture(lambda: kombu.Connection(URL))
invalid_connection = pytest.fixture(
    lambda: kombu.Connection(DEAD, transport_options={"retry_for": 0})
)
failover_connection = pytest.fixture(
    lambda: kombu.Connection(f"{DEAD};{URL}", transport_options={"retry_for": 0})
)
class test_Basic(BasicFunctionality): pass
class test_Exchanges(BaseExchangeTypes): pass
class test_Message(BaseMessage): pass
class test_EventLoop(BaseEventLoop): pass
class test_TimeToLive(BaseTimeToLive): pass
class test_Priority(BasePriority): PRIORITY_ORDER = "asc"
class test_Failover(BaseFailover): pass
"""


def main(folder: Path, url: str) -> int:
    """Run the tests in a folder of sources. Return the exit code of pytest."""
    place = urlsplit(url)
    environ = {**os.environ, "TEST_BROKER": url, "C_FORCE_ROOT": "1"}
    environ |= {"REDIS_HOST": place.hostname or "", "REDIS_PORT": str(place.port or 6379)}
    environ["TEST_BACKEND"] = f"redis://{place.hostname}:{place.port or 6379}/12"
    words = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir=."]
    words += ["-p", "no:cacheprovider", "-o", "python_classes=test_*", "-p", "rmq.celery"]
    if (folder / "kombu").is_dir():
        (folder / "t/integration/test_rmq.py").write_text(OF_KOMBU)
        words += ["t/integration/test_rmq.py"]
    else:
        words += ["-p", "celery.contrib.pytest"]
        words += [f"t/integration/test_{name}.py" for name in ("inspect", "tasks", "canvas")]
    return subprocess.run(words, cwd=folder, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
