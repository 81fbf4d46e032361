"""RMQ speaks through redis-py 5 to 8, RESP2 and RESP3: the same life gives the same answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import Server

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".venv" / "redis-py"
LIFE = Path(__file__).with_name("life.py")
pytestmark = pytest.mark.slow  # each version is downloaded once
VERSIONS = ["5.0.8", "5.2.1", "6.4.0", "7.4.0", "8.1.0"]


def library(version: str) -> Path:
    """redis-py of a version, in its own directory; without a registry a laptop skips, CI fails."""
    home = CACHE / version
    if not (home / "redis" / "__init__.py").is_file():
        done = subprocess.run(
            [
                sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                "--no-deps", "--target", str(home), f"redis=={version}",
            ],
            env={name: text for name, text in os.environ.items() if name != "PIP_CONSTRAINT"},
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(done.stderr[-500:])
    return home


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.fault("F34")
def test_a_message_lives_its_life_through_it(server: Server, version: str, protocol: int) -> None:
    with server.raw() as redis:
        redis.flushdb()
    path = os.pathsep.join([str(library(version)), str(ROOT)])

    done = subprocess.run(
        [sys.executable, str(LIFE), f"{server.url}?protocol={protocol}"],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-2000:]
    used, sync, asynchronous = json.loads(done.stdout)
    numbers = sorted(map(str, range(20)))
    told = f"{len(sync)} messages received sync, {len(asynchronous)} async, of 21 each"
    print(f"\nFIG redis-py {used}, RESP{protocol}: {told}")
    assert used == version
    assert sync == sorted([*numbers, "merged"])
    assert asynchronous == sorted([*numbers, "late"])


# What a library that decodes replies would do.
DECODES = """
import hiredis
class Reader(hiredis.Reader):
    def __init__(self, *args, **named):
        super().__init__(*args, **named | {"encoding": "latin-1"})
hiredis.Reader = Reader
"""


@pytest.mark.fault("F34", control=True)
def test_a_library_that_answers_otherwise_is_seen(server: Server, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(DECODES)
    with server.raw() as redis:
        redis.flushdb()

    done = subprocess.run(
        [sys.executable, str(LIFE), server.url],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip

    assert done.returncode != 0


# RMQ knows errors by their classes, too: versions of redis-py take other codes off the text.
KNOWS_NO_CLASS = """
from rmq.kernel.transport import errors as redis_errors
redis_errors._CLASSES.clear()
"""


@pytest.mark.fault("F34", control=True)
def test_a_client_that_knows_errors_by_their_text_alone_fails(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(KNOWS_NO_CLASS)
    with server.raw() as redis:
        redis.flushdb()
        redis.script_flush()

    done = subprocess.run(
        [sys.executable, str(LIFE), server.url],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip

    assert done.returncode != 0
    assert "No matching script" in done.stderr
