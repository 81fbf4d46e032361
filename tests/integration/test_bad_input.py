"""Bad input: a typed error that names the field and the fix, and nothing stored."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rmq
from rmq.kernel.topic import clock as command_clock
from tests.conftest import Clock
from tests.integration.driven import both_clients, connect
from tests.servers import Server

NAMES = [
    "", "a b", "a{b", "a}b", "a:b", "a/b", "a\n", "\x00", "\x1b[31m", "café",
    "a\u200b", "x" * 129, "*", "a%b",
]  # fmt: skip


@pytest.mark.parametrize("bad", NAMES, ids=ascii)
def test_a_topic_name_outside_the_grammar_is_refused(api: Any, bad: str) -> None:
    with pytest.raises(rmq.InvalidValue, match=r"topic: .*use 1 to 128 of A-Z"):
        api.topic(bad)


@pytest.mark.parametrize("bad", [None, 7, b"orders", ["orders"]])
def test_a_topic_name_of_another_type_is_refused(api: Any, bad: object) -> None:
    with pytest.raises(rmq.InvalidType, match=r"topic: .*give a str"):
        api.topic(bad)


def test_a_prefix_has_the_grammar_of_a_name(kind: str, server: Server) -> None:
    with pytest.raises(rmq.InvalidValue, match="prefix"):
        connect(kind, server.url, prefix="a{b}")


SETTINGS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"slots": 0}, rmq.InvalidValue, "slots: 0; give 1 to 1024"),
    ({"slots": -1}, rmq.InvalidValue, "slots"),
    ({"slots": 1025}, rmq.InvalidValue, "slots"),
    ({"slots": 2.0}, rmq.InvalidType, "slots: 2.0 is not a whole number"),
    ({"slots": True}, rmq.InvalidType, "slots"),
    ({"slots": "8"}, rmq.InvalidType, "slots: '8' is not a whole number; write 8"),
    ({"default_priority": 16}, rmq.InvalidValue, "default_priority"),
    ({"timed_priority": 16}, rmq.InvalidValue, "timed_priority: 16; give 17 to"),
    ({"timed_priority": "last"}, rmq.InvalidValue, "timed_priority: 'last'; give first"),
    ({"timed_priority": None}, rmq.InvalidType, "timed_priority"),
    ({"lease": 0.5}, rmq.InvalidValue, "lease: 0.5; give at least 1 s"),
    ({"lease": 43_201}, rmq.InvalidValue, "lease"),
    ({"lease": math.nan}, rmq.InvalidValue, "finite"),
    ({"lease": "30"}, rmq.InvalidType, "seconds or a timedelta"),
    ({"max_retries": 17}, rmq.InvalidValue, "max_retries"),
    ({"max_retries": -1}, rmq.InvalidValue, "max_retries"),
    (
        {"retry": "sometimes"},
        rmq.InvalidValue,
        "retry: 'sometimes' is not a retry policy; give immediate",
    ),
    ({"retry": 5}, rmq.InvalidType, "retry"),
    ({"dedup_window": -1}, rmq.InvalidValue, "dedup_window"),
    ({"max_length": -1}, rmq.InvalidValue, "max_length"),
    ({"overflow": "explode"}, rmq.InvalidValue, "reject, block, drop_lowest"),
    ({"max_body": 0}, rmq.InvalidValue, "max_body"),
    ({"max_body": 17 * 1024 * 1024}, rmq.InvalidValue, "max_body"),
    ({"on_expire": "vanish"}, rmq.InvalidValue, "dead, drop"),
    ({"durability": "eternal"}, rmq.InvalidValue, "durability"),
    ({"leese": 30}, rmq.InvalidType, "leese: there is no such setting"),
]


@pytest.mark.parametrize(("asked", "error", "text"), SETTINGS, ids=lambda v: str(v)[:40])
def test_a_setting_that_cannot_work_is_refused_before_any_call(
    kind: str, asked: dict[str, Any], error: type[Exception], text: str
) -> None:
    nowhere = connect(kind, "redis://127.0.0.1:1/0")
    with pytest.raises(error, match=text):
        nowhere.topic("orders", **asked)


PAST = datetime(2020, 1, 1, tzinfo=UTC)
SENDS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"priority": 16}, rmq.InvalidValue, "priority: 16; give 17 to 1048575"),
    ({"priority": 1_048_576}, rmq.InvalidValue, "priority"),
    ({"priority": -5}, rmq.InvalidValue, "priority"),
    ({"priority": 1.5}, rmq.InvalidType, "priority: 1.5 is not a whole number"),
    ({"priority": math.nan}, rmq.InvalidType, "priority"),
    ({"priority": math.inf}, rmq.InvalidType, "priority"),
    ({"priority": True}, rmq.InvalidType, "priority"),
    ({"priority": "20"}, rmq.InvalidType, "priority: '20' is not a whole number; write 20"),
    ({"delay": -1}, rmq.InvalidValue, "delay"),
    ({"delay": math.nan}, rmq.InvalidValue, "delay"),
    ({"delay": 1e308}, rmq.InvalidValue, "delay"),
    ({"delay": math.inf}, rmq.InvalidValue, "delay"),
    ({"delay": True}, rmq.InvalidType, "delay"),
    ({"delay": "5s"}, rmq.InvalidType, "delay"),
    ({"delay": timedelta(days=3700)}, rmq.InvalidValue, "delay"),
    ({"at": datetime(2030, 1, 1)}, rmq.InvalidValue, "at: 2030-01-01T00:00:00 has no time zone"),
    ({"at": PAST}, rmq.InvalidValue, "at: 2020-01-01 .* is more than a year ago; give a future"),
    ({"at": 1_790_000_000}, rmq.InvalidValue, "looks like seconds; give epoch ms .1790000000000"),
    ({"at": 1_790_000_000_000_000}, rmq.InvalidValue, "looks like microseconds"),
    ({"at": 1_790_000_000.5}, rmq.InvalidType, "at"),
    ({"at": -1}, rmq.InvalidValue, "long past"),
    ({"at": datetime(2060, 1, 1, tzinfo=UTC)}, rmq.InvalidValue, "10 years"),
    ({"at": PAST, "delay": 5}, rmq.InvalidValue, "delay and at: both given"),
    ({"merge_key": "k"}, rmq.InvalidValue, "merge_key: given without time_range"),
    ({"time_range": 5}, rmq.InvalidValue, "time_range: given without merge_key"),
    ({"merge_key": "", "time_range": 5}, rmq.InvalidValue, "merge_key: give 1 to 1024 bytes"),
    ({"merge_key": "k" * 1025, "time_range": 5}, rmq.InvalidValue, "merge_key"),
    ({"merge_key": b"k", "time_range": 5}, rmq.InvalidType, "merge_key"),
    ({"merge_key": "k", "time_range": 0}, rmq.InvalidValue, "time_range"),
    ({"merge_key": "k", "time_range": 5, "merge": "sum"}, rmq.InvalidValue, "merge: 'sum'"),
    ({"merge_key": "k", "time_range": 5, "delay": 1}, rmq.InvalidValue, "leave them out"),
    ({"merge_key": "k", "time_range": 5, "extend": True}, rmq.InvalidValue, "give max_wait too"),
    ({"merge_key": "k", "time_range": 5, "max_wait": 9}, rmq.InvalidValue, "give extend=True too"),
    (
        {"merge_key": "k", "time_range": 5, "extend": True, "max_wait": 1},
        rmq.InvalidValue,
        "max_wait: 1; give at least 5 s",
    ),
    ({"extend": True}, rmq.InvalidValue, "they need merge_key"),
    ({"slot_basis": 7}, rmq.InvalidType, "slot_basis"),
    ({"headers": {"a": 1}}, rmq.InvalidType, "headers: 'a': 1"),
    ({"headers": {"rmq-x": "1"}}, rmq.InvalidValue, "do not begin with rmq-"),
    ({"headers": {str(n): "" for n in range(33)}}, rmq.InvalidValue, "33 entries"),
    ({"headers": {"a": "x" * 5000}}, rmq.InvalidValue, "give at most 4096"),
    ({"headers": {"a": "\ud800"}}, rmq.InvalidValue, "UTF-8"),
    ({"headers": ["a"]}, rmq.InvalidType, "give a mapping"),
    ({"expires": 0}, rmq.InvalidValue, "expires"),
    ({"id": "nonsense"}, rmq.InvalidValue, "'nonsense' is not a message id"),
    ({"id": b"short"}, rmq.InvalidValue, "5 bytes; a message id has 16"),
    ({"id": 7}, rmq.InvalidType, "id"),
    ({"dedup_key": ""}, rmq.InvalidValue, "dedup_key: 0 bytes; give 1 to 200"),
    ({"dedup_key": b""}, rmq.InvalidValue, "dedup_key: 0 bytes"),
    (
        {"dedup_key": "é" * 101},
        rmq.InvalidValue,
        "dedup_key: 202 bytes; .* a digest of a longer key",
    ),
    ({"dedup_key": "\ud800"}, rmq.InvalidValue, "dedup_key: .*UTF-8"),
    ({"dedup_key": 7}, rmq.InvalidType, "dedup_key: int; give str or bytes"),
    ({"dedup_key": ["k"]}, rmq.InvalidType, "dedup_key: list"),
    ({"dedup_key": "k", "id": b"0" * 16}, rmq.InvalidValue, "dedup_key: given with id or merge"),
    (
        {"dedup_key": "k", "merge_key": "k", "time_range": 5},
        rmq.InvalidValue,
        "dedup_key: given with id or merge_key",
    ),
    ({"dedup_key": "k", "slot_basis": 7}, rmq.InvalidType, "slot_basis"),
    ({"dedup_key": "k", "at": PAST}, rmq.InvalidValue, "more than a year ago"),
    ({"durability": "eternal"}, rmq.InvalidValue, "durability"),
    ({"timeout": -1}, rmq.InvalidValue, "timeout"),
]


@pytest.mark.parametrize(("named", "error", "text"), SENDS, ids=lambda v: str(v)[:40])
def test_a_send_that_cannot_work_is_refused_and_stores_nothing(
    api: Any, name: str, named: dict[str, Any], error: type[Exception], text: str
) -> None:
    topic = api.topic(name)
    topic.open()

    with pytest.raises(error, match=text) as caught:
        topic.send("x", **named)

    assert isinstance(caught.value, rmq.RMQError)
    assert api.admin.stats(name)["accepted"] == 0
    assert api.admin.stats(name)["records"] == 0


def test_an_option_that_there_is_not_is_refused_and_the_one_that_fits_is_named(
    api: Any, name: str
) -> None:
    topic = api.topic(name)
    for option, fitting in [
        ("countdown", "it is delay"),
        ("eta", "it is at"),
        ("prio", "priority"),
    ]:
        with pytest.raises(rmq.InvalidType, match=rf"send: .*{option!r}.*{fitting}"):
            topic.send("x", **{option: 5})


def test_settings_are_not_known_before_the_topic_is_opened(api: Any, name: str) -> None:
    topic = api.topic(name)
    with pytest.raises(rmq.ConfigurationError, match=rf"{name}.* call open\(\) first"):
        topic.settings  # noqa: B018
    topic.open()
    assert topic.settings.slots == 1


UNWRITABLE = [
    (
        "json",
        {"a": [1, {"at": 1j}]},
        r"body\['a'\]\[1\]\['at'\]: complex .*; send str\(value\)",
    ),
    ("json", [{"tags": range(3)}], r"body\[0\]\['tags'\]: range .*; send list\(value\)"),
    ("json", {"x": {"y": math.nan}}, r"body\['x'\]\['y'\]: float cannot be written as JSON"),
    ("json", {"o": {(1, 2): 3}}, r"body\['o'\]: dict cannot be written as JSON: keys must be"),
    ("msgpack", {"b": [1j]}, r"body\['b'\]\[0\]: complex cannot be written as msgpack"),
]


@pytest.mark.parametrize(("codec", "body", "text"), UNWRITABLE, ids=lambda v: ascii(v)[:30])
def test_what_cannot_be_written_is_named_with_where_it_is(
    api: Any, name: str, codec: str, body: Any, text: str
) -> None:
    with pytest.raises(rmq.EncodeError, match=text):
        api.topic(name, codec=codec).send(body)


BODIES: list[tuple[str, Any, str]] = [
    ("json", {1, math.inf}, "cannot be written as JSON"),
    ("json", {"x": math.nan}, "cannot be written as JSON"),
    ("json", range(2), "cannot be written as JSON"),
    ("json", "\ud800", "cannot be written as JSON"),
    ("msgpack", range(2), "cannot be written as msgpack"),
    ("msgpack", 2**70, "cannot be written as msgpack"),
    ("bytes", "text", "the bytes codec takes bytes"),
]


@pytest.mark.parametrize(("codec", "body", "text"), BODIES, ids=lambda v: ascii(v)[:30])
def test_a_body_that_cannot_be_written_is_refused(
    api: Any, name: str, codec: str, body: Any, text: str
) -> None:
    with pytest.raises(rmq.EncodeError, match=text):
        api.topic(name, codec=codec).send(body)
    assert api.admin.stats(name)["accepted"] == 0


def test_nesting_without_end_is_refused(api: Any, name: str) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(rmq.EncodeError):
        api.topic(name).send(deep)


@pytest.mark.fault("F29")
@both_clients
@pytest.mark.parametrize("field", ["merge_key", "slot_basis", "dedup_key"])
def test_text_that_utf_8_cannot_carry_is_refused_in_every_key(
    api: Any, name: str, field: str
) -> None:
    more = {"time_range": 1} if field == "merge_key" else {}

    with pytest.raises(rmq.InvalidValue, match=f"{field}: .*surrogates"):
        api.topic(name).send(1, **{field: "\ud800"}, **more)


@both_clients
def test_a_body_over_the_limit_is_refused_and_one_at_the_limit_is_not(api: Any, name: str) -> None:
    topic = api.topic(name, max_body=1000, codec="bytes")
    assert topic.send(b"x" * 1000).status == "stored"
    with pytest.raises(
        rmq.PayloadTooLarge, match="1001 bytes as bytes; the topic's max_body is 1000"
    ):
        topic.send(b"x" * 1001)


@both_clients
def test_one_bad_message_of_many_stops_them_all_before_any_is_sent(api: Any, name: str) -> None:
    topic = api.topic(name)
    with pytest.raises(rmq.InvalidValue):
        topic.send_many([rmq.Outgoing(1), rmq.Outgoing(2, priority=1)])
    with pytest.raises(rmq.InvalidType, match=r"give rmq.Outgoing"):
        topic.send_many([rmq.Outgoing(1), {"body": 2}])
    assert api.admin.stats(name)["accepted"] == 0


@pytest.mark.parametrize("ago_s", [0, 3, 86_400, 364 * 86_400])
def test_a_time_that_has_passed_is_due_at_once_and_not_refused(
    api: Any, name: str, clock: Clock, ago_s: int
) -> None:
    topic = api.topic(name, slots=4)
    messages = [rmq.Outgoing(n, slot_basis=str(n)) for n in range(20)]
    messages[13] = rmq.Outgoing(13, at=clock.now_ms - 1000 * ago_s, slot_basis="13")
    messages[14] = rmq.Outgoing(14, delay=0, slot_basis="14")
    messages[15] = rmq.Outgoing(15, delay=timedelta(0), dedup_key="15")

    assert {one.status for one in topic.send_many(messages)} == {"stored"}

    with topic.consumer(mode="at_most_once") as consumer:
        found = []
        while batch := consumer.receive(max_messages=1000):
            found += [d.body for d in batch]
    assert sorted(found) == list(range(20))


def test_the_clients_own_clock_decides_about_no_moment(
    api: Any, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, at = api.topic(name), clock.now_ms - 60_000
    for wrong_by_s in (-86_400, 86_400):
        monkeypatch.setattr(command_clock, "now_ms", lambda by=wrong_by_s: clock.now_ms + 1000 * by)
        assert topic.send("x", at=at).status == "stored"
        assert topic.reschedule(topic.send("y", delay=60).id, at=at) == "rescheduled"

    assert api.admin.stats(name)["due"] == 4


def test_one_message_that_is_past_stops_those_of_other_slots_too(api: Any, name: str) -> None:
    topic = api.topic(name, slots=4)
    messages = [rmq.Outgoing(n, slot_basis=str(n)) for n in range(20)]
    messages[13] = rmq.Outgoing(13, at=PAST, slot_basis="13")

    with pytest.raises(rmq.InvalidValue, match="more than a year ago"):
        topic.send_many(messages)

    assert api.admin.stats(name)["accepted"] == 0


def test_a_resend_whose_time_has_passed_is_a_duplicate_and_no_error(
    api: Any, name: str, clock: Clock
) -> None:
    topic = api.topic(name, slots=2)
    at = clock.now_ms + 1000
    ids = [topic.new_id("a"), topic.new_id("b")]
    messages = [rmq.Outgoing(n, at=at, id=id) for n, id in enumerate(ids)]
    assert [r.status for r in topic.send_many(messages)] == ["stored", "stored"]

    clock.advance(60)

    assert [r.status for r in topic.send_many(messages)] == ["duplicate", "duplicate"]


def test_an_id_of_another_topic_is_refused(api: Any, name: str) -> None:
    here, there = api.topic(name), api.topic(name + "x")
    foreign = there.send("x").id
    here.open()
    for verb in (here.get, here.cancel):
        with pytest.raises(rmq.InvalidValue, match="is of another topic"):
            verb(foreign)
    with pytest.raises(rmq.InvalidValue, match="is of another topic"):
        here.send("x", id=foreign)
    assert there.get(foreign) is not None


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release", "extend"])
@both_clients
def test_a_delivery_of_another_topic_is_refused_though_its_member_is_the_same(
    api: Any, name: str, verb: str
) -> None:
    here, there = api.topic(name), api.topic(name + "x")
    for topic in (here, there):
        topic.send("x", dedup_key="order-7")  # the same member in both
    mine, theirs = here.consumer(), there.consumer()
    (d,), (foreign,) = mine.receive(), theirs.receive()
    more = {"reject": ("why",)}.get(verb, ())

    with pytest.raises(rmq.InvalidValue, match=f"is of topic '{name}x', not of '{name}'"):
        getattr(mine, verb)([foreign], *more)

    assert api.admin.stats(name)["in_flight"] == api.admin.stats(name + "x")["in_flight"] == 1
    assert mine.ack([d]) == theirs.ack([foreign]) == []


@pytest.mark.parametrize(
    "bad",
    ["", "x", "0" * 26 + ":", "0" * 26 + ":nan", "0" * 26 + ":inf", "0" * 26 + ":16", "x" * 100],
)
@both_clients
def test_a_forged_receipt_is_refused_before_any_call(api: Any, name: str, bad: str) -> None:
    with pytest.raises(rmq.InvalidReceipt):
        api.topic(name).consumer().ack_receipts([bad])


def test_a_receipt_of_another_topic_or_delivery_changes_nothing(api: Any, name: str) -> None:
    here, there = api.topic(name), api.topic(name + "x")
    here.send("x")
    there.send("y")
    mine, theirs = here.consumer(), there.consumer()
    (d,), (foreign,) = mine.receive(), theirs.receive()

    with pytest.raises(rmq.InvalidReceipt):
        mine.ack_receipts([foreign.receipt])
    guess = rmq.Receipt(d.id, d.receipt.score + 1000)
    assert mine.ack_receipts([guess]) == [guess]

    assert api.admin.stats(name)["in_flight"] == 1
    d.ack()


@both_clients
def test_receive_checks_its_arguments(api: Any, name: str) -> None:
    consumer = api.topic(name).consumer()
    for bad in (0, 1001, -1, True, 1.5, "9"):
        with pytest.raises(rmq.ConfigurationError, match="max_messages"):
            consumer.receive(bad)
    for bad in (-1, math.nan, "1", True):
        with pytest.raises(rmq.ConfigurationError, match="wait"):
            consumer.receive(wait=bad)
    with pytest.raises(rmq.ConfigurationError, match="lease"):
        api.topic(name).consumer(lease=0)
    with pytest.raises(rmq.InvalidValue, match="mode"):
        api.topic(name).consumer(mode="exactly_once")
    with pytest.raises(rmq.InvalidType, match="give what receive returned"):
        consumer.ack(["text"])
    topic = api.topic(name)
    topic.send("x")
    (d,) = consumer.receive()
    with pytest.raises(rmq.InvalidValue, match="given twice"):
        consumer.ack([d, d])
    assert consumer.ack([d]) == []
    consumer.close()
    with pytest.raises(rmq.InvalidValue, match="it is closed"):
        consumer.receive()


@both_clients
def test_an_undecodable_body_goes_to_the_dead_queue_once_with_the_reason(
    api: Any, name: str, server: Server
) -> None:
    raw = api.topic(name, codec="bytes")
    raw.send(b"{bad")
    good = api.topic(name).send({"ok": 1})
    with server.raw() as redis:
        key = f"rmq:{{{name}_0}}:records"
        ((message_id, record),) = [
            (k, v) for k, v in redis.hgetall(key).items() if v.endswith(b"{bad")
        ]
        redis.hset(key, message_id, bytes([1 << 5]) + record[1:])  # says JSON now
        other = raw.send(b"x").id.member
        entry = redis.hget(key, other)
        redis.hset(key, other, bytes([7 << 5]) + entry[1:])  # a codec nobody knows

    with api.topic(name).consumer() as consumer:
        batch = consumer.receive(10, wait=1)
        assert [d.id for d in batch] == [good.id]
        assert consumer.receive(10) == []
        consumer.ack(batch)

    dead = api.admin.peek(name, queue="dead")
    assert {m.failure.reason for m in dead} == {"undecodable"}
    assert {m.deliveries for m in dead} == {1}
    errors = " ".join(m.failure.error for m in dead)
    assert "is not JSON" in errors
    assert "codec number 7 is unknown" in errors


URLS = [
    ("localhost:6379", "give redis://"),
    ("http://localhost", "scheme 'http' is unknown"),
    ("redis://localhost:99999/0", "no valid port"),
    ("redis://localhost/orders", "database number"),
    ("embedded://", "names no directory"),
    ("unix://", "names no socket"),
    ("redis+cluster://a,b/3", "no database but 0"),
    ("redis+sentinel://a,b", "names no service"),
    ("redis://localhost?decode_responses=true", "RMQ's to set"),
]


@pytest.mark.parametrize(("url", "text"), URLS)
@both_clients
def test_a_url_that_cannot_work_is_refused(kind: str, url: str, text: str) -> None:
    with pytest.raises(rmq.ConfigurationError, match=text):
        connect(kind, url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:s3cret@127.0.0.1:1/0",
        "redis://:s3cret@127.0.0.1:1/0",
        "redis://user:s3@s3cret@127.0.0.1:1/0",
        "redis://127.0.0.1:1/0?password=s3cret",
        "user:s3cret@127.0.0.1:1",
        "redis+sentinel://user:s3@s3cret@127.0.0.1:1,127.0.0.1:2/orders",
        "redis+sentinel://127.0.0.1:1/orders?sentinel_password=s3@s3cret",
    ],
)
def test_a_password_is_never_shown(kind: str, url: str) -> None:
    shown = ""
    try:
        api = connect(kind, url, retry_for=0)
        shown += repr(api) + api.url
        api.topic("orders").send("x")
    except rmq.RMQError as error:
        shown += str(error) + repr(error)
    assert shown
    assert "s3cret" not in shown
