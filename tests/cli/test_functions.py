"""`rmq functions`: load, ls, delete, and what a client says without them."""

from __future__ import annotations

import json

import pytest

from rmq.kernel.transport.functions import library_name
from tests.conftest import NEWEST
from tests.servers import Server, engines


@pytest.fixture
def url():
    server = Server(engines()[NEWEST])
    yield server.url
    server.stop()


def test_functions_are_loaded_listed_and_deleted(run, url):
    env = {"RMQ_URL": f"{url}?calls=functions"}
    missing = run("send", "orders", "1", **env)
    assert missing.exit_code == 2
    assert "rmq functions load" in missing.stderr
    assert "no functions" in run("functions", "ls", **env).stderr

    assert run("functions", "load", **env).stdout == f"{library_name()} loaded\n"
    assert run("functions", "load", **env).stdout == f"{library_name()} is there already\n"
    assert run("send", "orders", "1", "--create", **env).exit_code == 0
    assert "1" in run("peek", "orders", **env).stdout
    (row,) = json.loads(run("functions", "ls", "--json", **env).stdout)
    assert [row["library"], row["current"], row["masters"]] == [library_name(), True, 1]
    assert library_name() in run("functions", "ls", **env).stdout

    asked = run("functions", "delete", library_name(), **env)
    assert asked.exit_code == 6
    assert "--yes" in asked.stderr
    gone = run("functions", "delete", library_name(), "--yes", "--json", **env)
    assert json.loads(gone.stdout) == {"library": library_name(), "deleted": True}
    assert run("functions", "delete", library_name(), "--yes", **env).exit_code == 3
    assert run("functions", "delete", "mine", "--yes", **env).exit_code == 2
    assert json.loads(run("functions", "load", "--json", **env).stdout)["loaded"] is True


def test_rules_without_lua_and_those_of_a_loader(run):
    rules = run("acl", "generate", "producer", "--functions").stdout.split()
    assert "+fcall" in rules
    assert not {"+evalsha", "+script|load", "+eval"} & set(rules)

    loader = run("acl", "generate", "loader").stdout.split()
    assert {"+function|load", "+function|list", "+function|delete"} <= set(loader)
    assert not [word for word in loader if word[0] in "~%&"]
    refused = run("acl", "generate", "producer", "--functions", "--server-version", "6.2")
    assert refused.exit_code == 2
    assert "7.0" in refused.stderr
