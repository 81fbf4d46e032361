"""The error of a script names the source file and line, whatever way its call went."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import rmq
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.transport.lua import script_loader
from tests.integration.driven import both_clients, connect
from tests.servers import Server, engines
from tests.sources import with_line

LARGE = "x" * 100_000
# A function that is put in place of its calls, and one that is called.
INLINE = "lib/read_time", "local function read_time(test_us)"
CALLED = "lib/check", "local function whole_number(text, low, high, name)"
INDEX = "  local broken = ('x').y.z"  # an error of Lua
COMMAND = "  redis.call('HGET', KEYS[1])"  # an error of Redis


@both_clients
@pytest.mark.parametrize("line", [INDEX, COMMAND], ids=["lua", "redis"])
@pytest.mark.parametrize("where", [INLINE, CALLED], ids=["inline", "called"])
def test_call_names_the_source_line(
    api: Any, name: str, tmp_path: Path, where: tuple[str, str], line: str
) -> None:
    topic = api.topic(name)
    topic.send(1)

    with (
        with_line(tmp_path, *where, line) as place,
        pytest.raises(rmq.ScriptFailed, match=rf"^send.* {re.escape(place)}\b") as caught,
    ):
        topic.send(LARGE if where == CALLED else 1)  # a short form checks no number

    assert "user_script" not in str(caught.value)


@both_clients
def test_call_names_a_local_as_the_source_does(api: Any, name: str, tmp_path: Path) -> None:
    topic = api.topic(name)
    topic.send(1)

    with (
        with_line(tmp_path, *INLINE, "  local unread = nil\n  unread.x = unread.y"),
        pytest.raises(rmq.ScriptFailed, match="attempt to index local 'unread'"),
    ):
        topic.send(1)


@both_clients
def test_calls_of_several_slots_name_the_source_line(api: Any, name: str, tmp_path: Path) -> None:
    topic = api.topic(name, slots=8)
    topic.send_many([rmq.Outgoing(n) for n in range(100)])

    with (
        with_line(tmp_path, *INLINE, INDEX) as place,
        pytest.raises(rmq.RMQError) as caught,
    ):
        topic.send_many([rmq.Outgoing(n) for n in range(100)])

    assert re.search(rf" {re.escape(place)}\b", str(caught.value))


@both_clients
def test_call_in_a_transaction_names_the_source_line(api: Any, name: str, tmp_path: Path) -> None:
    topic = api.topic(name)
    topic.send(LARGE)

    with (
        with_line(tmp_path, *INLINE, COMMAND) as place,
        pytest.raises(rmq.ScriptFailed, match=rf" {re.escape(place)}\b"),
    ):
        topic.send(LARGE)


def test_wrong_type_names_the_source_line_that_met_it(api: Any, name: str, server: Server) -> None:
    topic = api.topic(name, max_retries=0)
    topic.send("x")
    (held,) = topic.consumer().receive(1)
    with server.raw() as raw:
        raw.set(SlotKeys("rmq", name, 0).dead, "not ours")

    with pytest.raises(rmq.ScriptFailed, match="another type of value") as caught:
        held.nack(delay=0)

    found = re.search(r"\(read in lua/([\w/]+)\.lua:(\d+)\)", str(caught.value))
    assert found is not None
    line = script_loader.source(found[1]).splitlines()[int(found[2]) - 1]
    assert "redis.call(" in line


@pytest.mark.parametrize("engine", engines())
@pytest.mark.parametrize("line", [INDEX, COMMAND], ids=["lua", "redis"])
def test_every_engine_names_a_line_that_is_translated(
    engine: str, name: str, tmp_path: Path, line: str
) -> None:
    own_server = Server(engines()[engine])
    try:
        with connect("sync", own_server.url, retry_for=2) as api:
            topic = api.topic(name)
            topic.send(1)

            with (
                with_line(tmp_path, *INLINE, line) as place,
                pytest.raises(rmq.ScriptFailed, match=rf" {re.escape(place)}\b") as caught,
            ):
                topic.send(1)
    finally:
        own_server.stop()

    cause = str(caught.value.__cause__)
    assert re.search(r"@user_script: ?\d+", cause)
    assert place not in cause


def test_text_that_is_no_lua_names_the_source_line(api: Any, name: str, tmp_path: Path) -> None:
    topic = api.topic(name, slots=8)
    topic.send(1)

    with (
        with_line(tmp_path, *INLINE, "  local = 1") as place,
        pytest.raises(rmq.ScriptFailed, match=rf"^send .*compiling.* {re.escape(place)}:"),
    ):
        topic.send_many([rmq.Outgoing(n) for n in range(100)])
