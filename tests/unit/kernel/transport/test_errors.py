import pytest

import rmq
from rmq.kernel.core import keys
from rmq.kernel.transport import errors


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
        (Exception("LOADING Redis is loading the dataset"), "LOADING", errors.Kind.AGAIN),
        (ReadOnlyError("You can't write against a read."), "READONLY", errors.Kind.AGAIN),
        (ReadOnlyError("You can't write." + HERE), "READONLY", errors.Kind.AGAIN),
        (in_script("@user_script: 7: -READONLY You can't."), "READONLY", errors.Kind.AGAIN),
        (Exception("MISCONF Redis is configured to save"), "MISCONF", errors.Kind.AGAIN),
        (Exception("NOREPLICAS Not enough." + HERE), "NOREPLICAS", errors.Kind.AGAIN),
        (Exception("NOSCRIPT No matching script."), "NOSCRIPT", errors.Kind.RELOAD),
        (NotConnected("Error 111 connecting to h:1."), "", errors.Kind.AGAIN),
        (ConnectionError("max number of clients reached"), "", errors.Kind.AGAIN),
        (ConnectionError("Connection closed by server."), "", errors.Kind.UNKNOWN),
        (TimeoutError("Timeout reading from socket"), "", errors.Kind.UNKNOWN),
        (OutOfMemoryError("command not allowed when"), "OOM", errors.Kind.REFUSED),
        (in_script("@user_script: 7: -OOM command not"), "OOM", errors.Kind.REFUSED),
        (Exception("NOPERM this user has no permissions"), "NOPERM", errors.Kind.REFUSED),
        (
            in_script("@user_script: 7: The user executing the script can't run this command"),
            "NOPERM",
            errors.Kind.REFUSED,
        ),
        (AuthenticationError("HELLO must be called with"), "NOAUTH", errors.Kind.REFUSED),
        (Exception("WRONGTYPE Operation against" + HERE), "WRONGTYPE", errors.Kind.REFUSED),
        (in_script("WRONGTYPE Operation against a key"), "WRONGTYPE", errors.Kind.REFUSED),
        (Exception("unknown command 'WAITAOF'"), "", errors.Kind.REFUSED),
    ],
)
def test_an_error_of_redis_has_a_code_and_a_kind(
    error: Exception, code: str, kind: errors.Kind
) -> None:
    assert (errors.code_of(error), errors.kind_of(error)) == (code, kind)


@pytest.mark.parametrize(
    "topic",
    ["uploading", "readonly-orders", "LOADING", "x.MISCONF", "NOSCRIPT", "OOM", "WRONGTYPE"],
)
def test_a_word_in_a_key_is_not_read_as_a_code(topic: str) -> None:
    for error in (
        Exception(f"RMQGONE rmq:{{{topic}_0}}:slot" + HERE),
        in_script(f"RMQGONE rmq:{{{topic}_0}}:slot"),
    ):
        assert errors.kind_of(error) is errors.Kind.REFUSED
        translated = errors.translate(error, "send", [f"rmq:{{{topic}_0}}:slot"])
        assert isinstance(translated, rmq.TopicVanished)
        assert f"rmq:{{{topic}_0}}:slot has vanished" in str(translated)
        assert "topic.open()" in str(translated)


def test_a_missing_password_and_a_wrong_one_have_different_errors() -> None:
    missing = AuthenticationError("HELLO must be called with the client already authenticated")
    assert "asks for a password" in str(errors.translate(missing, "ping", []))
    assert "HELLO" not in str(errors.translate(missing, "ping", []))
    wrong = AuthenticationError("invalid username-password pair or user is disabled.")
    assert "refused access" in str(errors.translate(wrong, "ping", []))


def test_a_key_that_holds_no_claim_is_named_in_one_printable_line() -> None:
    stem = keys.SlotKeys("rmq", "orders", 3).claim_stem
    named = [keys.printable(stem + name) for name in (b"a", "ü 1\r\n-ERR".encode() + b"\xff", b"c")]

    error = errors.translate(Exception("RMQCLAIM 2 script: 1f"), "claim", named)

    assert isinstance(error, rmq.ScriptFailed)
    assert "rmq:{orders_3}:claim:ü 1\\r\\n-ERR\\xff holds no claim that RMQ wrote" in str(error)
