import pytest

import rmq
from rmq.sql import database as urls

SECRET = "hunter2-hunter2"


@pytest.mark.parametrize(
    "url",
    [
        f"nonsense {SECRET}",
        f"postgresql://u:{SECRET}@host:port/x",
        f"oracle://u:{SECRET}@host/x",
        f"{SECRET}://host/x",
        "",
    ],
)
def test_a_wrong_url_is_refused_and_not_shown(url):
    with pytest.raises(rmq.InvalidValue) as raised:
        urls.parse(url)

    assert "postgresql" in str(raised.value)
    if not url.startswith(SECRET):
        assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("sqlite+aiosqlite:////tmp/x", "sqlite:////tmp/x"),
        ("mysql+aiomysql://h/x", "mysql+pymysql://h/x"),
        ("postgresql+asyncpg://h/x", "postgresql+psycopg://h/x"),
        ("postgresql+psycopg://h/x", "postgresql+psycopg://h/x"),
    ],
)
def test_an_async_driver_is_replaced_by_a_plain_one(given, used):
    assert str(urls.parse(given)) == used


def test_a_driver_that_is_not_installed_is_named():
    url = urls.parse(f"postgresql+pg8000://u:{SECRET}@127.0.0.1/x")

    with pytest.raises(rmq.ConfigurationError, match="pg8000") as raised, urls.opened(url):
        pass
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "mysql+pymysql"])
@pytest.mark.parametrize("place", [":{secret}@127.0.0.1:1/x", "@127.0.0.1:1/x?password={secret}"])
def test_the_error_of_an_unreachable_database_has_no_password(scheme, place):
    url = urls.parse(f"{scheme}://u" + place.format(secret=SECRET))

    with pytest.raises(rmq.Unavailable) as raised, urls.opened(url):
        pass
    text = str(raised.value)
    assert "127.0.0.1:1" in text
    assert SECRET not in text
    assert raised.value.__cause__ is None
