from __future__ import annotations

import pytest

from rmq.errors import ConfigurationError
from spark_connector import offset, options
from spark_connector.offset import Offset, Share, shares

AT = {"url": "redis://:secret@localhost:6379/0", "subscribe": "orders"}


def test_what_is_left_out_has_its_default() -> None:
    found = options.stream(AT)

    assert (found.most, found.lease_s, found.owner_s, found.on_loss) == (100_000, 600, 15, "fail")
    assert (found.max_replays, found.poll_s, found.headers, found.fetch) == (None, 0.2, False, 1000)


def test_names_are_read_in_any_case_and_by_their_other_name() -> None:
    given = {
        "URL": AT["url"], "topic": "orders", "maxoffsetspertrigger": "7", "failondataloss": "false",
    }  # fmt: skip

    found = options.stream(given)

    assert (found.at.topic, found.most, found.on_loss) == ("orders", 7, "continue")


def test_a_password_is_in_no_repr() -> None:
    assert "secret" not in repr(options.stream(AT))


def test_the_url_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_URL", "redis://elsewhere:6379/0")

    assert options.stream({"subscribe": "orders"}).at.url == "redis://elsewhere:6379/0"


def test_a_url_of_sentinels_is_passed_on_as_it_is_and_its_passwords_are_in_no_repr() -> None:
    url = "redis+sentinel://me:s3cret@h1,h2/orders/0?sentinel_password=s3cret"

    found = options.stream({**AT, "url": url})

    assert found.at.url == url
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"url": "http://:secret@x"}, "url: scheme 'http' is unknown; use redis, rediss"),
        ({"url": "embedded:///tmp/x"}, "url: an embedded server serves one machine"),
        ({"url": " "}, "url: it is empty; give a value or leave the option out"),
        ({"subscribe": "a,b"}, "subscribe: 'a,b' names several topics; give one"),
        ({"subscribe": "a b"}, "subscribe: 'a b'; use 1 to 128 of"),
        ({"topic": "orders"}, "subscribe, topic: two names of one option; give one"),
        ({"prefix": "a:b"}, "prefix: 'a:b'; use 1 to 128 of"),
        ({"maxMesagesPerTrigger": "5"}, "did you mean maxMessagesPerTrigger?"),
        ({"leaseSecond": "5"}, "did you mean leaseSeconds?"),
        ({"nonsense": "5"}, "a streaming read has no such option; known are url, subscribe, topic"),
        ({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger: 0; give 1 to 10000000"),
        ({"maxMessagesPerTrigger": "ten"}, "'ten' is not a whole number; give 1 to"),
        ({"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger: -1; give 1 to"),
        ({"minPartitions": "0"}, "minPartitions: 0; give 1 to 10000"),
        ({"leaseSeconds": "0.5"}, "leaseSeconds: '0.5'; give 1 to 43200 seconds"),
        ({"leaseSeconds": "nan"}, "leaseSeconds: 'nan'; give 1 to 43200 seconds"),
        ({"leaseSeconds": "10"}, "ownerLeaseSeconds: 15; give at most leaseSeconds, which is 10"),
        ({"onClaimLoss": "ignore"}, "onClaimLoss: 'ignore'; give fail or continue"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss: 'no'; give true or false"),
        ({"includeHeaders": "1"}, "includeHeaders: '1'; give true or false"),
        ({"fetchSize": "5000"}, "fetchSize: 5000; give 1 to 1000"),
        ({"startingOffsets": "earliest"}, "startingOffsets: a queue has one position"),
        ({"endingOffsets": "latest"}, "endingOffsets: a queue has one position"),
        ({"subscribePattern": "o.*"}, "subscribePattern: a query reads one topic"),
        ({"kafka.bootstrap.servers": "x"}, "this is RMQ; say where Redis is with url"),
        ({"path": "orders"}, "path: name the topic with subscribe"),
        ({"limit": "5"}, "limit: it is no option of a streaming read; leave it out"),
    ],
)
def test_the_error_of_a_wrong_option_of_a_stream_is_one_sentence(
    given: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        options.stream(AT | given)

    text = str(caught.value)
    assert told in text
    assert "\n" not in text
    assert len(text) < 400
    assert "secret" not in text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {},
            "queue: it is missing; a batch read looks at store (waiting), prepare (in flight), "
            "dead or all",
        ),
        (
            {"queue": "deed"},
            "queue: 'deed' names no queue; "
            "give store (or waiting), prepare (or in-flight), dead, or all",
        ),
        ({"queue": "dead", "slots": "0,x"}, "slots: '0,x'; give the numbers of slots, as 0 or 0,2"),
        ({"queue": "dead", "slots": "-1"}, "slots: '-1'; slots have the numbers 0 to 1023"),
        ({"queue": "dead", "limit": "0"}, "limit: 0; give 1 to"),
        ({"queue": "dead", "onClaimLoss": "fail"}, "onClaimLoss: it is no option of a batch read"),
    ],
)
def test_the_error_of_a_wrong_option_of_a_batch_is_one_sentence(
    given: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"^[^\n]*$") as caught:
        options.snapshot(AT | given)

    assert told in str(caught.value)


def test_a_missing_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RMQ_URL", raising=False)

    with pytest.raises(ConfigurationError, match="url: it is missing; give redis://"):
        options.stream({"subscribe": "orders"})
    with pytest.raises(ConfigurationError, match="subscribe: it is missing; name the topic"):
        options.stream({"url": AT["url"]})


@pytest.mark.parametrize(
    ("given", "queues"),
    [
        ("all", ("store", "prepare", "dead")),
        ("store", ("store",)),
        ("waiting", ("store",)),
        ("prepare", ("prepare",)),
        ("in flight", ("prepare",)),
        ("in_flight", ("prepare",)),
        ("In-Flight", ("prepare",)),
        ("DEAD", ("dead",)),
    ],
)
def test_a_queue_may_be_named_as_people_say(given: str, queues: tuple[str, ...]) -> None:
    assert options.snapshot(AT | {"queue": given, "slots": "2,0"}).queues == queues


def test_an_offset_is_read_as_it_was_spelled_and_its_keys_have_one_order() -> None:
    one = Offset("a" * 32, {1: 5, 0: 7}, {0: 7, 1: 0})

    spelled = one.spell("orders")

    assert list(spelled) == ["v", "run", "topic", "slots", "held"]
    assert list(spelled["slots"].items()) == [("0", 7), ("1", 5)]
    assert spelled["held"] == {"0": 7}
    assert offset.read(spelled, "orders") == Offset("a" * 32, {0: 7, 1: 5}, {0: 7})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"index": 3}, "is no offset of RMQ; give the query a new checkpoint together"),
        (None, "is no offset of RMQ"),
        (Offset("a", {}, {}).spell("mails"), "it is of topic 'mails' and subscribe names 'orders'"),
        (Offset("a", {}, {}).spell("orders") | {"v": 2}, "written in format 2 and this RMQ reads"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(given: object, told: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^checkpoint: [^\n]*$") as caught:
        offset.read(given, "orders")

    assert told in str(caught.value)


def test_a_topic_made_anew_with_other_slots_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has 8 slots in Redis and 1 in the checkpoint"):
        offset.check_slots(Offset("a", {0: 3}, {}), 8, "orders")


def test_a_batch_is_shared_out_by_slots_and_in_as_many_parts_as_asked() -> None:
    end = Offset("a", {0: 10, 1: 35, 2: 4}, {})
    held = {0: 10, 1: 30, 2: 0}

    few = shares({1: 5, 2: 4}, end, held, 1)
    many = shares({1: 5, 2: 4}, end, held, 4)

    assert few == [Share(0, 0, 10, 10), Share(1, 5, 35, 30)]
    assert many == [Share(0, 0, 10, 10), Share(1, 5, 15, 10), Share(1, 15, 25, 10), Share(1, 25, 35, 10)]  # fmt: skip  # noqa: E501


def test_numbers_with_gaps_stay_in_one_part() -> None:
    assert shares({}, Offset("a", {0: 24}, {}), {0: 12}, 8) == [Share(0, 0, 24, 12)]
