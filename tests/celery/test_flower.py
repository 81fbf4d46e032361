"""Flower in a real browser shows the workers and the tasks of RMQ."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, wait_for
from tests.server.console.browsing import Window, started
from tests.servers import free_port

pytestmark = pytest.mark.slow

if not os.environ.get("CI"):
    pytest.importorskip("flower")


def test_the_pages_of_flower_show_workers_and_tasks(workers, tmp_path: Path) -> None:
    workers.start("-P", "threads", "-c", "2", "-E")
    port, output = free_port(), tmp_path / "flower.txt"
    words = ["-m", "celery", "-A", "tests.celery.shop", "flower", "--address=127.0.0.1"]
    with output.open("w") as file:
        flower = subprocess.Popen(
            [sys.executable, *words, f"--port={port}"], env=workers.environ(), stdout=file,
            stderr=file,
        )  # fmt: skip
    name = f"w0@{workers.name}"
    try:
        wait_for(lambda: "Connected to rmq://" in output.read_text(), output.read_text)
        with started() as browser:
            window = Window(browser, f"http://127.0.0.1:{port}")
            page = window.page
            page.goto(window.url + "/workers")
            page.get_by_role("link", name=name).wait_for()

            workers.app.tasks["shop.note"].delay(1)
            workers.app.tasks["shop.again"].delay(2)
            wait_for(lambda: workers.count("ran", 2) == 3, "the retries do not come", PATIENCE_S)
            page.goto(window.url + "/tasks")
            rows = page.locator("table tbody tr")
            rows.filter(has_text="shop.again").filter(has_text="SUCCESS").wait_for()
            rows.filter(has_text="shop.note").filter(has_text="SUCCESS").wait_for()
            if picture := os.environ.get("FLOWER_PICTURE"):
                page.screenshot(path=picture + "-tasks.png")

            page.goto(f"{window.url}/worker/{name}")
            page.get_by_text("Queues", exact=True).click()
            page.get_by_role("cell", name="celery", exact=True).first.wait_for()
            if picture := os.environ.get("FLOWER_PICTURE"):
                page.screenshot(path=picture + "-queues.png")
            window.close()
    finally:
        flower.terminate()
        flower.wait(60)
