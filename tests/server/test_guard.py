"""Checks of requests: names of the server, tokens, other sites."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

import rmq
from rmq.server.config import Address
from tests.server.running import PATIENCE_S, ask, serving, until
from tests.servers import Server as Redis

TOKEN = "0123456789abcdef" * 4
TOPICS = "/api/v1/topics"


@pytest.fixture(scope="module")
def open_url(server: Redis) -> Iterator[str]:
    with serving(server.url, "open", hosts=("rmq.internal",)) as running:
        yield running.url


@pytest.fixture(scope="module")
def closed_url(server: Redis) -> Iterator[str]:
    with serving(server.url, "closed", token=TOKEN) as running:
        until(lambda: ask(running.url + "/readyz").status == 200, "ready")
        yield running.url


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:8800", "[::1]:8800", "[::1]", "LOCALHOST:1", "rmq.internal:80"]
)
def test_names_of_the_server_are_answered(open_url: str, host: str) -> None:
    assert ask(open_url + TOPICS, headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "localhost.evil.test",
        "127.0.0.1.evil.test",
        "[::2]",
        "",
        "localhost.",
        "[",
        "@",
    ],
)
@pytest.mark.parametrize("path", [TOPICS, "/metrics", "/", "/api/v1/openapi.json"])
def test_other_names_are_misdirected(open_url: str, host: str, path: str) -> None:
    refused = ask(open_url + path, headers={"Host": host})
    assert (refused.status, refused.body["type"]) == (421, "urn:rmq:error:other-host")


def test_two_names_are_none(open_url: str) -> None:
    at = urlsplit(open_url)
    connection = http.client.HTTPConnection(str(at.hostname), at.port, timeout=PATIENCE_S)
    connection.putrequest("GET", TOPICS, skip_host=True)
    connection.putheader("Host", "localhost")
    connection.putheader("Host", "evil.test")
    connection.endheaders()
    assert connection.getresponse().status in (400, 421)
    connection.close()


def test_probes_are_answered_under_any_name_and_without_a_token(closed_url: str) -> None:
    for path in ("/livez", "/readyz"):
        assert ask(closed_url + path, headers={"Host": "10.0.0.7:8800"}).status == 200
    for path in ("/livez/", "/livez/../api/v1/topics", "//readyz", "/x/livez"):
        assert ask(closed_url + path).status == 401


# --- the token -------------------------------------------------------------------------------


def test_the_token_opens_and_nothing_else_does(closed_url: str) -> None:
    good = ask(closed_url + TOPICS, headers={"Authorization": f"Bearer {TOKEN}"})
    assert good.status == 200
    lower = ask(closed_url + "/metrics", headers={"Authorization": f"bearer {TOKEN}"})
    assert lower.status == 200


@pytest.mark.parametrize(
    "header",
    [
        None, "", "Bearer", "Bearer ", "Bearer null", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x",
        f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN.upper()}", "Bearer " + "a" * 8000,
        f"Bearer {TOKEN} {TOKEN}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [TOPICS, "/metrics", "/", "/api/v1/openapi.json", "/none"])
def test_without_the_token_nothing_is_told(closed_url: str, header: str | None, path: str) -> None:
    headers = {} if header is None else {"Authorization": header}

    refused = ask(closed_url + path, headers=headers)

    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert TOKEN not in str(refused.body)


@pytest.mark.parametrize("name", ["token", "access_token", "authorization"])
def test_a_token_in_the_url_is_none(closed_url: str, name: str) -> None:
    assert ask(f"{closed_url}{TOPICS}?{name}={TOKEN}").status == 401


def test_a_server_that_others_reach_asks_everybody_for_a_token(server: Redis) -> None:
    everywhere = Address("0.0.0.0", 0)
    with (
        pytest.raises(rmq.ConfigurationError, match="every client could do everything"),
        serving(server.url, "none", listen=everywhere, auth="none"),
    ):
        raise AssertionError
    with serving(server.url, "any", listen=everywhere, hosts=("*",)) as running:
        at = f"http://127.0.0.1:{urlsplit(running.url).port}"
        assert ask(at + TOPICS).status == 401
        with rmq.Client(server.url, prefix="any") as client:
            token = client.admin.token_create("first", "admin").text
        headers = {"Authorization": f"Bearer {token}", "Host": "any.test"}
        until(lambda: ask(at + TOPICS, headers=headers).status == 200, "the token")


# --- other sites -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({"Sec-Fetch-Site": "same-origin"}, 400),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Sec-Fetch-Site": ""}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://localhost:8800", "Host": "localhost:8800"}, 400),
        ({"Origin": "https://localhost:8800", "Host": "localhost:8800"}, 400),
        ({"Origin": "http://localhost:8801", "Host": "localhost:8800"}, 403),
        ({"Origin": "http://evil.test"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "null", "Sec-Fetch-Site": "same-origin"}, 400),
        ({"Origin": "http://evil.test", "Sec-Fetch-Site": "same-origin"}, 403),
    ],
)
def test_writes_that_another_site_asks_for_are_refused(
    open_url: str, headers: dict[str, str], status: int
) -> None:
    for method in ("POST", "PATCH", "DELETE"):
        path = {"POST": TOPICS, "PATCH": f"{TOPICS}/t/settings", "DELETE": f"{TOPICS}/t"}[method]
        body: Any = None if method == "DELETE" else {}
        assert ask(open_url + path, method, body, headers).status == status


def test_answers_are_for_no_other_site(open_url: str) -> None:
    for path in (TOPICS, "/livez", "/none"):
        headers = ask(open_url + path, headers={"Origin": "http://evil.test"}).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert not [name for name in headers if name.lower().startswith("access-control")]
