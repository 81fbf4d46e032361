"""A refusal names the right that is missing, whatever words the server has for it."""

from __future__ import annotations

import pytest
import redis

import rmq
from rmq.kernel.transport.errors import Kind, kind_of, translate
from rmq.kernel.transport.lua import script_loader

KEYS = ["rmq:{orders_0}:slot", "rmq:{orders_0}:claim:default:a b"]
LINE = next(
    number
    for number, line in enumerate(script_loader.load("extend").text.splitlines(), 1)
    if "'ZMSCORE'" in line
)
OLD = "The user executing the script can't"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("this user has no permissions to run the 'hget' command or its subcommand",
         "<user> +hget"),
        ("this user has no permissions to run the 'script' command or its subcommand",
         "<user> +script|load"),
        ("User app has no permissions to run the 'script|load' command", "app +script|load"),
        ("this user has no permissions to run the 'cluster' command or its subcommand",
         "<user> +cluster|slots"),
        ("ACL failure in script: User app has no permissions to run the 'pubsub|numsub' command "
         "script: on @user_script:3.", "app +pubsub|numsub"),
        (f"Error running script (call to f_{'a' * 40}): @user_script:{LINE}: @user_script: {LINE}: "
         f"{OLD} run this command or subcommand", "<user> +zmscore"),
        (f"{OLD} run this command or subcommand script: {'a' * 40}, on @user_script:{LINE}.",
         "<user> +zmscore"),
        ("Transaction discarded because of: NOPERM User app has no permissions to run the 'exec' "
         "command", "app +exec"),
        ("NOPERM this user has no permissions to access one of the keys used as arguments",
         "<user> '~rmq:{orders_0}:*'"),
        ("NOPERM No permissions to access a key", "<user> '~rmq:{orders_0}:*'"),
        (f"{OLD} access at least one of the keys mentioned in the command arguments script: "
         f"{'a' * 40}, on @user_script:1.", "<user> '~rmq:{orders_0}:*'"),
        ("NOPERM No permissions to access a channel", "<user> '&rmq:*'"),
    ],
)  # fmt: skip
def test_the_rule_that_grants_it_is_named(text: str, rule: str) -> None:
    kind = redis.ResponseError
    if not text.startswith(("NOPERM", "Error", "Trans", "ACL", OLD)):
        kind = redis.exceptions.NoPermissionError  # redis-py takes the code off the text
    error = kind(text)

    told = translate(error, "extend", KEYS)

    assert kind_of(error) is Kind.REFUSED
    assert isinstance(told, rmq.AccessDenied)
    unnamed = rule.startswith("<user>")
    assert str(told).startswith(f"extend: {'this Redis user' if unnamed else 'Redis user app'} has")
    assert f"ACL SETUSER {rule} (rmq acl generate" in str(told)


def test_a_refusal_in_words_that_are_not_known_is_shown_as_it_is() -> None:
    told = translate(redis.exceptions.NoPermissionError("no, you may not"), "peek", KEYS)

    assert isinstance(told, rmq.AccessDenied)
    assert "no, you may not" in str(told)
    assert "rmq acl generate" in str(told)


def test_a_wrong_password_is_no_question_of_rights() -> None:
    told = translate(redis.ResponseError("WRONGPASS invalid username-password pair"), "ping", [])
    assert not isinstance(told, rmq.AccessDenied)
