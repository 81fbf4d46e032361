"""The shops on FastAPI and Starlette: an order and its message are in one transaction."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import rmq
from rmq.outbox import Relay
from rmq.sql.outbox.tables import metadata
from tests.examples.running import EXAMPLES
from tests.integration.working import work
from tests.server.hosting import served
from tests.server.running import ask
from tests.servers import Server

ORDER = {"id": 7, "customer": "ann"}


@pytest.fixture(params=["fastapi_shop", "starlette_shop"])
def load(
    request: pytest.FixtureRequest, server: Server, name: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[], Any]]:  # fmt: skip
    """Import the program as a new process would, with tables of its own."""
    pytest.importorskip(request.param.partition("_")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RMQ_URL", server.url)
    monkeypatch.setenv("RMQ_PREFIX", name)
    path = EXAMPLES / "web_shop" / f"{request.param}.py"

    def load() -> Any:
        tables = sa.MetaData()
        for table in metadata.tables.values():
            table.to_metadata(tables)
        monkeypatch.setattr("rmq.outbox.metadata", tables)
        spec = importlib.util.spec_from_file_location(request.param, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[request.param] = module  # where annotations of its handlers are looked up
        spec.loader.exec_module(module)
        return module

    yield load
    del sys.modules[request.param]


def test_an_order_and_its_message_are_one_transaction(
    load: Callable[[], Any], server: Server, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    web, worker = load(), load()
    repeated = {"Idempotency-Key": "a1"}
    with served(web.app) as url:
        placed = ask(url + "/orders", "POST", ORDER)
        again = ask(url + "/orders", "POST", ORDER)
        gifts = [ask(url + "/gifts", "POST", {**ORDER, "id": 8}, repeated) for _ in range(2)]

    assert (placed.status, placed.body, again.status) == (201, ORDER, 500)
    assert [(gift.status, gift.body["status"]) for gift in gifts] == [
        (202, "stored"), (202, "duplicate"),
    ]  # fmt: skip
    engine = sa.create_engine("sqlite:///shop.db")
    with rmq.Client(server.url, prefix=name) as client:
        relay = Relay(web.outbox, engine, client)
        assert [relay.run_once(), relay.run_once()] == [1, 0], "the second order was rolled back"
        work(worker.client, lambda: client.admin.stats("orders")["settled"] == 2)
    engine.dispose()
    assert sorted(capsys.readouterr().out.splitlines()) == ["packed 7 for ann", "packed 8 for ann"]


def test_without_redis_an_order_is_placed_and_a_gift_is_a_503(
    load: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMQ_URL", "redis://localhost:1/0")
    made = rmq.AsyncClient(retry_for=0.1)
    monkeypatch.setattr(rmq, "AsyncClient", lambda **_: made)
    web = load()
    with served(web.app) as url:
        placed, given = (ask(url + path, "POST", ORDER) for path in ("/orders", "/gifts"))

    assert placed.status == 201
    assert (given.status, given.headers["Retry-After"]) == (503, "5")


@pytest.mark.parametrize("shop", ["fastapi_shop", "starlette_shop"])
def test_the_page_shows_the_program(shop: str) -> None:
    page = (EXAMPLES.parent / "docs" / "frameworks.md").read_text()
    program = (EXAMPLES / "web_shop" / f"{shop}.py").read_text()

    assert f"```python {shop}.py\n{program}```" in page
    assert len([line for line in program.splitlines() if line]) <= 60
