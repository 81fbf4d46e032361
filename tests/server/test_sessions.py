"""Sessions of browsers: how they begin and end, and what other sites cannot do with them."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import rmq
from rmq.http_framework import problems
from rmq.http_framework.principal import principal_of
from rmq.http_framework.scope import csrf_matches, csrf_token
from rmq.server import authentication as server_authentication, guard, sessions
from rmq.server.authentication import Authentication
from rmq.server.config import Address
from rmq.server.guard import Guard
from rmq.server.listener import Listener
from rmq.server.sessions import sign_in, sign_out
from tests.server.running import PATIENCE_S, ask, until
from tests.servers import Server as Redis

OWN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def url(server: Redis, prefix: str) -> Iterator[str]:
    """A server with pages to sign in and out, to look, to act, and to stay."""
    authentication = Authentication("token")

    async def signs_in(request: Request) -> Response:
        try:
            cookie = await sign_in(request.scope, (await request.body()).decode())
        except problems.ApiError as error:
            return problems.answer(error, "")
        return JSONResponse({}, headers={"Set-Cookie": cookie})

    async def signs_out(request: Request) -> Response:
        return JSONResponse({}, headers={"Set-Cookie": await sign_out(request.scope)})

    async def tells(request: Request) -> Response:
        found = principal_of(request.scope)
        csrf = csrf_token(request.scope)
        assert csrf_matches(request.scope, csrf)
        assert not csrf_matches(request.scope, "")
        return JSONResponse({"name": found.name, "kind": found.kind, "csrf": csrf})

    async def stays(request: Request) -> Response:
        async def ticks() -> AsyncIterator[str]:
            while True:
                yield "tick\n"
                await asyncio.sleep(0.1)

        return StreamingResponse(ticks())

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with rmq.AsyncClient(server.url, prefix=prefix) as client:
            authentication.open(client)
            yield
            authentication.close()

    application = Starlette(
        routes=[
            Route("/console/signin", signs_in, methods=["POST"]),
            Route("/console/signout", signs_out, methods=["POST"]),
            Route("/api/look", tells, methods=["GET", "POST"]),
            Route("/api/stay", stays),
        ],
        middleware=[Middleware(Guard, hosts=("127.0.0.1",), authentication=authentication)],
        lifespan=lifespan,
    )
    listener = Listener(application, Address("127.0.0.1", 0))
    listener.start()
    yield listener.url
    listener.stop(10)


def signed_in(url: str, token: str, **headers: str) -> str:
    """The text of the cookie of a new session."""
    done = ask(url + "/console/signin", "POST", token.encode(), OWN | headers)
    assert done.status == 200, done
    return str(done.headers["Set-Cookie"])


def cookie(text: str) -> dict[str, str]:
    return {"Cookie": text.partition(";")[0]}


def look(url: str, headers: dict[str, str], method: str = "GET", body: Any = None) -> Any:
    return ask(url + "/api/look", method, body, headers)


def test_a_browser_signs_in_looks_and_signs_out(url: str, client: rmq.Client) -> None:
    token = client.admin.token_create("anna", "operator").text

    text = signed_in(url, token)
    found = look(url, cookie(text))

    assert (found.body["name"], found.body["kind"]) == ("anna", "session")
    words = set(text.split("; ")[1:])
    assert words == {"Path=/", "HttpOnly", "SameSite=Strict", "Max-Age=604800"}
    stored = client._transport.raw_command("t", "KEYS", f"{client._prefix}:session:*")
    assert len(stored) == 1
    assert text.partition("=")[2].partition(";")[0].encode() not in stored[0]
    out = ask(url + "/console/signout", "POST", b"", OWN | cookie(text))
    assert "Max-Age=0" in out.headers["Set-Cookie"]
    assert look(url, cookie(text)).status == 401


def test_by_https_the_cookie_is_secure_and_of_this_host_alone(url: str, client: rmq.Client) -> None:
    token = client.admin.token_create("anna").text
    host = url.removeprefix("http://")

    text = signed_in(url, token, Origin=f"https://{host}")

    assert text.startswith("__Host-rmq_session=")
    assert text.endswith("; Secure")
    tossed = {"Cookie": "rmq_session=other; " + text.partition(";")[0]}
    assert look(url, tossed).body["name"] == "anna"
    twice = {"Cookie": text.partition(";")[0] + "; " + text.partition(";")[0]}
    assert look(url, twice).status == 401


@pytest.mark.parametrize("wrong", ["", "x", "rmq_session=", "rmq_session=x", "rmq_session=*"])
def test_another_cookie_is_nobodys(url: str, wrong: str) -> None:
    assert look(url, {"Cookie": wrong}).status == 401


def test_a_write_by_cookie_must_come_from_a_page_of_this_server(
    url: str, client: rmq.Client
) -> None:
    tokens = [client.admin.token_create(name).text for name in ("anna", "eve")]
    mine, other = (cookie(signed_in(url, token)) for token in tokens)
    csrf = look(url, mine).body["csrf"]
    own = {"Origin": url}

    def status(**headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return int(look(url, mine | named, "POST", {}).status)

    assert status(Sec_Fetch_Site="same-origin", X_RMQ_CSRF=csrf) == 200
    assert status(**own, X_RMQ_CSRF=csrf) == 200
    assert status(X_RMQ_CSRF=csrf) == 403
    assert status(Sec_Fetch_Site="same-origin") == 403
    assert status(Sec_Fetch_Site="same-site", X_RMQ_CSRF=csrf) == 403
    assert status(Origin="http://evil.test", X_RMQ_CSRF=csrf) == 403
    assert status(Origin="null", X_RMQ_CSRF=csrf) == 403
    assert status(Sec_Fetch_Site="same-origin", X_RMQ_CSRF=csrf[:-1]) == 403
    theirs = look(url, other).body["csrf"]
    assert theirs != csrf
    assert status(Sec_Fetch_Site="same-origin", X_RMQ_CSRF=theirs) == 403


def test_a_form_of_another_site_signs_nobody_in(url: str, client: rmq.Client) -> None:
    token = client.admin.token_create("anna").text.encode()
    for headers in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.test"}):
        assert ask(url + "/console/signin", "POST", token, headers).status == 403


@pytest.mark.usefixtures("no_refill")
def test_signing_in_is_tried_five_times_at_once(url: str) -> None:
    tries = [ask(url + "/console/signin", "POST", b"no", OWN) for _ in range(7)]

    assert [each.status for each in tries] == [401] * 5 + [429] * 2
    assert 1 <= int(tries[-1].headers["Retry-After"]) <= 10


@pytest.mark.usefixtures("no_refill")
def test_a_session_is_let_in_whatever_others_send_from_its_address(
    url: str, client: rmq.Client
) -> None:
    mine = cookie(signed_in(url, client.admin.token_create("anna").text))
    for wrong in ({"Authorization": "Bearer wrong"}, {"Cookie": "rmq_session=wrong"}):
        statuses = {look(url, wrong).status for _ in range(guard.FAILURES + 1)}
        assert 429 in statuses

    assert look(url, mine).status == 200


def test_a_session_and_a_stream_end_with_their_token(url: str, client: rmq.Client) -> None:
    assert server_authentication.KEPT_S + guard.STREAM_CHECK_S <= 5
    token = client.admin.token_create("anna").text
    mine = cookie(signed_in(url, token))
    request = urllib.request.Request(url + "/api/stay", headers=mine)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as stream:
        assert stream.readline() == b"tick\n"

        client.admin.token_revoke("anna")
        ticks = 0
        try:
            while stream.readline() and ticks < 600:
                ticks += 1
        except OSError:
            pass

    assert ticks < 600, "a minute of the server's time"
    until(lambda: look(url, mine).status == 401, "the end of the session")


def test_a_session_ends_after_a_week_however_much_it_is_used(
    url: str, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = cookie(signed_in(url, client.admin.token_create("anna").text))
    assert look(url, mine).status == 200

    monkeypatch.setattr(sessions, "WHOLE_S", 0)

    assert look(url, mine).status == 401
