"""The import with one report, as a user runs it: killed, started again, and cancelled."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import rmq
from tests.conftest import any_binary
from tests.examples.running import EXAMPLES, environment, run_forked
from tests.faults.storm import seeded
from tests.forkserver import Forked

SCRIPT = str(EXAMPLES / "import_report.py")
PAGE = Path(__file__).parents[2] / "docs" / "outcomes.md"
ROWS = 1500
WRONG = 3  # of ROWS: rows 250, 750 and 1250

PROGRAM = """
import os, signal, sys, time
sys.path.insert(0, {examples!r})
import import_report

{change}
import_report.HOME.mkdir(parents=True, exist_ok=True)
sys.argv[1:] = {words!r}
sys.exit(import_report.main())
"""
DIE_WHILE_SENDING = """
send_many = import_report.rmq.Batch.send_many
def send_some(batch, topic, messages):
    send_many(batch, topic, messages[:700])
    os.kill(os.getpid(), signal.SIGKILL)
import_report.rmq.Batch.send_many = send_some
"""
DIE_AFTER_A_WRITE = """
store = import_report.store
def store_and_die(name, row):
    store(name, row)
    if row["number"] == 600:
        os.kill(os.getpid(), signal.SIGKILL)  # between the write and the ack
import_report.store = store_and_die
"""
SLOW_AND_COUNTED = """
import atexit, collections, threading
lock, now, most, store = threading.Lock(), collections.Counter(), {}, import_report.store
def count(tenant, change):
    with lock:
        now[tenant] += change
        most[tenant] = max(most.get(tenant, 0), now[tenant])
def store_slowly(name, row):
    count(row["tenant"], 1)
    time.sleep(0.02)
    store(name, row)
    count(row["tenant"], -1)
import_report.store = store_slowly
atexit.register(lambda: print(most, file=sys.stderr))
"""
NO_DEDUP_KEYS = """
outgoing = import_report.rmq.Outgoing
import_report.rmq.Outgoing = lambda *args, dedup_key=None, **options: outgoing(*args, **options)
"""


def played(home: Path, change: str, *words: str, rows: int = ROWS, **options: Any) -> Forked:
    """Start the program with a change of its code."""
    words = ("--rows", str(rows), *words)
    code = PROGRAM.format(examples=str(EXAMPLES), change=change, words=words)
    return Forked("tests.examples.script", "-c", code, cwd=home, env=environment(), **options)


def killed(home: Path, change: str) -> None:
    """Play the program until it kills itself."""
    assert played(home, change).wait(120) == -signal.SIGKILL
    assert not (home / ".rmq" / "import" / "import-1.json").exists()


def figures(home: Path, name: str = "import-1") -> dict[str, Any]:
    """Return the figures of the report, and what the shop and Redis have."""
    folder = home / ".rmq" / "import"
    written = json.loads((folder / f"{name}.json").read_text())
    found = {key: value for key, value in written["counts"].items() if value}
    with sqlite3.connect(folder / "shop.db") as shop:
        numbers = shop.execute("SELECT number FROM price WHERE import = ?", (name,)).fetchall()
    found |= {"stored": len(numbers), "numbers": {number for (number,) in numbers}}
    found["errors"] = Counter(row["error"] for row in written["failed"])
    return found


def settled(home: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """Return the numbers of settled rows, of dead letters, and of settled reports in Redis."""
    monkeypatch.setenv("RMQ_REDIS_SERVER", any_binary())
    with rmq.Client(f"embedded://{home}/.rmq/import") as client:
        rows, reports = client.admin.stats("import-rows"), client.admin.stats("import-reports")
    return rows["settled"], rows["dead"], reports["settled"]


def read_all(screen: int) -> str:
    """Read what a process prints on a terminal until it closes the terminal."""
    shown = b""
    with open(screen, "rb", buffering=0) as file, contextlib.suppress(OSError):
        while some := file.read(4096):
            shown += some
    return shown.decode()


def complete(rows: int, wrong: int) -> dict[str, Any]:
    return {
        "name": "import-1", "succeeded": rows - wrong, "dead": wrong, "stored": rows - wrong,
        "numbers": {n for n in range(1, rows + 1) if n % 500 != 250},
        "errors": {"the price 'n/a' is not a number": wrong},
    }  # fmt: skip


def test_after_two_kills_each_row_is_imported_once_and_one_report_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(tmp_path, DIE_WHILE_SENDING)
    killed(tmp_path, DIE_AFTER_A_WRITE)

    last = run_forked(tmp_path, SCRIPT, "--rows", str(ROWS))

    assert last.returncode == 0, last.stderr
    assert last.stdout.splitlines() == [
        f"import-1 has ended: {ROWS - WRONG} imported, {WRONG} failed",
        *(f"  row {n} of acme: the price 'n/a' is not a number" for n in (250, 750, 1250)),
        "  all failed rows: .rmq/import/import-1.json",
    ]
    assert last.stderr == ""
    assert figures(tmp_path) == complete(ROWS, WRONG)
    assert settled(tmp_path, monkeypatch) == (ROWS - WRONG, WRONG, 1)

    again = run_forked(tmp_path, SCRIPT)

    assert again.stdout == last.stdout
    assert settled(tmp_path, monkeypatch) == (ROWS - WRONG, WRONG, 1)


def test_a_cancel_in_the_middle_is_counted_and_five_rows_of_a_tenant_run_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, theirs = os.openpty()
    process = played(tmp_path, SLOW_AND_COUNTED, "--cancel-after", "100", stdout=theirs, stderr=-1)
    os.close(theirs)
    shown = read_all(screen)
    assert process.stderr is not None
    most = process.stderr.read()
    assert process.wait(120) == 0, most

    found = figures(tmp_path)
    assert found["is_cancelled"]
    assert found["stored"] == found["succeeded"] >= 90
    assert found["cancelled"] > 0
    assert found["succeeded"] + found.get("dead", 0) + found["cancelled"] == ROWS
    assert settled(tmp_path, monkeypatch)[2] == 1
    assert f"/{ROWS}" in shown, "no progress on a terminal"
    assert f"{found['cancelled']} cancelled" in shown
    of_tenants = json.loads(most.replace("'", '"'))
    assert max(of_tenants.values()) == 5
    assert sum(of_tenants.values()) > 5


@pytest.mark.slow
def test_without_dedup_keys_rows_are_seen_to_be_sent_twice(tmp_path: Path) -> None:
    """Negative control."""
    killed(tmp_path, NO_DEDUP_KEYS + DIE_WHILE_SENDING)
    assert played(tmp_path, NO_DEDUP_KEYS).wait(120) == 0

    assert figures(tmp_path)["succeeded"] > ROWS


@pytest.mark.slow
def test_an_import_of_20_000_rows_survives_kills_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed, rng = seeded()
    print(f"RMQ_TEST_SEED={seed}")
    assert isinstance(rng, random.Random)
    for _ in range(4):
        process = played(tmp_path, "", rows=20_000)
        time.sleep(rng.uniform(0.3, 4))
        process.kill()
        process.wait(30)

    last = run_forked(tmp_path, SCRIPT)

    assert last.returncode == 0, last.stderr
    assert figures(tmp_path) == complete(20_000, 40)
    assert settled(tmp_path, monkeypatch) == (19_960, 40, 1)


@pytest.mark.slow
def test_a_report_in_another_directory_is_named(tmp_path: Path) -> None:
    assert played(tmp_path, "").wait(120) == 0
    (tmp_path / ".rmq" / "import" / "import-1.json").unlink()

    process = played(tmp_path, "import_report.PATIENCE_S = 0.3", stderr=-1)

    assert process.stderr is not None
    assert "its report is in another directory" in process.stderr.read()
    assert process.wait(60) == 1


def test_the_page_shows_the_central_lines_as_they_are() -> None:
    block = PAGE.read_text().split("```python\n")[1].split("```")[0]
    shown = block.split("\n\n", 3)[3].strip()

    assert "send_many" in shown
    assert shown.replace("\n\n", "\n\n\n") in Path(SCRIPT).read_text()
