"""The handlers of a topic: which of them gets a message, and what cannot be registered."""

from __future__ import annotations

from typing import Any

import pytest

import rmq
from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.handlers.handler import TopicHandlers

URL = "redis://localhost:1/0"


@pytest.fixture
def client() -> rmq.Client:
    return rmq.Client(URL)


def handlers(client: rmq.Client) -> TopicHandlers:
    return client._handlers.by_topic["orders"]


def refund(body: dict) -> None: ...
async def ship(body: dict) -> None: ...
def rest(body: dict) -> None: ...


def test_each_type_has_its_handler_and_the_default_gets_the_others(client: rmq.Client) -> None:
    orders = client.topic("orders")

    orders.handler(type="order.refunded")(refund)
    orders.handler(type=("order.shipped", "order.sent"))(ship)
    orders.handler(rest)

    found = {
        name: handler.function
        for name in ("order.refunded", "order.shipped", "order.sent", "order.lost", None)
        if (handler := handlers(client).route(name)) is not None
    }
    assert found == {
        "order.refunded": refund, "order.shipped": ship, "order.sent": ship,
        "order.lost": rest, None: rest,
    }  # fmt: skip
    assert [each.name for each in handlers(client)] == ["refund", "ship", "rest"]


def test_without_a_default_other_types_have_no_handler(client: rmq.Client) -> None:
    client.topic("orders").handler(type="order.refunded")(refund)

    assert handlers(client).route("order.shipped") is None
    assert handlers(client).route(None) is None
    assert handlers(client).default is None


def test_a_type_has_one_handler(client: rmq.Client) -> None:
    orders = client.topic("orders")
    orders.handler(type=["a", "b"])(refund)
    orders.handler(rest)

    with pytest.raises(InvalidValue, match=r"a handler for type 'b' already, refund"):
        orders.handler(type="b")(ship)
    with pytest.raises(InvalidValue, match=r"has a handler already, rest.*Give type="):
        orders.handler(refund)
    assert len(handlers(client)) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ordered": True}, "ordered applies to the whole topic 'orders'; refund has False and"),
        (
            {"lease": 60},
            "lease applies to the whole topic 'orders'; refund has none and this handler",
        ),
    ],
)
def test_handlers_of_a_topic_share_order_and_lease(
    client: rmq.Client, options: dict[str, Any], words: str
) -> None:
    orders = client.topic("orders")
    orders.handler(type="a")(refund)

    with pytest.raises(InvalidValue, match=words):
        orders.handler(type="b", **options)(ship)

    orders.handler(type="b", concurrency=3, retry="immediate", max_runtime=5)(ship)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("", InvalidValue), ("a b", InvalidValue), ("é", InvalidValue), ("x" * 129, InvalidValue),
        ("a\n", InvalidValue), ([], InvalidValue), (["a", "a"], InvalidValue), (7, InvalidType),
        (b"a", InvalidType), ([7], InvalidType),
    ],
)  # fmt: skip
def test_what_is_no_type_is_refused(client: rmq.Client, given: Any, error: Any) -> None:
    with pytest.raises(error, match="type: "):
        client.topic("orders").handler(type=given)(refund)
    assert client._handlers.by_topic == {}


def test_an_async_client_registers_alike() -> None:
    client = rmq.AsyncClient(URL)
    client.topic("orders").handler(type="a")(ship)

    handler = client._handlers.by_topic["orders"].route("a")
    assert handler is not None
    assert handler.types == ("a",)
