"""The console in a WSGI application: pages and acts work, and live pages are fetched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

import rmq
from rmq.server import ConsoleApp
from tests.server.console import browsing
from tests.server.console.browsing import Window
from tests.server.console.fetching import csrf_of, fetch
from tests.server.hosting import principal, served_wsgi
from tests.server.running import PATIENCE_S, until
from tests.servers import Server as Redis

ROOT = "/admin/rmq"


@pytest.fixture
def url(server: Redis, prefix: str, client: rmq.Client) -> Iterator[str]:
    a2wsgi = pytest.importorskip("a2wsgi")
    client.topic("orders").open()
    app = ConsoleApp(server.url, prefix=prefix, principal=principal, streams=False)
    console = a2wsgi.ASGIMiddleware(app)

    def host(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == ROOT or path.startswith(ROOT + "/"):
            given = {**environ, "SCRIPT_NAME": ROOT, "PATH_INFO": path.removeprefix(ROOT)}
            answer: Iterable[bytes] = console(given, start_response)
            return answer
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"of the host"]

    with served_wsgi(host) as url:
        yield url
    asyncio.run_coroutine_threadsafe(app.aclose(), console.loop).result(PATIENCE_S)
    console.loop.call_soon_threadsafe(console.loop.stop)
    until(lambda: not console.loop.is_running(), "the end of the loop")


def test_pages_and_acts_work_in_a_wsgi_application(url: str, client: rmq.Client) -> None:
    page = url + ROOT + "/console/topics/orders"
    text = fetch(page, Cookie="user=oli").text
    form = {"csrf": csrf_of(text), "verb": "receive"}

    assert f'href="{ROOT}/console' in text
    assert fetch(page + "/pause", form, Cookie="user=vic", Origin=url).status == 403
    assert fetch(page + "/pause", form, Cookie="user=oli").status == 403, "no Origin"
    assert fetch(page).status == 403
    done = fetch(page + "/pause", form, Cookie="user=oli", Origin=url)

    assert (done.status, done.headers["Location"]) == (303, ROOT + "/console/topics/orders")
    paused = client.admin.settings("orders").paused
    assert paused is not None
    assert paused.by == "oli"
    exported = fetch(url + ROOT + "/api/v1/topics", Cookie="user=vic")
    assert '"orders"' in exported.text
    assert fetch(url + "/other").text == "of the host"


def test_a_stream_is_refused_where_it_would_hold_a_thread(url: str) -> None:
    shown = fetch(url + ROOT + "/console", Cookie="user=vic", Accept="text/event-stream")

    assert shown.status == 406


@pytest.mark.slow
def test_a_browser_fetches_pages_that_cannot_be_streamed(url: str, client: rmq.Client) -> None:
    with browsing.started() as browser, Window(browser, url) as window:
        window.page.context.add_cookies([{"name": "user", "value": "oli", "url": url}])
        window.page.goto(url + ROOT + "/console/topics/orders/messages")
        assert "No message is waiting" in window.page.inner_text("main")

        id = str(client.topic("orders").send("hello").id)

        window.page.wait_for_selector(f"main :text('{id[-6:]}')")
        assert [
            each for each in window.complaints if "406" not in each and "EventSource" not in each
        ] == []
