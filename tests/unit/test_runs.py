"""The plugins of the suite: what a test leaves alive is found, and a run fits on a screen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.parallel import parts_of

ROOT = Path(__file__).parents[2]
TESTS = """
import os, subprocess, threading, time
import pytest

over = threading.Event()

@pytest.fixture(scope="module")
def shared():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()

def test_of_a_shared_process(shared):
    assert shared.poll() is None

def test_that_leaves_a_process():
    subprocess.Popen(["sleep", "601"])

def test_that_leaves_a_thread():
    threading.Thread(target=over.wait, args=(60,), daemon=True, name="left behind").start()

def test_that_fails():
    print(*range(100), sep="\\n")
    assert not "RMQ_TEST_SEED=17: the bank is short"

def test_that_is_skipped():
    pytest.skip("no mariadbd here: apt-get install mariadb-server")

@pytest.mark.slow
def test_that_is_slow():
    pass
"""

ENDS = """
import os

def test_that_ends_its_process():
    os._exit(3)

def test_after_it():
    pass
"""


def test_a_run_names_what_is_left_alive_and_what_was_not_tried(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_others.py").write_text(ENDS)
    (tmp_path / "conftest.py").write_text("import tests.leaks\ntests.leaks.ENDS_S = 0.2\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    plugins = [
        *("-p", "tests.leaks", "-p", "tests.parallel", "-p", "tests.screen"),
        *("-p", "no:cacheprovider", "--processes", "2"),
    ]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-m", "not slow", str(tmp_path)],
        cwd=tmp_path, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip

    assert done.returncode == 1, done.stderr
    assert "2 failed, 4 passed, 1 skipped, 1 deselected, 2 errors" in done.stdout
    for part in (
        "of it is alive: process ['sleep', '601']",
        "of it is alive: thread 'left behind'",
        "the process of this test ended, exit code 3",
        "FAILED, again: RMQ_TEST_SEED=17 .venv/bin/python -m pytest test_some.py::test_that_fails",
        "88 lines before: .rmq/tests/test_some.py-test_that_fails",
    ):
        assert part in done.stdout, done.stdout
    rows = {tuple(line.split()) for line in done.stdout.splitlines()}
    slow = "slow cases: storms, mutants, products of parameters"
    assert (*slow.split(), "1", "make", "slow") in rows
    assert ("no", "mariadbd", "here", "1", "apt-get", "install", "mariadb-server") in rows
    shown = [line for line in done.stdout.splitlines() if line.strip().isdecimal()]
    assert shown == [str(number) for number in range(88, 100)]  # of the hundred that it printed


def test_slow_tests_of_a_file_are_run_by_up_to_four_processes() -> None:
    def item(file: str, mark: str | None) -> Any:
        return SimpleNamespace(path=Path(file), get_closest_marker=lambda _: mark)

    items = [item("quick", None)] * 9 + [item("slow", "slow")] * 9 + [item("one", "slow")]

    assert parts_of(items) == [
        [0, 1, 2, 3, 4, 5, 6, 7, 8],
        [9, 10, 11], [12, 13, 14], [15, 16, 17],
        [18],
    ]  # fmt: skip
