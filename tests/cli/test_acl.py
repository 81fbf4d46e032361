"""`rmq acl generate` prints rules that a server takes, and no password."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmq
from tests.servers import Server


@pytest.fixture
def user(server: Server, name: str) -> Iterator[str]:
    """The name of a user, who is deleted afterwards."""
    made = f"u-{name}"
    yield made
    with server.raw() as raw:
        raw.execute_command("ACL", "DELUSER", made)


def grant(run, server, user, *words):
    """Give a user the rules that the command prints."""
    shown = run("acl", "generate", *words, "--user", user)
    assert shown.exit_code == 0
    with server.raw() as raw:
        raw.execute_command(*shown.stdout.splitlines()[0].split())
        raw.execute_command("ACL", "SETUSER", user, ">pw")
    return {"RMQ_URL": server.url.replace("redis://", f"redis://{user}:pw@")}


def test_the_roles_work_on_the_command_line(run, server, user, topic):
    env = grant(run, server, user, "producer", "--topic", topic.name)
    sent = run("send", topic.name, '"hello"', **env)
    assert sent.exit_code == 0
    assert "wakes" not in run("ping", **env).stdout
    assert json.loads(run("ping", "--json", **env).stdout)["maxmemory_policy"] is None
    assert run("send", "another", '"hello"', **env).exit_code == 2

    env = grant(run, server, user, "viewer", "--topic", topic.name)
    assert "hello" in run("peek", topic.name, **env).stdout
    for words in (["stats"], ["topic", "show"], ["dlq", "ls"], ["schedule", "ls"]):
        assert run(*words, topic.name, **env).exit_code == 0, words
    assert run("worker", "ls", **env).exit_code == 0
    refused = run("purge", topic.name, "--yes", **env)
    assert refused.exit_code == 2
    assert f"ACL SETUSER {user} +" in refused.stderr

    env = grant(run, server, user, "operator", "--topic", topic.name)
    for words in (["topic", "pause"], ["topic", "resume"], ["audit"], ["query", "ls"]):
        assert run(*words, topic.name, **env).exit_code == 0, words
    assert run("purge", topic.name, "--yes", **env).exit_code == 0
    assert run("topic", "delete", topic.name, "--yes", **env).exit_code == 0


def test_what_it_prints_may_be_piped_to_redis_cli(run, server, user, topic):
    if shutil.which("redis-cli") is None:
        pytest.skip("no redis-cli")
    lines = run("acl", "generate", "consumer", "--topic", topic.name, "--user", user).stdout

    done = subprocess.run(
        ["redis-cli", "-p", str(server.port)], input=lines, capture_output=True, text=True
    )

    assert done.stdout.split() == ["OK", "OK"]


@pytest.mark.parametrize("form", ["command", "file"])
def test_what_it_prints_is_taken_by_each_server_from_7_0_on(run, form):
    older = rmq.acl_rules("producer", server_version="7.0")
    newer = set(rmq.acl_rules("producer").commands) - set(older.commands)

    lines = run("acl", "generate", "producer", "--format", form).stdout.splitlines()
    named = run("acl", "generate", "producer", "--format", form, "--server-version", "7.2").stdout

    assert not [word for word in lines[0].split() if word[1:] in newer]
    assert {f"+{each}" for each in newer} <= set(named.split())
    assert newer == {"client|setinfo", "waitaof"}
    if form == "command":
        assert set(lines[1].split()) == {
            "ACL",
            "SETUSER",
            "rmq-producer",
            *(f"+{n}" for n in newer),
        }


def test_an_acl_file_is_taken(run, server, tmp_path: Path):
    line = run("acl", "generate", "worker", "--format", "file").stdout
    line = line.replace(" on ", f" on #{'ab' * 32} ", 1)
    (tmp_path / "users.acl").write_text(f"user default on nopass ~* &* +@all\n{line}")
    own = Server(server.binary, "--aclfile", str(tmp_path / "users.acl"))
    try:
        with own.raw() as raw:
            names = raw.execute_command("ACL", "USERS")
    finally:
        own.stop()

    assert b"rmq-worker" in names


def test_rules_as_json(run):
    shown = run("acl", "generate", "viewer", "producer", "--topic", "a", "--topic", "b", "--json")
    printed = json.loads(shown.stdout)

    rules = rmq.acl_rules(["viewer", "producer"], topics=["a", "b"], server_version="7.0")
    assert printed["user"] == "rmq-viewer-producer"
    assert printed["rules"] == rules.words()
    assert printed["read_keys"] == list(rules.read_keys)
    assert shown.stderr == ""


def test_notes_say_how_to_give_a_password_and_what_redis_6_lacks(run):
    new = run("acl", "generate", "viewer")
    old = run("acl", "generate", "viewer", "--server-version", "6.2")
    file = run("acl", "generate", "viewer", "--format", "file")

    assert new.stdout.count("\n") == 2
    assert "7.0 refuses the second line" in new.stderr
    assert "--server-version 7.2 grants them" in file.stderr
    assert "redis-cli" in new.stderr
    assert "selectors" not in new.stderr
    assert "no selectors" in old.stderr
    assert "sha256sum" in file.stderr
    assert ">" not in new.stdout


@pytest.mark.parametrize(
    "words",
    [["nobody"], [], ["viewer", "--user", "a b"], ["viewer", "--user", "a\n>pw"],
     ["viewer", "--topic", "a b"], ["viewer", "--server-version", "5"]],
)  # fmt: skip
def test_what_is_no_rule_is_wrong_usage(run, words):
    assert run("acl", "generate", *words).exit_code == 2
