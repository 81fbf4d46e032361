"""The rules of roles follow the scripts and the commands in the source."""

from __future__ import annotations

import ast
import pathlib
from fnmatch import fnmatchcase
from typing import Any

import pytest

import rmq
from rmq.kernel.transport import acl
from rmq.kernel.transport.lua import script_loader

PACKAGE = pathlib.Path(rmq.__file__).parent


def test_every_script_is_of_a_role() -> None:
    assert set().union(*acl.SCRIPTS.values()) == set(script_loader.names())


def test_every_plain_command_of_a_flow_is_of_a_role() -> None:
    sent = set()
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "doctor":
            continue  # it goes on where a command is denied
        if "RawCommand" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "RawCommand":
                verb = node.args[1]
                assert isinstance(verb, ast.Constant), path
                sent.add(str(verb.value).lower())

    assert len(sent) > 10
    assert sent <= set().union(*acl.COMMANDS.values())


def test_commands_of_a_script_are_read_from_its_text() -> None:
    text = "local a = redis.call('HGET', x)\nredis.pcall( 'PUBSUB', 'NUMSUB', c)"
    assert script_loader.commands_of_text(text) == {"hget", "pubsub|numsub"}
    with pytest.raises(ValueError, match="computed"):
        script_loader.commands_of_text("redis.call(verb, key)")


def test_a_command_that_a_script_gains_is_in_the_rules_of_its_roles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = script_loader.Script(
        "send", script_loader.load("send").text + "\nredis.call('GETDEL', 'x')"
    )
    load = script_loader.load
    monkeypatch.setattr(
        script_loader, "load", lambda name: changed if name == "send" else load(name)
    )
    caches: list[Any] = [script_loader.commands_in, acl.commands_of]
    try:
        for cache in caches:
            cache.cache_clear()
        assert "getdel" in rmq.acl_rules("producer").commands
        assert "getdel" not in rmq.acl_rules("viewer").commands
    finally:
        for cache in caches:
            cache.cache_clear()


def test_rules_of_one_topic_name_its_slots_by_their_digits() -> None:
    rules = rmq.acl_rules("producer", topics=["orders"])

    assert rules.keys[:3] == (
        "rmq:{orders}:*", "rmq:{orders_[0-9]}:*", "rmq:{orders_[1-9][0-9]}:*",
    )  # fmt: skip
    patterns = [key.removeprefix("rmq:{").removesuffix("}:*") for key in rules.keys[1:6]]
    for number in (*map(str, range(1100)), "2024", "00", "01", "007"):
        is_slot = any(fnmatchcase(f"orders_{number}", pattern) for pattern in patterns)
        assert is_slot == (number in map(str, range(1024))), number
    assert rules.channels == (
        "rmq:{orders}:wake*", "rmq:{orders_0}:wake:s:*", "rmq:{ping}:wake",
    )  # fmt: skip
    assert len(rmq.acl_rules("producer", topics=["orders"], server_version="6.2").channels) == 2


def test_rules_of_all_topics_are_one_pattern() -> None:
    rules = rmq.acl_rules("consumer", prefix="shop")
    assert rules.keys == ("shop:{*}:*",)
    assert rules.selectors == ("~shop:topics +sadd +smismember",)
    assert rules.channels == ("shop:{*}:wake*",)


def test_keys_that_are_only_read_are_written_ones_on_redis_6() -> None:
    new, old = (rmq.acl_rules("viewer", server_version=each) for each in ("7.0", "6.2"))  # type: ignore[arg-type]

    assert "%R~rmq:workers" in new.words()
    assert old.read_keys == ()
    assert "~rmq:workers" in old.words()


@pytest.mark.parametrize(
    ("version", "unknown"),
    [
        ("6.2", {"waitaof", "spublish", "pubsub|shardnumsub"}),
        ("7.0", {"waitaof", "client|setinfo"}),
        ("7.2", set()),
    ],
)
def test_commands_that_a_server_does_not_know_are_left_out(
    version: acl.ServerVersion, unknown: set[str]
) -> None:
    every = set(rmq.acl_rules("producer").commands)
    named = set(rmq.acl_rules("producer", server_version=version).commands)
    assert every - named == unknown


def test_no_role_may_evaluate_text_in_one_go_nor_do_what_ends_a_server() -> None:
    for role in acl.ROLES:
        commands = set(rmq.acl_rules(role).commands)
        assert not commands & {
            "eval", "flushall", "flushdb", "keys", "config", "config|set", "debug", "shutdown",
            "script|flush", "acl", "monitor", "rename", "restore", "migrate", "client|kill",
        }  # fmt: skip


def test_a_viewer_has_no_command_that_writes() -> None:
    sends = {"evalsha", "script|load", "ping", "select", "client|setinfo", "info", "scan", "role"}
    others = sends | acl.CLUSTER | {"smembers"}
    assert set(rmq.acl_rules("viewer").commands) - others <= script_loader.READS


@pytest.mark.parametrize("version", acl.SERVER_VERSIONS)
@pytest.mark.parametrize("role", acl.ROLES)
def test_every_role_may_use_a_cluster(role: acl.Role, version: acl.ServerVersion) -> None:
    assert set(rmq.acl_rules(role, server_version=version).commands) >= acl.CLUSTER


def test_several_roles_have_what_each_has() -> None:
    both = rmq.acl_rules(["viewer", "worker"])
    for role in ("viewer", "worker"):
        assert set(rmq.acl_rules(role).commands) <= set(both.commands)  # type: ignore[arg-type]
    assert both.read_keys == (
        "rmq:topics", "rmq:scheduled", "rmq:workers", "rmq:worker:*", "rmq:leader",
        "rmq:problems", "rmq:jobs", "rmq:batches", "rmq:audit_trail",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"roles": "root"}, "role: 'root'; use one of producer"),
        ({"roles": ()}, "roles: none"),
        ({"roles": "viewer", "topics": ["a b"]}, "topic: 'a b'"),
        ({"roles": "viewer", "topics": ["a\n+@all"]}, "topic"),
        ({"roles": "viewer", "topics": [7]}, "topic: int"),
        ({"roles": "viewer", "prefix": "a:b"}, "prefix"),
        ({"roles": "viewer", "server_version": "7"}, "server_version: '7'"),
    ],
)
def test_what_cannot_be_a_rule_is_refused(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(rmq.ConfigurationError, match=match):
        rmq.acl_rules(**wrong)
