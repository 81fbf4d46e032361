import pytest

from rmq.errors import ConfigurationError
from rmq.kernel.transport import url


def test_a_url_names_sentinels_service_database_and_two_passwords() -> None:
    address = url.parse(
        "redis+sentinel://me:p%40s@h1,h2:5000,[::1]:26380/orders%20db/3"
        "?sentinel_username=s&sentinel_password=a%26b&client_name=shop&max_connections=5"
    )

    found = address.sentinels
    assert found is not None
    assert found.hosts == (("h1", 26379), ("h2", 5000), ("::1", 26380))
    assert (found.service, found.username, found.password) == ("orders db", "s", "a&b")
    assert found.data_url.startswith("redis://me:p%40s@master.invalid/3?")
    assert "client_name=shop" in found.data_url
    assert "sentinel" not in found.data_url
    assert (address.max_connections, address.is_tls) == (5, False)


def test_tls_is_for_the_data_and_the_database_is_0_by_default() -> None:
    address = url.parse("REDISS+Sentinel://[fe80::1]/orders")

    assert address.is_tls
    assert address.sentinels is not None
    assert address.sentinels.hosts == (("fe80::1", 26379),)
    assert address.sentinels.data_url.startswith("rediss://master.invalid/0")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("redis+sentinel://h1,h2", "names no service; give the name"),
        ("redis+sentinel://h1,h2/", "names no service"),
        ("redis+sentinel://h1/orders/x", "a database number.*found 'x'"),
        ("redis+sentinel:///orders", "hosts with commas.*found ''"),
        ("redis+sentinel://h1,,h2/orders", "found ''"),
        ("redis+sentinel://::1/orders", "found '::1'.*in brackets"),
        ("redis+sentinel://h1:x/orders", "found 'h1:x'"),
        ("redis+sentinel://h1:0/orders", "sentinel h1 has no valid port"),
        ("redis+sentinel://h1:70000/orders", "sentinel h1 has no valid port"),
        ("redis+sentinel://h1:/orders", "sentinel h1 has no valid port"),
        ("redis+sentinel://h1/orders?sentinel_username=u", "needs sentinel_password"),
        ("redis+sentinel://h1/orders?retry=1", "option retry is RMQ's to set"),
    ],
)
def test_a_part_that_is_missing_or_malformed_is_named(given: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        url.parse(given)


@pytest.mark.parametrize("bad", ["h1:x/orders", "h1", "h1/orders/x"])
def test_no_password_is_shown(bad: str) -> None:
    given = f"redis+sentinel://me:s3@cret@{bad}?sentinel_password=s3@cret"
    with pytest.raises(ConfigurationError) as caught:
        url.parse(given)
    assert "cret" not in str(caught.value)

    address = url.parse("redis+sentinel://me:s3@cret@h1/orders?sentinel_password=s3@cret")
    assert "cret" not in repr(address) + repr(address.sentinels) + address.described
