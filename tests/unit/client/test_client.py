import pickle
import socket

import pytest

import rmq


@pytest.mark.parametrize("cls", [rmq.Client, rmq.AsyncClient])
def test_a_refused_option_of_the_url_is_named(cls: type) -> None:
    for option, message in (
        ("tiemout=3", "there is no option 'tiemout'"),
        ("socket_timeout=soon", "socket_timeout"),
        ("max_connections=many", "max_connections: 'many'"),
        ("retry=3", "option retry is RMQ's to set"),
    ):
        with pytest.raises(rmq.ConfigurationError, match=message):
            cls(f"redis://127.0.0.1:1/0?{option}")


def test_an_error_says_that_the_default_address_was_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RMQ_URL", raising=False)
    monkeypatch.setattr("rmq.client.client.DEFAULT_URL", "redis://127.0.0.1:1/0")
    with pytest.raises(rmq.Unavailable, match="no url was given and RMQ_URL is not set"):
        rmq.Client(retry_for=0).ping()
    with pytest.raises(rmq.Unavailable) as caught:
        rmq.Client("redis://127.0.0.1:1/0", retry_for=0).ping()
    assert "RMQ_URL" not in str(caught.value)


@pytest.mark.parametrize("cls", [rmq.Client, rmq.AsyncClient])
def test_a_client_and_a_topic_say_why_they_cannot_be_pickled(cls: type) -> None:
    client = cls("redis://127.0.0.1:1/0")
    for what, remedy in (
        (client, "create it where it is used"),
        (client.topic("t"), "pass its name"),
    ):
        with pytest.raises(TypeError, match=f"cannot be pickled.*{remedy}"):
            pickle.dumps({"job": what})


def test_tls_to_a_port_that_does_not_answer_names_the_port_without_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # as Redis does: it waits for a line
        url = f"rediss://127.0.0.1:{mute.getsockname()[1]}/0"
        with pytest.raises(rmq.Unavailable, match=r"speaks TLS on this port.* or redis://"):
            rmq.Client(url, retry_for=0, timeout=0.2).ping()
