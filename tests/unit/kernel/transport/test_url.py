import pytest

from rmq.errors import ConfigurationError
from rmq.kernel.transport import url


def test_a_password_is_redacted_anywhere_in_a_text() -> None:
    for text in (
        "redis://u:s3@cret@h/0",
        "x rediss://:s3cret@h y",
        "redis://h?password=s3cret&a=1",
    ):
        assert "cret" not in url.redact(text)


def test_the_url_of_a_cluster_names_nodes() -> None:
    address = url.parse("redis+cluster://h1:7000,h2,[::1]:7002/0?protocol=3")

    assert address.nodes == (("h1", 7000), ("h2", 6379), ("::1", 7002))
    assert address.of_a_node.url == "redis://h1:7000?protocol=3"


def test_user_password_tls_and_options_of_a_cluster_hold_for_each_node() -> None:
    address = url.parse(
        "rediss+cluster://u:p%40w@h1:7000,h2:7001?ssl_ca_certs=/ca&max_connections=3"
    )

    assert address.of_a_node.url == "rediss://u:p%40w@h1:7000?ssl_ca_certs=/ca&max_connections=3"
    assert address.of_a_node.scheme == "rediss"
    assert address.max_connections == 3
    assert "p%40w" not in address.shown
    assert "h2:7001" in address.shown


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("redis+cluster://h1:7000/1", "no database but 0"),
        ("redis+cluster://u:secret@h1:7000,", "is no node"),
        ("redis+cluster://h1:x", "is no node"),
        ("redis+cluster://", "is no node"),
        ("redis+cluster://h1:7000?retry=1", "RMQ's to set"),
    ],
)
def test_the_url_of_a_cluster_that_cannot_work_is_refused(given: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        url.parse(given)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("given", ["redis://u:secret@[::1/0", "rediss://[::1"])
def test_a_host_that_cannot_be_read_is_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match="IPv6 address in brackets") as caught:
        url.parse(given)
    assert "secret" not in str(caught.value)
