import pytest

import rmq
from rmq.core import keys
from rmq.transport import redis_errors


class ReadOnlyError(Exception):
    pass


class OutOfMemoryError(Exception):
    pass


class AuthenticationError(ConnectionError):
    pass


class NotConnected(ConnectionError):
    pass


def in_script(text: str) -> Exception:
    """An error inside a script, with the text of Redis 6.2."""
    where = f"Error running script (call to f_{'1f' * 20}): @user_script:7: "
    return Exception(where + text)


HERE = f" script: {'1f' * 20}, on @user_script:7."  # what Redis 7 adds


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (Exception("LOADING Redis is loading the dataset"), "LOADING", redis_errors.Kind.AGAIN),
        (ReadOnlyError("You can't write against a read."), "READONLY", redis_errors.Kind.AGAIN),
        (ReadOnlyError("You can't write." + HERE), "READONLY", redis_errors.Kind.AGAIN),
        (in_script("@user_script: 7: -READONLY You can't."), "READONLY", redis_errors.Kind.AGAIN),
        (Exception("MISCONF Redis is configured to save"), "MISCONF", redis_errors.Kind.AGAIN),
        (Exception("NOREPLICAS Not enough." + HERE), "NOREPLICAS", redis_errors.Kind.AGAIN),
        (Exception("NOSCRIPT No matching script."), "NOSCRIPT", redis_errors.Kind.RELOAD),
        (NotConnected("Error 111 connecting to h:1."), "", redis_errors.Kind.AGAIN),
        (ConnectionError("max number of clients reached"), "", redis_errors.Kind.AGAIN),
        (ConnectionError("Connection closed by server."), "", redis_errors.Kind.UNKNOWN),
        (TimeoutError("Timeout reading from socket"), "", redis_errors.Kind.UNKNOWN),
        (OutOfMemoryError("command not allowed when"), "OOM", redis_errors.Kind.REFUSED),
        (in_script("@user_script: 7: -OOM command not"), "OOM", redis_errors.Kind.REFUSED),
        (Exception("NOPERM this user has no permissions"), "NOPERM", redis_errors.Kind.REFUSED),
        (
            in_script("@user_script: 7: The user executing the script can't run this command"),
            "NOPERM",
            redis_errors.Kind.REFUSED,
        ),
        (AuthenticationError("HELLO must be called with"), "NOAUTH", redis_errors.Kind.REFUSED),
        (Exception("WRONGTYPE Operation against" + HERE), "WRONGTYPE", redis_errors.Kind.REFUSED),
        (in_script("WRONGTYPE Operation against a key"), "WRONGTYPE", redis_errors.Kind.REFUSED),
        (Exception("unknown command 'WAITAOF'"), "", redis_errors.Kind.REFUSED),
    ],
)
def test_an_error_of_redis_has_a_code_and_a_kind(
    error: Exception, code: str, kind: redis_errors.Kind
) -> None:
    assert (redis_errors.code_of(error), redis_errors.kind_of(error)) == (code, kind)


@pytest.mark.parametrize(
    "topic",
    ["uploading", "readonly-orders", "LOADING", "x.MISCONF", "NOSCRIPT", "OOM", "WRONGTYPE"],
)
def test_a_word_in_a_key_is_not_read_as_a_code(topic: str) -> None:
    for error in (
        Exception(f"RMQGONE rmq:{{{topic}_0}}:slot" + HERE),
        in_script(f"RMQGONE rmq:{{{topic}_0}}:slot"),
    ):
        assert redis_errors.kind_of(error) is redis_errors.Kind.REFUSED
        translated = redis_errors.translate(error, "send", [f"rmq:{{{topic}_0}}:slot"])
        assert isinstance(translated, rmq.TopicVanished)
        assert f"rmq:{{{topic}_0}}:slot has vanished" in str(translated)
        assert "topic.open()" in str(translated)


def test_a_missing_password_and_a_wrong_one_have_different_errors() -> None:
    missing = AuthenticationError("HELLO must be called with the client already authenticated")
    assert "asks for a password" in str(redis_errors.translate(missing, "ping", []))
    assert "HELLO" not in str(redis_errors.translate(missing, "ping", []))
    wrong = AuthenticationError("invalid username-password pair or user is disabled.")
    assert "refused access" in str(redis_errors.translate(wrong, "ping", []))


def test_a_key_that_holds_no_claim_is_named_in_one_printable_line() -> None:
    stem = keys.SlotKeys("rmq", "orders", 3).claim_stem
    named = [keys.printable(stem + name) for name in (b"a", "ü 1\r\n-ERR".encode() + b"\xff", b"c")]

    error = redis_errors.translate(Exception("RMQCLAIM 2 script: 1f"), "claim", named)

    assert isinstance(error, rmq.ScriptFailed)
    assert "rmq:{orders_3}:claim:ü 1\\r\\n-ERR\\xff holds no claim that RMQ wrote" in str(error)
