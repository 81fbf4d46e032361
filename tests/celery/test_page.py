"""The blocks of docs/celery.md and the program of examples/celery_shop do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patience import wait_for

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples" / "celery_shop"


def test_each_block_of_the_page_configures_an_app_that_connects(server):
    text = (ROOT / "docs" / "celery.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)

    assert len(blocks) == 2
    for block in blocks:
        place = server.url.partition("://")[2].rpartition("/")[0]
        names: dict[str, Any] = {}
        exec(block.replace("localhost:6379", place), names)
        app = names.get("app")
        if app is None:
            from celery import Celery

            app = Celery("shop", set_as_current=False)
            app.conf.update({key: names[key] for key in ("broker_transport", "broker_url")})
        with app.connection_for_write() as connection:
            assert connection.connect().driver_name == "rmq"
        app.close()


@pytest.mark.slow
def test_the_shop_charges_and_reminds(own_server, tmp_path):
    environ = {**os.environ, "SHOP_BROKER": own_server.url.replace("redis", "rmq", 1)}
    environ |= {"C_FORCE_ROOT": "1", "PYTHONPATH": str(ROOT)}
    output = tmp_path / "worker.txt"
    with output.open("w") as file:
        words = [sys.executable, "-m", "celery", "-A", "app", "worker", "-P", "threads"]
        worker = subprocess.Popen(words, cwd=SHOP, env=environ, stdout=file, stderr=file)
    try:
        subprocess.run([sys.executable, "app.py"], cwd=SHOP, env=environ, check=True)
        wait_for(
            lambda: output.read_text().count("reminder for order") == 19,
            lambda: output.read_text()[-2000:],
        )
        text = output.read_text()
        assert text.count("charged order") == 19
        assert "20 orders were placed" in text
        late = [int(ms) for ms in re.findall(r"(-?\d+) ms late", text)]
        assert min(late) >= -1, "the time of the caller's clock is taken before the countdown"
        with own_server.raw() as raw:
            assert raw.zcard("rmq:{celery_0}:dead") == 1
    finally:
        worker.terminate()
        worker.wait(60)
