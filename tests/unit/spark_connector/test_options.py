from __future__ import annotations

import pytest

from rmq.errors import ConfigurationError
from spark_connector import options

AT = {"url": "redis://:secret@localhost:6379/0", "subscribe": "orders"}


def test_what_is_left_out_has_its_default() -> None:
    found = options.stream(AT)

    assert (found.most, found.lease_s, found.owner_s, found.on_loss) == (100_000, 600, 15, "fail")
    assert (found.max_replays, found.poll_s, found.headers, found.fetch) == (None, 0.2, False, 4000)


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
        ({"fetchSize": "50000"}, "fetchSize: 50000; give 1 to 10000"),
        ({"startingOffsets": "earliest"}, "startingOffsets: a queue has one position"),
        ({"endingOffsets": "latest"}, "endingOffsets: a queue has one position"),
        ({"subscribePattern": "o.*"}, "subscribe, subscribePattern: give one of them"),
        ({"maxTriggerDelay": "5"}, "maxTriggerDelay: '5'; give a time up to 24h with its unit"),
        ({"minMessagesPerTrigger": "200000"}, "give at most maxMessagesPerTrigger, which is 1"),
        ({"subscribe": "a,b,a"}, "subscribe: it names 'a' twice; name each topic once"),
        ({"kafka.bootstrap.servers": "x"}, "this is RMQ; give the address of Redis with url"),
        ({"path": "orders"}, "path: name the topic with subscribe"),
        ({"limit": "5"}, "limit: it is not an option of a streaming read; leave it out"),
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
    assert len(text) < 450
    assert "secret" not in text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {},
            "queue: it is missing; a batch read looks at store (waiting), prepare (in flight), "
            "dead, all or history",
        ),
        (
            {"queue": "deed"},
            "queue: 'deed' is not a queue; "
            "give store (or waiting), prepare (or in-flight), dead, trash, all, or history",
        ),
        ({"queue": "dead", "slots": "0,x"}, "slots: '0,x'; give the numbers of slots, as 0 or 0,2"),
        ({"queue": "dead", "slots": "-1"}, "slots: '-1'; slots have the numbers 0 to 1023"),
        ({"queue": "dead", "limit": "0"}, "limit: 0; give 1 to"),
        (
            {"queue": "dead", "onClaimLoss": "fail"},
            "onClaimLoss: it is not an option of a batch read",
        ),
    ],
)
def test_the_error_of_a_wrong_option_of_a_batch_is_one_sentence(
    given: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        options.snapshot(AT | given)

    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_a_read_of_a_history_is_chosen_by_queue_in_a_batch_and_by_consume_in_a_stream() -> None:
    assert options.of_history(AT | {"Queue": " History"}) == "batch"
    assert options.of_history(AT | {"consume": "FALSE"}) == "stream"
    assert options.of_history(AT | {"queue": "dead"}) is None
    assert options.of_history(AT | {"consume": "true"}) is None
    stream = options.history(AT | {"consume": "false"})
    batch = options.history(AT | {"queue": "history"})

    assert (stream.start, stream.most, stream.fails, stream.topics) == (
        "latest", 100_000, True, ("orders",),
    )  # fmt: skip
    assert (batch.start, batch.end, batch.tasks) == ("earliest", "latest", None)
    assert options.stream(AT | {"consume": "true"}) == options.stream(AT)


@pytest.mark.parametrize(
    "given",
    ["1767225600000", "2026-01-01", "2026-01-01T00:00:00Z", "2026-01-01 01:00:00+01:00",
     "2025-12-31T23:59:59.9999"],
)  # fmt: skip
def test_a_time_is_epoch_ms_or_iso_8601(given: str) -> None:
    found = options.history(AT | {"consume": "false", "startingTimestamp": given})

    assert found.start == 1_767_225_600_000


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"onClaimLoss": "fail"}, "not an option of a stream with consume=false; leave it out"),
        ({"leaseSeconds": "5"}, "not an option of a stream with consume=false; leave it out"),
        ({"includeQuery": "true"}, "not an option of a stream with consume=false; leave it out"),
        ({"maxBytesPerTrigger": "5"}, "not an option of a stream with consume=false; leave it out"),
        ({"subscribePattern": "o.*"}, "subscribePattern: a stream with consume=false reads the"),
        ({"endingTimestamp": "2026-01-01"}, "endingTimestamp: a stream has no end"),
        ({"startingTimestamp": "1767225600"}, "'1767225600'; give epoch ms, or a time as 2031"),
        ({"startingTimestamp": "yesterday"}, "'yesterday'; give epoch ms, or a time as 2031"),
        (
            {"startingOffsets": "newest"},
            "'newest'; give latest or earliest, or a position of topic",
        ),
        ({"startingOffsets": '{"orders": {"0": 7}}'}, "or a position of topic.history as JSON"),
        ({"startingOffsets": '{"orders": {"a": "1-1"}}'}, "or a position of topic.history as JSON"),
        ({"startingOffsets": '{"mail": {}}'}, "it has mail, and the query reads orders; give a"),
        (
            {"startingOffsets": "latest", "startingTimestamp": "2026-01-01"},
            "startingOffsets, startingTimestamp: give one of them",
        ),
        ({"startingOffsetsByTimestamp": "{}"}, "give one time for all slots, with startingTime"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss: 'no'; give true or false"),
    ],
)
def test_the_error_of_a_wrong_option_of_a_stream_of_a_history(
    given: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        options.history(AT | {"consume": "false"} | given)

    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"startingOffsets": "latest"}, "'latest'; give earliest, or a position of topic.history"),
        ({"limit": "5"}, "limit: it is not an option of a batch read of the history"),
        ({"includeAttempts": "true"}, "it is not an option of a batch read of the history"),
        ({"consume": "false"}, "consume: only streaming reads have it; a batch read of the hist"),
        ({"subscribe": "a,b"}, "'a,b' names several topics; read each topic, and use union()"),
    ],
)
def test_the_error_of_a_wrong_option_of_a_batch_of_a_history(
    given: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        options.history(AT | {"queue": "history"} | given)

    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"queue": "dead", "startingTimestamp": "2026-01-01"}, "or queue=history to a batch read"),
        ({"queue": "dead", "endingOffsets": "latest"}, "or queue=history to a batch read"),
    ],
)
def test_options_of_a_history_are_refused_for_a_queue(given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        options.snapshot(AT | given)

    assert told in str(caught.value)
