"""A producer reports its sequence numbers when its process ends, closed or not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rmq
from tests.forkserver import Forked
from tests.patience import PATIENCE_S
from tests.servers import Server

SYNC = """
import rmq
client = rmq.Client({url!r}, interceptors=[rmq.Audit()])
client.topic({name!r}).send(1)
"""
ASYNC = """
import asyncio, rmq
async def main():
    global client
    client = rmq.AsyncClient({url!r}, interceptors=[rmq.Audit()])
    await client.topic({name!r}).send(1)
asyncio.run(main())
"""
FAILS = SYNC + "raise RuntimeError"


@pytest.mark.parametrize("program", [SYNC, ASYNC, FAILS], ids=["sync", "async", "failing"])
def test_program_that_ends_without_closing_has_reported_its_numbers(
    client: rmq.Client, server: Server, name: str, program: str
) -> None:
    code = program.format(url=server.url, name=name)
    Forked("tests.integration.python_child", code).wait(4 * PATIENCE_S)

    assert client.admin.audit(name, older_than=0).numbered == 1


def test_interpreter_that_ends_without_closing_has_reported_its_numbers(
    client: rmq.Client, server: Server, name: str
) -> None:
    code = SYNC.format(url=server.url, name=name)
    subprocess.run([sys.executable, "-c", code], timeout=4 * PATIENCE_S)

    assert client.admin.audit(name, older_than=0).numbered == 1


def test_process_whose_redis_is_gone_ends_all_the_same(
    own_server: Server, name: str, tmp_path: Path
) -> None:
    code = SYNC.format(url=own_server.url, name=name) + "import os; os.kill({}, 9)\n"
    assert own_server.process is not None
    code = code.replace("{}", str(own_server.process.pid))
    told = tmp_path / "stderr"

    with told.open("w") as stderr:
        done = Forked("tests.integration.python_child", code, stderr=stderr).wait(4 * PATIENCE_S)

    assert (done, told.read_text()) == (0, "")


def test_prefix_comes_from_the_environment_where_none_is_given(
    monkeypatch: pytest.MonkeyPatch, server: Server, name: str
) -> None:
    monkeypatch.setenv("RMQ_PREFIX", "elsewhere")
    with rmq.Client(server.url) as client, rmq.Client(server.url, prefix="rmq") as other:
        client.topic(name).send(1)

        assert client.admin.topics() == [name]
        assert name not in other.admin.topics()
        client.admin.topic_delete(name, force=True)
    monkeypatch.setenv("RMQ_PREFIX", "not a prefix")
    with pytest.raises(rmq.InvalidValue, match=r"^RMQ_PREFIX: "):
        rmq.AsyncClient(server.url)
