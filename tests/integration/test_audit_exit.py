"""A producer reports its sequence numbers when its process ends, closed or not."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

import rmq
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
    subprocess.run([sys.executable, "-c", code], timeout=60, stderr=subprocess.DEVNULL)

    assert client.admin.audit(name, older_than=0).numbered == 1


def test_process_whose_redis_is_gone_ends_all_the_same(own_server: Server, name: str) -> None:
    code = SYNC.format(url=own_server.url, name=name) + "import os; os.kill({}, 9)\n"
    assert own_server.process is not None
    code = code.replace("{}", str(own_server.process.pid))
    began = time.monotonic()

    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began < 20


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
