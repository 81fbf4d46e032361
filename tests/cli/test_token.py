"""`rmq token`: what it prints, and what it leaves in Redis."""

from __future__ import annotations

import json
import re
import secrets

import pytest


@pytest.fixture
def name(run):
    made = f"t{secrets.token_hex(4)}"
    yield made
    run("token", "revoke", made)


def test_a_token_is_printed_once_and_listed_without_its_text(run, name):
    made = run("token", "create", name, "--role", "viewer", "--bodies", "--expires", "90d")

    assert re.fullmatch(r"rmq_[0-9a-f]{8}_[0-9a-f]{64}\n", made.stdout)
    (found,) = [
        each for each in json.loads(run("token", "ls", "--json").stdout) if each["name"] == name
    ]
    assert (found["role"], found["bodies"], found["used"]) == ("viewer", True, None)
    assert made.stdout.strip() not in run("token", "ls").stdout
    assert made.stdout.rpartition("_")[2].strip() not in run("token", "ls", "--json").stdout


def test_a_name_that_is_taken_and_one_that_is_not_there_are_told(run, name):
    first = json.loads(run("token", "create", name, "--role", "admin", "--json").stdout)
    again = run("token", "create", name, "--role", "admin")

    assert first["token"].startswith("rmq_" + first["id"])
    assert (again.exit_code, again.stdout) == (2, "")
    assert "there is a token" in again.stderr
    assert run("token", "revoke", name).stdout == f"{name}: revoked\n"
    gone = run("token", "revoke", name)
    assert (gone.exit_code, gone.stdout) == (3, "")
    assert "see rmq token ls" in gone.stderr


def test_a_role_must_be_given(run, name):
    assert run("token", "create", name).exit_code == 2
    assert run("token", "create", name, "--role", "root").exit_code == 2
