"""The console and the API mounted in Starlette and FastAPI, with the users of the host."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from starlette.requests import HTTPConnection

import rmq
from rmq.errors import ConfigurationError
from rmq.server import ConsoleApp, Principal, Role
from tests.server.console.fetching import Shown, csrf_of, fetch
from tests.server.hosting import principal, served
from tests.server.running import PATIENCE_S, Answer, ask, dead, until
from tests.servers import Server as Redis

ROOT = "/admin/rmq"
ADDRESS = re.compile(r'(?:href|src|action)="([^"#][^"]*)"')


def host(kind: str, mounts: dict[str, ConsoleApp]) -> Any:
    """An application of a framework with a page to sign in and consoles."""
    if kind == "fastapi":
        fastapi = pytest.importorskip("fastapi")
        app = fastapi.FastAPI()
        app.add_api_route("/login", lambda next: {"sign in": next})
    else:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse
        from starlette.routing import Route

        def login(request: Any) -> JSONResponse:
            return JSONResponse({"sign in": request.query_params["next"]})

        app = Starlette(routes=[Route("/login", login)])
    for root, console in mounts.items():
        app.mount(root, console)
    return app


def made(redis: Redis, prefix: str, **options: Any) -> ConsoleApp:
    given = {"principal": principal, "sign_in_url": "/login?next={path}"} | options
    return ConsoleApp(redis.url, prefix=prefix, **given)


class Scene(NamedTuple):
    """A host with a console, and its users."""

    url: str
    client: rmq.Client

    def fetch(self, path: str, user: str = "", form: dict[str, str] | None = None) -> Shown:
        headers = {"Cookie": f"user={user}"} if user else {}
        return fetch(self.url + path, form, Origin=self.url, **headers)

    def ask(self, path: str, user: str = "", method: str = "GET", **headers: str) -> Answer:
        given = headers | ({"Cookie": f"user={user}"} if user else {})
        body = {} if method == "POST" else None
        return ask(self.url + ROOT + "/api/v1" + path, method, body, given)


@pytest.fixture(params=["starlette", pytest.param("fastapi", marks=pytest.mark.slow)])
def scene(
    request: pytest.FixtureRequest, server: Redis, prefix: str, client: rmq.Client
) -> Iterator[Scene]:
    client.topic("orders").open()
    with served(host(request.param, {ROOT: made(server, prefix)})) as url:
        yield Scene(url, client)


@pytest.fixture
def plain(server: Redis, prefix: str, client: rmq.Client) -> Iterator[Scene]:
    client.topic("orders").open()
    with served(host("starlette", {ROOT: made(server, prefix)})) as url:
        yield Scene(url, client)


def test_all_links_of_a_mounted_page_lead_below_its_mount(scene: Scene) -> None:
    for path in ("", "/topics/orders", "/dead-letters", "/health", "/tokens", "/jobs"):
        shown = scene.fetch(ROOT + "/console" + path, "ann")

        assert shown.status == 200, path
        addresses = ADDRESS.findall(shown.text)
        assert [each for each in addresses if not each.startswith((ROOT + "/console", "?"))] == []
        assert "signout" not in shown.text
        for each in addresses:
            if "/static/" in each:
                assert scene.fetch(each, "ann").status == 200, each
    assert scene.fetch(ROOT + "/", "ann").headers["Location"] == ROOT + "/console"
    assert scene.fetch(ROOT + "/console/signin", "ann").status == 404


def test_an_act_is_done_in_the_name_of_the_host_s_user(scene: Scene) -> None:
    page = ROOT + "/console/topics/orders"
    csrf = csrf_of(scene.fetch(page, "oli").text)

    assert scene.fetch(page + "/pause", "oli", {"verb": "receive"}).status == 403
    assert scene.fetch(page + "/pause", "vic", {"csrf": csrf, "verb": "receive"}).status == 403
    assert scene.client.admin.settings("orders").paused is None
    done = scene.fetch(page + "/pause", "oli", {"csrf": csrf, "verb": "receive"})

    assert (done.status, done.headers["Location"]) == (303, page)
    assert f"; Path={ROOT}; " in done.headers["Set-Cookie"]
    paused = scene.client.admin.settings("orders").paused
    assert paused is not None
    assert paused.by == "oli"
    trail = [(line.by, line.what) for line in scene.client.admin.audit_trail()]
    assert ("oli (host, 127.0.0.1)", "pause") in trail


def test_a_mounted_page_is_live(scene: Scene) -> None:
    request = urllib.request.Request(
        scene.url + ROOT + "/console/topics/orders/messages",
        headers={"Accept": "text/event-stream", "Cookie": "user=vic"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        id = str(scene.client.topic("orders").send("hello").id)

        until(lambda: id in stream.readline().decode(), "the message in the stream")


def test_who_is_unknown_is_sent_to_the_page_of_the_host(scene: Scene) -> None:
    path = ROOT + "/console/topics/orders?window=1h&x=a%26b"

    shown = scene.fetch(path)

    location = shown.headers["Location"]
    assert (shown.status, location) == (303, "/login?next=" + quote(path, safe=""))
    assert json.loads(scene.fetch(location).text) == {"sign in": path}
    assert scene.fetch(ROOT + "/console/nothing-here").status == 303
    assert scene.fetch(ROOT + "/console/topics/orders/pause", "", {}).status == 303
    refused = scene.ask("/topics")
    assert refused.status == 403
    assert "WWW-Authenticate" not in refused.headers
    assert scene.ask("/topics", "vic").body["topics"] == ["orders"]


def test_a_role_of_the_host_s_user_holds_for_pages_and_for_the_api(plain: Scene) -> None:
    assert plain.fetch(ROOT + "/console/tokens", "oli").status == 403
    assert plain.fetch(ROOT + "/console/tokens", "ann").status == 200
    assert plain.ask("/topics/orders", "oli", "DELETE", Origin=plain.url).status == 403
    assert plain.client.admin.topics() == ["orders"]


def test_a_viewer_of_the_host_sees_no_bodies(plain: Scene) -> None:
    plain.client.admin.topic_delete("orders")
    dead(plain.client)
    path = ROOT + "/console/topics/orders/dead-letters"

    seen = {user: "{&#34;n&#34;:" in plain.fetch(path, user).text for user in ("vic", "oli")}

    assert seen == {"vic": False, "oli": True}


def test_other_sites_cannot_use_the_cookie_of_the_host(plain: Scene) -> None:
    page = ROOT + "/console/topics/orders"
    csrf = csrf_of(plain.fetch(page, "ann").text)
    form = {"csrf": csrf, "verb": "receive"}
    for headers in ({"Origin": "http://evil.example"}, {"Sec_Fetch_Site": "cross-site"}, {}):
        shown = fetch(plain.url + page + "/pause", form, Cookie="user=ann", **headers)
        assert shown.status == 403, headers
    for given in ({"Origin": plain.url}, {"X-RMQ-CSRF": csrf}, {}):
        assert plain.ask("/topics/orders/pause", "ann", "POST", **given).status == 403, given
    assert plain.client.admin.settings("orders").paused is None

    done = plain.ask(
        "/topics/orders/pause", "ann", "POST", **{"Origin": plain.url, "X-RMQ-CSRF": csrf}
    )

    assert done.status == 200, done.body
    assert plain.client.admin.settings("orders").paused is not None


def test_pages_of_the_host_s_page_have_all_headers(plain: Scene) -> None:
    for path in ("/console", "/console/nothing-here", "/api/v1/topics", "/"):
        headers = plain.fetch(ROOT + path, "ann").headers
        assert "default-src 'none'" in headers["Content-Security-Policy"], path
        assert headers["X-Content-Type-Options"] == "nosniff"
    assert plain.fetch("/login?next=x").headers["Content-Security-Policy"] is None


def test_two_consoles_of_one_host_keep_apart(server: Redis, prefix: str) -> None:
    with (
        rmq.Client(server.url, prefix=prefix + "a") as first,
        rmq.Client(server.url, prefix=prefix + "b") as second,
    ):
        first.topic("apples").open()
        second.topic("pears").open()
        mounts = {"/a": made(server, prefix + "a"), "/b": made(server, prefix + "b")}
        with served(host("starlette", mounts)) as url:
            scene = Scene(url, first)
            shown = {root: scene.fetch(root + "/console", "ann").text for root in mounts}
            csrf = csrf_of(scene.fetch("/a/console/topics/apples", "ann").text)
            crossed = scene.fetch(
                "/b/console/topics/pears/pause", "ann", {"csrf": csrf, "verb": "receive"}
            )

    assert ["apples" in shown["/a"], "pears" in shown["/a"]] == [True, False]
    assert ["apples" in shown["/b"], "pears" in shown["/b"]] == [False, True]
    assert crossed.status == 403, "each has a secret of its own"


def test_names_of_hosts_are_checked_unless_the_host_does(server: Redis, prefix: str) -> None:
    mounts = {
        "/own": made(server, prefix), "/named": made(server, prefix, hosts=["Shop.example"]),
        "/any": made(server, prefix, hosts=["*"]),
    }  # fmt: skip
    with served(host("starlette", mounts)) as url:
        statuses = {
            (root, name): fetch(f"{url}{root}/console", Host=name, Cookie="user=ann").status
            for root in mounts
            for name in ("127.0.0.1:80", "shop.example:8443", "evil.example")
        }

    assert [key for key, status in statuses.items() if status == 200] == [
        ("/own", "127.0.0.1:80"), ("/named", "127.0.0.1:80"), ("/named", "shop.example:8443"),
        ("/any", "127.0.0.1:80"), ("/any", "shop.example:8443"), ("/any", "evil.example"),
    ]  # fmt: skip


def test_without_a_page_to_sign_in_an_unknown_person_is_refused(server: Redis, prefix: str) -> None:
    with served(host("starlette", {"/rmq": made(server, prefix, sign_in_url=None)})) as url:
        shown = fetch(url + "/rmq/console")

        assert shown.status == 403
        assert "Sign in" not in shown.text
        assert "Overview" not in shown.text


def test_a_plain_function_runs_in_a_thread_and_its_errors_let_nobody_in(
    server: Redis, prefix: str
) -> None:
    def find(connection: HTTPConnection) -> Principal | None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        name = connection.cookies["user"]
        role: Any = "root" if name == "eve" else Role.VIEWER
        return Principal("" if name == "nobody" else name, role)

    with served(host("starlette", {"/rmq": made(server, prefix, principal=find)})) as url:
        statuses = {
            user: fetch(url + "/rmq/console", Cookie=f"user={user}").status
            for user in ("ann", "eve", "nobody")
        }
        without = fetch(url + "/rmq/console")

    assert statuses == {"ann": 200, "eve": 403, "nobody": 403}
    assert without.status == 500
    assert "KeyError" not in without.text


@pytest.mark.parametrize("ends", ["left", "demoted", "error"])
def test_a_live_page_ends_with_the_right_of_its_user(server: Redis, prefix: str, ends: str) -> None:
    users: dict[str, Principal | None] = {"ann": Principal("ann", Role.ADMIN)}

    async def find(connection: HTTPConnection) -> Principal | None:
        return users["ann"]

    with served(host("starlette", {"/rmq": made(server, prefix, principal=find)})) as url:
        request = urllib.request.Request(
            url + "/rmq/console/jobs", headers={"Accept": "text/event-stream"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as stream:
            assert stream.readline() == b"event: page\r\n"
            if ends == "error":
                del users["ann"]
            else:
                users["ann"] = None if ends == "left" else Principal("ann", Role.VIEWER)

            began = time.monotonic()
            with contextlib.suppress(http.client.IncompleteRead):
                stream.read()
            assert time.monotonic() - began < 200, "a stream goes on for ten minutes otherwise"


def connections(client: rmq.Client) -> int:
    return int(client.server_info("clients")["connected_clients"])


async def status(app: Any, path: str) -> int:
    """Ask an application without a server for a page as ann."""
    statuses: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [(b"host", b"localhost"), (b"cookie", b"user=ann")]
    scope = {
        "type": "http", "method": "GET", "path": path, "headers": headers, "query_string": b"",
        "asgi": {"version": "3.0"}, "scheme": "http", "client": ("127.0.0.1", 1),
        "server": ("localhost", 80), "root_path": "", "http_version": "1.1",
    }  # fmt: skip
    await app(scope, receive, send)
    return statuses[0]


def test_connections_are_closed_with_the_loop_or_before(
    server: Redis, prefix: str, client: rmq.Client
) -> None:
    app = made(server, prefix)
    client.ping()
    before = connections(client)

    async def life(closes: bool) -> tuple[int, int]:
        assert await status(app, "/console") == 200
        during = connections(client)
        if closes:
            await app.aclose()
            until(lambda: connections(client) == before, "the end of the connections")
            assert await status(app, "/console") == 200, "it opens again"
        return during, await status(app, "/console/health")

    for closes in (False, True):  # each in a loop of its own
        during, later = asyncio.run(life(closes))
        assert later == 200
        assert during > before
        until(lambda: connections(client) == before, "the end of the connections")


def test_a_client_of_the_host_is_used_and_left_open(
    server: Redis, prefix: str, client: rmq.Client
) -> None:
    client.topic("orders").open()

    async def life() -> tuple[int, list[str]]:
        async with rmq.AsyncClient(server.url, prefix=prefix) as own:
            app = ConsoleApp(own, principal=principal)
            found = await status(app, "/console/topics/orders")
            await app.aclose()
            return found, await own.admin.topics()

    assert asyncio.run(life()) == (200, ["orders"])


def test_it_may_be_the_whole_application(server: Redis, prefix: str) -> None:
    with served(made(server, prefix)) as url:
        assert fetch(url + "/console", Cookie="user=ann").status == 200
        assert fetch(url + "/").headers["Location"] == "/console"


@pytest.mark.parametrize(
    ("redis", "options"),
    [("http://x", {}), ("redis://localhost", {"prefix": "a b"}),
     ("redis://localhost", {"hosts": ["https://shop.example"]})],
)  # fmt: skip
def test_what_cannot_work_is_told_at_once(redis: str, options: Any) -> None:
    with pytest.raises((ConfigurationError, ValueError)):
        ConsoleApp(redis, principal=principal, **options)
