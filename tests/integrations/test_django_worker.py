"""`manage.py rmq_worker` in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import rmq
from tests.integrations.conftest import Make
from tests.patience import PATIENCE_S, wait_for
from tests.servers import Server, die_with_parent

SETTINGS = (
    "from tests.integrations.shop.settings import *"
    + """
DEBUG = True
if "SHOP_OUTBOX" in os.environ:
    TASKS["default"]["OPTIONS"]["outbox"] = os.environ["SHOP_OUTBOX"]
"""
)


@contextmanager
def manage(
    directory: Path, server: Server, prefix: str, *words: str, **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A command of `manage.py` in a process, and the file with its output."""
    (directory / "own_settings.py").write_text(SETTINGS)
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "own_settings", "SHOP_REDIS": server.url, "SHOP_PREFIX": prefix,
        "SHOP_DB": str(directory / "shop.db"), "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": f"{directory}{os.pathsep}{Path(rmq.__file__).parents[1]}",
    } | variables  # fmt: skip
    log = directory / f"{words[0]}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "django", *words],
            cwd=directory, env=env, stdout=output, stderr=output, preexec_fn=die_with_parent,
        )  # fmt: skip
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()


def test_the_worker_runs_tasks_until_sigterm(
    make_backend: Make, tasks: Any, server: Server, name: str, tmp_path: Path
) -> None:
    make_backend(("default", "mails"))
    result = tasks.add.using(queue_name="mails").enqueue(1)
    words = ("rmq_worker", "--queue", "default", "--queue", "mails", "--no-reload")
    with manage(tmp_path, server, name, *words) as (process, log):

        def has_run() -> bool:
            assert process.poll() is None, log.read_text()
            result.refresh()
            return bool(result.is_finished)

        wait_for(has_run)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()

    assert result.worker_ids[0].endswith(f":{process.pid}")
    assert "rmq_worker: running tasks" in log.read_text()


def test_the_worker_sends_the_tasks_of_committed_transactions(
    make_backend: Make, tasks: Any, shop_db: str, server: Server, name: str, tmp_path: Path
) -> None:
    from django.db import connection, transaction

    if shop_db != "sqlite":
        pytest.skip("the process has the settings of SQLite")
    make_backend(("default",), outbox="default")
    with transaction.atomic():
        result = tasks.write_order.enqueue(7)
    words = ("rmq_worker", "--queue", "default", "--no-reload")
    with manage(tmp_path, server, name, *words, SHOP_OUTBOX="default") as (process, log):

        def has_run() -> bool:
            assert process.poll() is None, log.read_text()
            result.refresh()
            return bool(result.is_finished)

        wait_for(has_run)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()

    assert result.status == "SUCCESSFUL", result.errors
    with connection.cursor() as cursor:
        cursor.execute("SELECT number FROM shop_order")
        assert cursor.fetchall() == [(7,)]


@pytest.mark.slow
def test_several_processes_run_tasks_and_one_that_dies_is_replaced(
    make_backend: Make, tasks: Any, shop_db: str, server: Server, name: str, tmp_path: Path
) -> None:
    from django.db import transaction

    if shop_db != "sqlite":
        pytest.skip("the process has the settings of SQLite")
    make_backend(outbox="default")
    words = ("rmq_worker", "--queue", "default", "--processes", "2", "--concurrency", "1")
    with manage(tmp_path, server, name, *words, SHOP_OUTBOX="default") as (process, log):

        def workers(results: list[Any]) -> set[str]:
            assert process.poll() is None, log.read_text()
            for result in results:
                result.refresh()
            wanted = [result for result in results if result.is_finished]
            return {result.worker_ids[-1] for result in wanted} if wanted == results else set()

        def run_some() -> set[str]:
            with transaction.atomic():
                results = [tasks.pause.enqueue(0.2) for _ in range(8)]
            wait_for(lambda: workers(results))
            return workers(results)

        wait_for(lambda: len(run_some()) == 2)  # the second process starts after the first
        victim = min(run_some())
        os.kill(int(victim.rpartition(":")[2]), signal.SIGKILL)
        wait_for(lambda: len(found := run_some()) == 2 and victim not in found)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()


@pytest.mark.slow
def test_the_worker_restarts_when_the_code_changes(
    make_backend: Make, tasks: Any, server: Server, name: str, tmp_path: Path
) -> None:
    make_backend(("default",))
    with manage(tmp_path, server, name, "rmq_worker", "--queue", "default") as (process, log):

        def ran(result: Any) -> bool:
            assert process.poll() is None, log.read_text()
            result.refresh()
            return bool(result.is_finished)

        before, after = tasks.add.enqueue(1), None
        wait_for(lambda: ran(before))
        path = tmp_path / "own_settings.py"
        path.write_text(SETTINGS + "# changed\n")
        os.utime(path, (2e9, 2e9))
        wait_for(lambda: log.read_text().count("running tasks") == 2)
        after = tasks.add.enqueue(2)
        wait_for(lambda: ran(after))
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)

    assert before.worker_ids != after.worker_ids


def test_the_worker_refuses_what_it_cannot_run(make_backend: Make) -> None:
    from django.core.management import CommandError, call_command

    make_backend()
    with pytest.raises(CommandError, match="no QUEUES"):
        call_command("rmq_worker", stdout=StringIO())
    with pytest.raises(CommandError, match="no QUEUES"):
        call_command("rmq_worker", "--processes", "2", stdout=StringIO())
    with pytest.raises(CommandError, match="give one of them"):
        call_command("rmq_worker", "--processes", "2", "--reload", stdout=StringIO())
    make_backend(("default",), topic={"slots": 0})
    with pytest.raises(CommandError, match="slots"):
        call_command("rmq_worker", stdout=StringIO())
