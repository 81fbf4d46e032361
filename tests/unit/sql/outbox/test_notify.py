from typing import Any

import pytest

import rmq
from rmq.outbox import Webhook


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"url": 7}, rmq.InvalidType, "url: int"),
        ({"url": "ftp://x/s3cret"}, rmq.InvalidValue, "url: that is no URL"),
        ({"url": "file:///etc/s3cret"}, rmq.InvalidValue, "url: that is no URL"),
        ({"url": "http:///s3cret"}, rmq.InvalidValue, "url: that is no URL"),
        ({"url": "http://x:port/s3cret"}, rmq.InvalidValue, "url: that is no URL"),
        ({"url": "http://x/a b"}, rmq.InvalidValue, "url: that is no URL"),
        ({"url": "http://me:s3cret@x/"}, rmq.InvalidValue, "url: it has a user"),
        ({"headers": ["a"]}, rmq.InvalidType, "headers: list"),
        ({"headers": {"a": 1}}, rmq.InvalidType, "headers: 'a'"),
        ({"headers": {"a b": "c"}}, rmq.InvalidValue, "headers: 'a b'"),
        ({"headers": {"a": "s3cret\r\nX: y"}}, rmq.InvalidValue, "headers: 'a'"),
        ({"headers": {"a": "s3cret\u20ac"}}, rmq.InvalidValue, "headers: 'a'"),
        ({"timeout": 0}, rmq.InvalidValue, "timeout"),
        ({"timeout": 31}, rmq.InvalidValue, "timeout"),
    ],
)
def test_a_webhook_names_the_argument_that_it_refuses_and_shows_no_secret(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        Webhook(**({"url": "https://x/"} | given))

    assert "s3cret" not in str(caught.value)


def test_the_repr_of_a_webhook_shows_only_its_host() -> None:
    made = Webhook("https://hooks.example:8443/s3cret?k=s3cret", {"Authorization": "s3cret"})

    assert repr(made) == "Webhook('https://hooks.example:8443')"
