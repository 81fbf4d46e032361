"""With `--functions` a role has FCALL, and nothing that runs or loads other Lua."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
import redis

import rmq
from rmq.kernel.transport import acl, functions, scripts
from rmq.kernel.transport.errors import code_of
from tests.acl.registry import ON_TOPICS
from tests.acl.scene import Scene
from tests.patience import PATIENCE_S

LUA = [
    ("EVAL", "return 1", "0"), ("EVALSHA", "0" * 40, "0"), ("EVAL_RO", "return 1", "0"),
    ("EVALSHA_RO", "0" * 40, "0"), ("SCRIPT", "LOAD", "return 1"), ("SCRIPT", "FLUSH"),
    ("FUNCTION", "LOAD", "#!lua name=x"), ("FUNCTION", "DELETE", "x"), ("FUNCTION", "FLUSH"),
    ("FUNCTION", "RESTORE", "x"), ("FUNCTION", "LIST"),
]  # fmt: skip


@pytest.fixture
def calling(scene: Scene) -> Scene:
    """A scene whose user calls functions."""
    scene.call_functions()
    return scene


@pytest.mark.parametrize("role", ON_TOPICS)
def test_no_other_lua_is_run_or_loaded(calling: Scene, role: acl.Role) -> None:
    calling.grant(role)
    with redis.Redis.from_url(calling.url.partition("?")[0]) as user:
        for words in LUA:
            with pytest.raises(redis.RedisError) as refused:
                user.execute_command(*words)
            assert code_of(refused.value) == "NOPERM", words


@pytest.mark.parametrize("role", ON_TOPICS)
def test_without_fcall_the_error_names_it(calling: Scene, role: acl.Role) -> None:
    calling.grant(role, without="fcall")

    with pytest.raises(rmq.AccessDenied, match=r"\+fcall"):
        calling.api.topic(calling.name).open(create=False)


@pytest.mark.parametrize("role", ON_TOPICS)
def test_a_client_that_calls_scripts_is_refused(calling: Scene, role: acl.Role) -> None:
    calling.grant(role)
    calling.url = calling.url.partition("?")[0]

    with pytest.raises(rmq.AccessDenied, match=r"\+evalsha"):
        calling.api.topic(calling.name).open(create=False)


def test_a_command_that_is_refused_inside_a_function_is_named(calling: Scene) -> None:
    calling.grant("producer", without="zadd")

    with pytest.raises(rmq.AccessDenied, match=r"\+zadd"):
        calling.topic().send(1)


def test_a_loader_reaches_no_key_and_no_function(scene: Scene) -> None:
    scene.grant("loader")
    scene.full.topic(scene.name).open()
    name = functions.function_name("topic")
    with redis.Redis.from_url(scene.url) as user:
        for words in (
            ("FCALL", name, "0"), ("GET", "x"), ("HGET", f"rmq:{{{scene.name}}}:topic", "slots"),
            ("EVAL", "return 1", "0"), ("FUNCTION", "FLUSH"), ("PUBLISH", "x", "y"),
        ):  # fmt: skip
            with pytest.raises(redis.exceptions.NoPermissionError):
                user.execute_command(*words)


def test_a_user_without_the_right_to_load_is_told_the_rule(calling: Scene) -> None:
    calling.grant("producer")

    with pytest.raises(rmq.AccessDenied, match=r"\+function\|l"):
        calling.api.admin.functions_load()


def test_a_worker_and_its_heartbeat_call_functions_alone(calling: Scene, caplog: Any) -> None:
    calling.grant("worker")
    topic = calling.full.topic(calling.name, lease=10, retry="immediate")
    seen: list[tuple[int, bool]] = []
    client = rmq.Client(calling.url, retry_for=1)
    mine = client.topic(calling.name)
    mine.every("soon", every=1)

    @mine.handler
    def hold(d: rmq.Delivery) -> None:
        if d.body == 1:
            calling.see_renewal()
            seen.append((d.attempt, d.lost))

    topic.send(1)
    with caplog.at_level(logging.WARNING, "rmq"), rmq.Worker(client, concurrency=2) as worker:
        assert type(worker._running.heartbeat).__name__ == "HeartbeatProcess"
        until = time.monotonic() + 2 * PATIENCE_S
        while not seen or calling.full.admin.stats(calling.name)["settled"] < 2:
            assert time.monotonic() < until
            time.sleep(0.02)

    assert seen == [(1, False)]
    assert [line for line in caplog.messages if "right" in line or "denied" in line] == []
    client.close()


def test_every_script_is_a_function() -> None:
    text = functions.library_text("")
    assert [text.count(f"{functions.function_name(name)}'") for name in scripts.names()] == [
        1 for _ in scripts.names()
    ]
