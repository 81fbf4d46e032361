"""Retry ladders, settings, codecs, receipts, units, errors: the words all else is written in."""

from __future__ import annotations

import ast
import contextlib
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import rmq
from rmq.core import codec, failure, keys, retry, settings, validation
from rmq.core.ids import MessageId
from rmq.core.message import Receipt
from rmq.core.score import (
    family,
    receipt_deadline_ms,
    receipt_retries_left,
    receipt_score,
    receipt_with_deadline,
)
from rmq.errors import DecodeError, InvalidReceipt, RMQError
from rmq.transport import redis_errors, url

ROOT = Path(__file__).parents[2]


# --- retry -------------------------------------------------------------------------------------


def test_exponential_doubles_up_to_its_cap() -> None:
    assert retry.Exponential(1, 10).ladder(6) == (1000, 2000, 4000, 8000, 10_000, 10_000)


def test_levels_repeat_the_last_and_default_to_those_of_rocketmq() -> None:
    assert retry.Levels((1, 5)).ladder(4) == (1000, 5000, 5000, 5000)
    ladder = retry.Levels().ladder(16)
    assert (ladder[0], ladder[-1], len(ladder)) == (10_000, 7_200_000, 16)


@pytest.mark.parametrize(
    "policy",
    [
        retry.Immediate(),
        retry.Exponential(0.05, 2, 0.5),
        retry.Exponential(),
        retry.Levels((1, 2.5)),
    ],
)
def test_a_policy_survives_its_text(policy: retry.Policy) -> None:
    for again in (retry.from_redis(policy.to_redis()), retry.parse_policy(retry.describe(policy))):
        assert again.ladder(16) == policy.ladder(16)
        assert again.jitter == policy.jitter


def test_a_policy_in_text_is_in_seconds_as_everywhere() -> None:
    assert retry.parse_policy("exponential:1:60:1") == rmq.Exponential(1, 60, 1)
    assert retry.parse_policy("levels:500ms,2m") == rmq.Levels((0.5, 120))
    with pytest.raises(rmq.InvalidValue, match=r"retry: 'exponential:1:x:1' .*'x' is not a dura"):
        retry.parse_policy("exponential:1:x:1")


@pytest.mark.parametrize(
    "make",
    [
        lambda: retry.Exponential(0),
        lambda: retry.Exponential(jitter=1.5),
        lambda: retry.Exponential(base=math.nan),
        lambda: retry.Levels(()),
        lambda: retry.Levels((1,) * 17),
        lambda: retry.Levels((0,)),
    ],
)
def test_a_policy_that_cannot_work_is_refused(make: object) -> None:
    with pytest.raises(rmq.InvalidValue, match=r"retry|jitter"):
        make()  # type: ignore[operator]


# --- settings ----------------------------------------------------------------------------------


def test_settings_survive_redis() -> None:
    asked = settings.check(
        {
            "slots": 8, "lease": timedelta(minutes=2), "retry": rmq.Levels((1, 2)),
            "max_length": 100, "overflow": "block", "durability": rmq.Replicated(2, 0.5),
            "expires": 60, "dedup_window": None,
        }
    )  # fmt: skip
    made = settings.Settings(**asked)
    assert settings.from_redis("t", made.to_redis()) == made
    settings.check_matches("t", asked, made)
    with pytest.raises(rmq.SettingsMismatch, match="8 for slots in Redis and 9"):
        settings.check_matches("t", {"slots": 9}, made)


def test_a_topic_of_another_format_is_refused() -> None:
    kept = settings.Settings().to_redis() | {"format": "99"}
    with pytest.raises(rmq.SettingsMismatch, match="format '99'"):
        settings.from_redis("t", kept)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("memory", None),
        ("replicated:2:500ms", rmq.Replicated(2, 0.5)),
        ("fsync:0:1", rmq.Fsync(0, 1)),
        ("fsync", rmq.Fsync()),
        ("replicated", rmq.Replicated()),
    ],
)
def test_a_durability_is_read_from_its_text(text: str, level: settings.Durability) -> None:
    found = settings.parse_durability(text)
    assert found == level
    assert settings.parse_durability(settings.describe_durability(found)) == found
    made = settings.Settings(durability=found)
    assert settings.from_redis("t", made.to_redis()) == made


def test_a_mismatch_is_told_as_a_person_writes_settings() -> None:
    asked = settings.check({"lease": 60, "retry": "immediate", "dead_retention": 5})
    with pytest.raises(rmq.SettingsMismatch) as caught:
        settings.check_matches("t", asked, settings.Settings())
    assert "30s for lease in Redis and 1m in settings" in str(caught.value)
    assert "exponential:1s:10m:1 for retry in Redis and immediate in" in str(caught.value)
    assert "off for dead_retention in Redis and 5s in settings" in str(caught.value)
    assert "rmq topic set t" in str(caught.value)


@pytest.mark.parametrize("name", settings.FIXED)
def test_what_cannot_be_changed_says_why(name: str) -> None:
    with pytest.raises(rmq.InvalidValue, match=f"^{name}: it is fixed .* because "):
        settings.check_changes({"lease": 5, name: 4})


# --- codecs ------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) |
    st.text(
        st.characters(exclude_categories=["Cs"])
    ),
    lambda inner: st.lists(inner) |
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner), max_leaves=20,
)  # fmt: skip


@given(JSON)
def test_json_bodies_come_back(body: object) -> None:
    assert codec.JSON.decode(codec.JSON.encode(body)) == body


@given(st.binary())
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for number in range(8):
        with contextlib.suppress(DecodeError):  # nothing else may come out
            codec.decode(number, data)
    with pytest.raises(DecodeError, match=f"body of {len(data)} bytes: codec number 7"):
        codec.decode(7, data)


@pytest.mark.parametrize(
    "data",
    [b"NaN", b"Infinity", b"[" * 100_000, b"9" * 5000, b"\xff", b'"\\ud800', b"1 2", b""],
    ids=lambda d: ascii(d[:8]),
)
def test_hostile_json_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        codec.JSON.decode(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xc7\x01\x05x",
        b"\xa2\xff\xff",
        b"\x01\x02",
        b"\x81\x90\x00",
        b"",
    ],
    ids=lambda d: d[:4].hex(),
)
def test_hostile_msgpack_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        codec.MSGPACK.decode(data)


# --- receipts and scores -----------------------------------------------------------------------


@given(st.integers(1_600_000_000, 4_000_000_000), st.integers(0, 16), st.integers(0, 10**12))
def test_a_receipt_is_exact_until_2096(deadline: int, left: int, delivery: int) -> None:
    score = receipt_score(deadline, left, delivery)
    assert receipt_deadline_ms(score) == deadline * 1000
    assert receipt_retries_left(score) == left
    assert score % 1 == delivery % 2048 / 2048
    assert float(repr(score)) == score
    assert receipt_with_deadline(score, deadline + 7) == receipt_score(deadline + 7, left, delivery)
    receipt = Receipt(MessageId(bytes(16)), score)
    assert Receipt.parse(str(receipt)) == receipt


@pytest.mark.parametrize("text", ["", ":", "0" * 26, "0" * 26 + ":x", "0" * 26 + ":1790000000099"])
def test_a_text_that_is_no_receipt_is_refused(text: str) -> None:
    with pytest.raises(InvalidReceipt):
        Receipt.parse(text)


def test_the_families_begin_where_the_contract_says() -> None:
    assert [family(s) for s in (0, 16.9, 17, 1_048_575.9, 1e12)] == [
        "retry", "retry", "priority", "priority", "timed",
    ]  # fmt: skip


# --- units -------------------------------------------------------------------------------------


@given(st.integers(1, 10**9))
def test_a_duration_in_whole_milliseconds_is_kept_exactly(ms: int) -> None:
    assert validation.duration_ms(ms / 1000, "x") == ms
    assert validation.duration_ms(timedelta(milliseconds=ms), "x") == ms


def test_a_moment_is_rounded_up_so_that_nothing_is_early() -> None:
    at = datetime(2029, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert (
        validation.check_epoch_ms(at, "at")
        == int(datetime(2029, 1, 1, tzinfo=UTC).timestamp() * 1000) + 1
    )


# --- failures, keys, errors --------------------------------------------------------------------


def test_an_error_is_told_with_type_and_traceback_and_cut_to_size() -> None:
    try:
        raise KeyError("x" * 10_000)
    except KeyError as error:
        entry = b"\x00\x11f" + failure.encode(error)
    told = failure.decode(entry)
    assert told is not None
    assert (told.reason, told.deliveries) == ("failed", 17)
    assert told.error.startswith("KeyError: 'xxx")
    assert len(told.error) == failure.ERROR_CHARS
    assert len(told.traceback) <= failure.TRACEBACK_CHARS
    assert failure.decode(b"") is None
    assert failure.decode(b"\x00\x01f\xc1") is not None


def test_every_key_of_a_slot_has_its_tag_and_its_type() -> None:
    slot = keys.SlotKeys("rmq", "orders", 3)
    for name in keys.SlotKeys.__slots__:
        if name not in ("created", "index", "topic") and not name.endswith("_stem"):
            key = getattr(slot, name)
            assert key == f"rmq:{{orders_3}}:{name}".encode()
            assert keys.type_of(key) == keys.TYPES[name]
    assert keys.type_of(slot.replay_stem + b"abc-1") == "string"
    assert slot.claim_stem == b"rmq:{orders_3}:claim:"
    assert keys.type_of(slot.claim_stem + b"mail:{a}:b}:\xff") == "string"
    assert slot.stage_stem == b"rmq:{orders_3}:stage:"
    assert keys.type_of(slot.stage_stem + b"a:7:b") == "list"
    assert keys.sink_key("rmq", "orders", "a") == b"rmq:{orders}:sink:a"
    assert keys.type_of(keys.sink_key("rmq", "orders", "a")) == "hash"
    assert keys.type_of(keys.topic_key("rmq", "orders")) == "hash"
    assert keys.type_of(keys.topics_key("rmq")) == "set"
    assert keys.type_of(b"somebody:else") is None


def test_a_topic_that_ends_like_a_slot_shares_no_key() -> None:
    assert keys.SlotKeys("rmq", "a_1", 2).store != keys.SlotKeys("rmq", "a", 12).store
    assert keys.topic_key("rmq", "a_1") != keys.SlotKeys("rmq", "a", 1).slot


def test_every_error_is_an_rmq_error_and_says_whose_it_is() -> None:
    for name in rmq.__all__:
        found = getattr(rmq, name)
        if (
            isinstance(found, type)
            and issubclass(found, Exception)
            and name not in ("Snooze", "Reject", "Retry")
        ):
            assert issubclass(found, RMQError)
    assert issubclass(rmq.InvalidValue, ValueError)
    assert issubclass(rmq.InvalidType, TypeError)
    assert issubclass(rmq.PayloadTooLarge, ValueError)


class ReadOnlyError(Exception):
    pass


class OutOfMemoryError(Exception):
    pass


class AuthenticationError(ConnectionError):
    pass


class NotConnected(ConnectionError):
    pass


def in_script(text: str) -> Exception:
    """An error inside a script, as Redis 6.2 tells it."""
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
def test_an_error_of_redis_is_read_for_what_it_means(
    error: Exception, code: str, kind: redis_errors.Kind
) -> None:
    assert (redis_errors.code_of(error), redis_errors.kind_of(error)) == (code, kind)


@pytest.mark.parametrize(
    "topic",
    ["uploading", "readonly-orders", "LOADING", "x.MISCONF", "NOSCRIPT", "OOM", "WRONGTYPE"],
)
def test_no_word_in_a_key_is_read_as_an_error_of_redis(topic: str) -> None:
    for error in (
        Exception(f"RMQGONE rmq:{{{topic}_0}}:slot" + HERE),
        in_script(f"RMQGONE rmq:{{{topic}_0}}:slot"),
    ):
        assert redis_errors.kind_of(error) is redis_errors.Kind.REFUSED
        told = redis_errors.translate(error, "send", [f"rmq:{{{topic}_0}}:slot"])
        assert isinstance(told, rmq.TopicVanished)
        assert f"rmq:{{{topic}_0}}:slot has vanished" in str(told)
        assert "topic.open()" in str(told)


def test_a_missing_password_is_told_apart_from_a_wrong_one() -> None:
    missing = AuthenticationError("HELLO must be called with the client already authenticated")
    assert "asks for a password" in str(redis_errors.translate(missing, "ping", []))
    assert "HELLO" not in str(redis_errors.translate(missing, "ping", []))
    wrong = AuthenticationError("invalid username-password pair or user is disabled.")
    assert "refused access" in str(redis_errors.translate(wrong, "ping", []))


def test_a_claim_that_is_none_is_named_in_text_that_fits_on_a_line() -> None:
    stem = keys.SlotKeys("rmq", "orders", 3).claim_stem
    named = [keys.printable(stem + name) for name in (b"a", "ü 1\r\n-ERR".encode() + b"\xff", b"c")]

    error = redis_errors.translate(Exception("RMQCLAIM 2 script: 1f"), "claim", named)

    assert isinstance(error, rmq.ScriptFailed)
    assert "rmq:{orders_3}:claim:ü 1\\r\\n-ERR\\xff holds no claim that RMQ wrote" in str(error)


def test_a_password_is_redacted_wherever_it_stands() -> None:
    for text in (
        "redis://u:s3@cret@h/0",
        "x rediss://:s3cret@h y",
        "redis://h?password=s3cret&a=1",
    ):
        assert "cret" not in url.redact(text)


@pytest.mark.parametrize("cls", [rmq.Client, rmq.AsyncClient])
def test_an_option_of_the_url_that_cannot_work_is_named(cls: type) -> None:
    for option, said in (
        ("tiemout=3", "there is no option 'tiemout'"),
        ("socket_timeout=soon", "socket_timeout"),
        ("max_connections=many", "max_connections: 'many'"),
        ("retry=3", "option retry is RMQ's to set"),
    ):
        with pytest.raises(rmq.ConfigurationError, match=said):
            cls(f"redis://127.0.0.1:1/0?{option}")


def test_an_address_that_nobody_named_is_told_as_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RMQ_URL", raising=False)
    monkeypatch.setattr("rmq.client.client.DEFAULT_URL", "redis://127.0.0.1:1/0")
    with pytest.raises(rmq.Unavailable, match="no url was given and RMQ_URL is not set"):
        rmq.Client(retry_for=0).ping()
    with pytest.raises(rmq.Unavailable) as told:
        rmq.Client("redis://127.0.0.1:1/0", retry_for=0).ping()
    assert "RMQ_URL" not in str(told.value)


# --- the package -------------------------------------------------------------------------------


def test_no_module_pickles_or_evaluates() -> None:
    banned = {"pickle", "marshal", "shelve", "yaml", "dill", "cloudpickle"}
    looked = 0
    for path in [*ROOT.glob("rmq/**/*.py"), *ROOT.glob("spark_connector/*.py")]:
        looked += 1
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.split(".")[0] for alias in node.names}
                assert not banned & (names | {(getattr(node, "module", "") or "").split(".")[0]}), (
                    path
                )
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile", "__import__"), path
    assert looked > 30


def test_no_file_has_grown_a_second_job() -> None:
    files = [*ROOT.glob("rmq/**/*.py"), *ROOT.glob("lua/**/*.lua"), *ROOT.glob("bench/*.py")]
    assert len(files) > 60
    assert [str(p) for p in files if len(p.read_text().splitlines()) > 500] == []
