"""The server below a path of a reverse proxy: links, redirects, cookies, files and streams."""

from __future__ import annotations

import json
import re
import urllib.request
from urllib.parse import quote

import pytest

import rmq
from rmq.errors import ConfigurationError
from rmq.http_framework.scope import path_of
from rmq.server import ServerConfig
from tests.server.console.fetching import csrf_of, fetch
from tests.server.proxy import proxied
from tests.server.running import PATIENCE_S, get, serving
from tests.servers import Server as Redis

ADDRESS = re.compile(r'(?:href|src|action)="([^"#][^"]*)"')


@pytest.mark.parametrize("strips", [True, False], ids=["taken away", "left"])
def test_a_person_signs_in_and_acts_below_a_path(
    server: Redis, prefix: str, client: rmq.Client, strips: bool
) -> None:
    client.topic("orders").open()
    token = client.admin.token_create("ann", "operator").text
    settings = {"auth": "token", "root_path": "/rmq", "proxy_addresses": ("127.0.0.1/32",)}
    with (
        serving(server.url, prefix, **settings) as running,
        proxied(running.url, "/rmq", strips) as outside,
    ):
        wanted = "/rmq/console/topics/orders"
        asked = fetch(outside + wanted)
        sign_in = asked.headers["Location"]
        form = {"csrf": csrf_of(fetch(outside + sign_in).text), "token": token}
        form["then"] = "/console/topics/orders"
        origin = outside.replace("http:", "https:")

        signed_in = fetch(outside + "/rmq/console/signin", form, Origin=origin)

        assert sign_in == "/rmq/console/signin?then=" + quote("/console/topics/orders", safe="")
        assert signed_in.headers["Location"] == wanted
        cookie = signed_in.headers["Set-Cookie"]
        assert cookie.startswith("__Secure-rmq_session_below=")
        assert "; Path=/rmq; " in cookie
        assert cookie.endswith("; Secure")
        session = cookie.partition(";")[0]
        page = fetch(outside + wanted, Cookie=session).text
        addresses = ADDRESS.findall(page)
        assert len(addresses) > 10
        assert [each for each in addresses if not each.startswith(("/rmq/console", "?"))] == []
        for each in addresses:
            if "/static/" in each:
                assert fetch(outside + each).status == 200

        done = fetch(
            outside + wanted + "/pause", {"csrf": csrf_of(page), "verb": "receive"}, Cookie=session,
            Origin=origin,
        )  # fmt: skip

        assert done.headers["Location"] == wanted
        assert "; Path=/rmq; " in done.headers["Set-Cookie"]
        assert client.admin.settings("orders").paused is not None
        assert "192.0.2.7" in client.admin.audit_trail()[0].by
        stream = urllib.request.Request(
            outside + wanted, headers={"Accept": "text/event-stream", "Cookie": session}
        )
        with urllib.request.urlopen(stream, timeout=PATIENCE_S) as events:
            assert events.readline() == b"event: page\r\n"


def test_probes_and_programs_may_ask_with_the_path_and_without(server: Redis, prefix: str) -> None:
    with serving(server.url, prefix, root_path="/rmq") as running:
        for root in ("", "/rmq"):
            assert get(running.url + root + "/livez")[0] == 200
            document = get(running.url + root + "/api/v1/openapi.json")[1]
            assert document["servers"] == [{"url": "/rmq"}]
            assert "/rmq/console" in json.dumps(get(running.url + root + "/")[1])
        assert get(running.url + "/rmqx/livez")[0] == 404


def test_without_the_setting_a_path_of_a_proxy_is_unknown(server: Redis, prefix: str) -> None:
    with serving(server.url, prefix) as running:
        assert fetch(running.url + "/rmq/console", X_Forwarded_Prefix="/rmq").status == 404
        assert 'href="/console' in fetch(running.url + "/console", X_Forwarded_Prefix="/rmq").text


@pytest.mark.parametrize("text", ["rmq", "//evil.example", "/a b", "/a/../b?", "/console", "/é"])
def test_a_root_path_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="RMQ_SERVER_ROOT_PATH"):
        ServerConfig.load({}, {"RMQ_SERVER_ROOT_PATH": text}, "/dev/null")


@pytest.mark.parametrize(
    ("path", "root", "below"),
    [("/a/b", "/a", "/b"), ("/a", "/a", ""), ("/ab", "/a", "/ab"), ("/b", "/a", "/b"),
     ("/a/b", "", "/a/b"), ("/a/b", "/a/", "/b")],
)  # fmt: skip
def test_the_path_below_the_root_path(path: str, root: str, below: str) -> None:
    assert path_of({"path": path, "root_path": root}) == below
