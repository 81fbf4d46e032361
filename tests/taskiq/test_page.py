"""The program of examples/taskiq_shop does what its README says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import wait_for

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples" / "taskiq_shop"


@pytest.mark.slow
def test_the_shop_charges_reminds_and_reports(own_server, tmp_path):
    environ = {**os.environ, "RMQ_URL": own_server.url, "PYTHONPATH": str(ROOT)}
    output = tmp_path / "worker.txt"
    with output.open("w") as file:
        words = [sys.executable, "-m", "taskiq", "worker", "shop:broker", "--workers", "1"]
        worker = subprocess.Popen(words, cwd=SHOP, env=environ, stdout=file, stderr=file)
    try:
        text = "import asyncio, shop; asyncio.run(shop.main())"
        found = subprocess.run(
            [sys.executable, "-c", text], cwd=SHOP, env=environ, check=True, text=True,
            capture_output=True,
        )  # fmt: skip
        assert found.stdout.splitlines() == ["charged 17700 cents", "the report: out of paper"]
        wait_for(
            lambda: output.read_text().count("reminder for order") == 19,
            lambda: output.read_text()[-2000:],
        )
        with own_server.raw() as raw:
            assert raw.zcard("rmq:{shop_0}:dead") == 2
    finally:
        worker.terminate()
        worker.wait(60)
