"""Runs of the locustfile that end at their options: forks of one process that has imported locust.

Its task is the JSON in the first argument: the words of each run. It prints, as JSON, the exit code
and the output of each, and what it has left in its temporary directory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]


def refused(runs: list[list[str]]) -> list[dict[str, Any]]:
    """Run locust with each of these words, in another process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.refusing", json.dumps(runs)], cwd=REPO,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240,
        env={k: v for k, v in os.environ.items() if not k.startswith(("RMQ_", "LOCUST_"))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def run(words: list[str]) -> dict[str, Any]:
    """Fork, and be `locust` with these words."""
    with (
        tempfile.TemporaryFile() as told,
        tempfile.TemporaryDirectory(prefix="rmq-") as temporary,
    ):
        pid = os.fork()
        if pid == 0:
            os.dup2(told.fileno(), 1)
            os.dup2(told.fileno(), 2)
            os.environ["TMPDIR"] = tempfile.tempdir = temporary
            sys.argv[:] = ["locust", "-f", "bench/locustfile.py", "--headless", *words]
            code: Any = 70
            try:
                code = main.main()
            except SystemExit as end:
                code = end.code
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code or 0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        told.seek(0)
        left = [path.name for path in Path(temporary).iterdir()]
        return {"code": code, "told": told.read().decode(), "left": left}


if __name__ == "__main__":
    from locust import main

    import bench.load.run
    import bench.load.users  # noqa: F401  # which each fork would import again

    print(json.dumps([run(words) for words in json.loads(sys.argv[1])]))
