"""The shop of docs/shop.md: its own tests, and all its processes with PostgreSQL."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

import rmq
from tests.databases import Database
from tests.examples.running import EXAMPLES, environment, run
from tests.patience import wait_for
from tests.server.running import ask
from tests.servers import Server, free_port

SHOP = EXAMPLES / "shop"
PAGE = (EXAMPLES.parent / "docs" / "shop.md").read_text()
SERVICES: dict[str, Any] = yaml.safe_load((SHOP / "compose.yaml").read_text())["services"]
ORDERS = 40
CUSTOMERS = ("ann", "bob", "cy", "dee")


@pytest.mark.parametrize("file", ["webshop.py", "test_webshop.py", "compose.yaml"])
def test_the_page_shows_the_whole_file(file: str) -> None:
    blocks = re.findall(rf"^```\w+ {re.escape(file)}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)

    assert re.sub(r"\n+", "\n", "".join(blocks)) == re.sub(r"\n+", "\n", (SHOP / file).read_text())


def test_the_tests_of_the_shop_pass(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    for name in ("webshop.py", "test_webshop.py"):
        shutil.copy(SHOP / name, tmp_path)

    done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_webshop.py")

    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.slow
def test_the_tests_find_a_shop_that_charges_in_another_order(tmp_path: Path) -> None:
    """Negative control."""
    pytest.importorskip("fastapi")
    shutil.copy(SHOP / "test_webshop.py", tmp_path)
    text = (SHOP / "webshop.py").read_text()
    (tmp_path / "webshop.py").write_text(
        text.replace("VIP, NORMAL = 900, 500", "VIP, NORMAL = 500, 900")
    )

    done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_webshop.py")

    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout


class Shop:
    """The processes of compose.yaml, without containers."""

    def __init__(self, cwd: Path, env: dict[str, str]) -> None:
        self.cwd, self.env = cwd, env
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()

    def start(self, service: str) -> None:
        command = [*SERVICES[service]["command"]]
        if service == "web":
            command[command.index("0.0.0.0")] = "127.0.0.1"
            command += ["--port", str(self.port)]
        command = ["rmq.__main__" if one == "rmq" else one for one in command]
        with (self.cwd / f"{service}.log").open("ab") as log:
            self.processes[service] = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=self.cwd, env=self.env, stdout=log, stderr=log
            )

    def log(self, service: str) -> str:
        return (self.cwd / f"{service}.log").read_text()

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def shop(database: Database, server: Server, name: str, tmp_path: Path) -> Iterator[Shop]:
    pytest.importorskip("fastapi")
    shutil.copy(SHOP / "webshop.py", tmp_path)
    url = database.url()
    env = environment() | {
        "RMQ_URL": server.url, "RMQ_PREFIX": name, "RMQ_DATABASE_URL": url,
        "PYTHONPATH": f"{tmp_path}:{EXAMPLES.parent}",
    }  # fmt: skip
    made = Shop(tmp_path, env)
    yield made
    made.stop()


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_each_order_is_charged_once_while_its_worker_is_killed(
    shop: Shop, database: Database, server: Server, name: str
) -> None:
    web = f"http://127.0.0.1:{shop.port}"
    shop.start("web")
    wait_for(lambda: "Application startup complete" in shop.log("web"), "the web")
    shop.start("relay")
    shop.start("worker")
    for number in range(1, ORDERS + 1):
        customer = CUSTOMERS[number % len(CUSTOMERS)]
        mail = f"{customer}@example.org" if number % 10 else customer
        order = {"id": number, "customer": customer, "mail": mail, "cents": 100 * number}
        assert ask(f"{web}/orders", "POST", order | {"vip": number % 7 == 0}).status == 201
        if number % 13 == 0:
            shop.processes["worker"].send_signal(signal.SIGKILL)
            shop.processes["worker"].wait()
            shop.start("worker")

    with rmq.Client(server.url, prefix=name) as client:

        def count(topic: str, of: str) -> int:
            with contextlib.suppress(rmq.TopicNotFound):
                return client.admin.stats(topic)[of]
            return 0

        wait_for(lambda: count("charges", "settled") == ORDERS, "the charges")
        wait_for(lambda: count("mails", "dead") == ORDERS // 10, "the wrong addresses")
        wait_for(lambda: count("mails", "later") == ORDERS, "the questions")
        with database.engine().connect() as connection:
            paid = connection.scalar(sa.text("SELECT count(*) FROM shop_order WHERE paid"))
            stubs = connection.scalar(sa.text("SELECT count(*) FROM rmq_stub"))
        assert paid == ORDERS
        assert stubs == ORDERS + 2 * ORDERS, "each order and each charge wrote its messages once"
        for _ in range(2):
            asked = ask(f"{web}/reports/2026-11-30", "POST", {})
            assert (asked.status, asked.body) == (202, {"statements": len(CUSTOMERS)})
        total = 100 * ORDERS * (ORDERS + 1) // 2
        told = f"report of 2026-11-30: {len(CUSTOMERS)} statements, {total} cents"
        wait_for(lambda: told in shop.log("worker"), lambda: shop.log("worker")[-3000:])
        time.sleep(0.2)
        assert count("reports", "accepted") == 1
