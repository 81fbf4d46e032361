"""Admin.dead_letter_edit: a dead letter with another body goes back, or stays as it was."""

from __future__ import annotations

from typing import Any

import pytest

import rmq
from rmq.errors import EncodeError, InvalidType, InvalidValue, PayloadTooLarge
from tests.integration.driven import both_clients


def bury(api: Any, name: str, body: Any, settings: Any = None, **options: Any) -> Any:
    """Send a message and reject it; return its topic and its id."""
    topic = api.topic(name, **(settings or {}))
    id = topic.send(body, **options).id
    with topic.consumer() as consumer:
        consumer.receive(1, wait=5)[0].reject("KeyError: 'vat'")
    return topic, id


@both_clients
def test_a_consumer_gets_the_new_body_of_the_same_message(api: Any, name: str) -> None:
    topic, id = bury(api, name, {"n": 1}, type="order.paid", headers={"tenant": "7"})

    status = api.admin.dead_letter_edit(name, id, body={"n": 1, "vat": "DE1"})

    assert status == "redriven"
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(1, wait=5)
        assert delivery.body == {"n": 1, "vat": "DE1"}
        assert (delivery.id, delivery.type) == (id, "order.paid")
        assert delivery.headers == {"tenant": "7"}
        delivery.ack()
    assert api.admin.dead_letter_edit(name, id, body=1) == "gone"


def test_headers_alone_are_changed_and_the_marks_of_rmq_stay(api: Any, name: str) -> None:
    groups = {"groups": rmq.Groups(on_dead="hold")}
    topic, id = bury(api, name, [1], groups, group="customer 7", headers={"a": "b", "c": "d"})
    topic.send([2], group="customer 7")

    assert api.admin.dead_letter_edit(name, id, headers={"a": "x"}) == "redriven"

    api.admin.group_release(name, "customer 7")
    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(1, wait=5)
        assert (delivery.id, delivery.group, delivery.headers) == (id, "customer 7", {"a": "x"})
        delivery.ack()


@pytest.mark.parametrize("codec", ["json", "msgpack", "gzip"])
@pytest.mark.parametrize(("old", "new"), [(10, 9000), (9000, 10), (9000, 9000)])
def test_bodies_of_any_size_and_codec_are_replaced(
    api: Any, name: str, codec: str, old: int, new: int
) -> None:
    given = rmq.Compressed() if codec == "gzip" else codec
    topic, id = bury(api, name, {"text": "o" * old}, {"codec": given, "max_body": 20_000})

    assert api.admin.dead_letter_edit(name, id, body={"text": "n" * new}) == "redriven"

    with topic.consumer() as consumer:
        (delivery,) = consumer.receive(1, wait=5)
        assert delivery.body == {"text": "n" * new}
        delivery.ack()
    assert api.admin.stats(name)["records"] == 0


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"body": object()}, EncodeError), ({"body": "x" * 3000}, PayloadTooLarge),
        ({}, InvalidValue),
        ({"headers": {"rmq-type": "x"}}, InvalidValue), ({"headers": {"a": 1}}, InvalidType),
    ],
)  # fmt: skip
def test_what_cannot_be_encoded_leaves_the_dead_letter_as_it_was(
    api: Any, name: str, change: dict[str, Any], error: type[Exception]
) -> None:
    _, id = bury(api, name, {"n": 1}, {"max_body": 2000})
    before = api.admin.get(name, id)

    with pytest.raises(error):
        api.admin.dead_letter_edit(name, id, **change)

    assert api.admin.get(name, id) == before
    assert before.queue == "dead"


def test_a_message_that_waits_is_not_changed(api: Any, name: str) -> None:
    topic = api.topic(name)
    id = topic.send(1).id

    assert api.admin.dead_letter_edit(name, id, body=2) == "gone"
    assert api.admin.get(name, id).body == 1
