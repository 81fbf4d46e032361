"""Rights over HTTP: tokens, roles, proxies, rates, and requests that other sites could send."""

from __future__ import annotations

import http.client
import time
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

import rmq
from rmq.http_framework import message
from rmq.http_framework.operation import Operation
from rmq.kernel.core import compression
from rmq.kernel.core.access import Role
from rmq.server import authentication, guard
from rmq.server.api import BASE, REFUSALS, TABLES
from tests.server.running import PATIENCE_S, Answer, ask, serving, until
from tests.servers import Server as Redis

STATIC = "0123456789abcdef" * 4
OPERATIONS = [each for table in TABLES for each in table.operations]
KNOWN = {
    "topic": "none", "id": "0" * 26, "run": "a" * 32, "name": "n", "job": "none.00000000",
    "fingerprint": "0" * 12,
}  # fmt: skip
TOPICS = BASE + "/topics"


# By role: the topics of its token.
ROLES: dict[str, list[str]] = {
    "producer": ["none"], "consumer": ["n*"], "viewer": [], "operator": [], "admin": [],
}  # fmt: skip


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class Scene(NamedTuple):
    """A server that asks for tokens, and one of each role."""

    url: str
    tokens: dict[str, str]
    client: rmq.Client

    def ask(self, who: str, path: str, *args: Any, headers: Any = None) -> Answer:
        return ask(self.url + path, *args, headers=bearer(self.tokens[who]) | (headers or {}))


@pytest.fixture(scope="module")
def scene(server: Redis) -> Iterator[Scene]:
    with (
        rmq.Client(server.url, prefix="auth") as client,
        serving(server.url, "auth", token=STATIC, redact=("card",), rate=100_000) as running,
    ):
        tokens = {
            role: client.admin.token_create(role, role, topics=topics).text
            for role, topics in ROLES.items()
        }
        tokens |= {
            "static": STATIC,
            "reader": client.admin.token_create("r", sees_bodies=True).text,
        }
        yield Scene(running.url, tokens, client)


# --- routes, methods and roles ---------------------------------------------------------------


def test_each_method_of_each_path_is_open_to_its_role_and_closed_to_others(scene: Scene) -> None:
    paths: dict[str, dict[str, Operation]] = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method] = each
    through, cases = [], 0
    for path, operations in paths.items():
        url = scene.url + BASE + path.format(**KNOWN)
        for method in ("GET", "HEAD", "POST", "PATCH", "DELETE", "PUT", "OPTIONS", "TRACE"):
            operation = operations.get("GET" if method == "HEAD" else method)
            body = b"{" if method in ("POST", "PATCH", "PUT") else None  # does nothing, if let in
            everybody = ("nobody", *ROLES)
            for who in everybody if operation else ("nobody", "admin"):
                cases += 1
                headers = {} if who == "nobody" else bearer(scene.tokens[who])
                status = ask(url, method, body, headers).status
                if method == "TRACE":
                    expected = {405}
                elif who == "nobody":
                    expected = {401}
                elif operation is None:
                    expected = {405}
                elif Role(who).includes(operation.role):
                    expected = {200, 400, 404, 409}
                else:
                    expected = {403}
                if status not in expected:
                    through.append((who, method, path, status))

    assert through == []
    assert cases > 500


@pytest.mark.parametrize("path", ["/metrics", "/", BASE + "/openapi.json", "/none", "/api/v1"])
def test_paths_without_an_operation_need_a_token_too(scene: Scene, path: str) -> None:
    assert ask(scene.url + path).status == 401
    assert scene.ask("viewer", path).status in (200, 404)


@pytest.mark.parametrize("name", ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"])
def test_a_header_does_not_change_the_method(scene: Scene, name: str) -> None:
    assert scene.ask("viewer", TOPICS, headers={name: "POST"}).status == 200
    assert scene.ask("viewer", TOPICS, "POST", {}, headers={name: "GET"}).status == 403
    scene.client.topic("kept").open()
    assert scene.ask("admin", TOPICS + "/kept?confirm=kept&_method=DELETE").status == 400
    assert "kept" in scene.client.admin.topics()


@pytest.mark.parametrize(
    "path",
    [
        "/livez/../api/v1/topics", "//api/v1/topics", "/livez%2f..%2fapi/v1/topics",
        "/console/../api/v1/topics", "/%61pi/v1/topics", "/api/v1/topics/", "/livez%00/",
        "/livez;/api/v1/topics", "/readyz/%2e%2e/metrics", "/LIVEZ", "/console%2f../metrics",
    ],
)  # fmt: skip
def test_no_other_spelling_of_a_path_leads_around_the_guard(scene: Scene, path: str) -> None:
    found = ask(scene.url + path)

    assert found.status in (303, 401, 404), found
    assert "topics" not in str(found.body)


# --- tokens --------------------------------------------------------------------------------------


def wrong_tokens(token: str) -> dict[str, str]:
    """Headers that resemble a right one, by what is wrong."""
    id, secret = token.removeprefix("rmq_").split("_")
    return {
        "empty": "", "no word": "Bearer", "null": "Bearer null", "undefined": "Bearer undefined",
        "a prefix": f"Bearer {token[:-1]}", "the id": f"Bearer rmq_{id}_",
        "one more": f"Bearer {token}0", "the secret": f"Bearer {secret}",
        "upper case": f"Bearer {token.upper()}", "another id": f"Bearer rmq_{'0' * 8}_{secret}",
        "another secret": f"Bearer rmq_{id}_{'0' * 64}", "basic": f"Basic {token}",
        "bare": token, "twice": f"Bearer {token} {token}", "a comma": f"Bearer {token}, {token}",
        "in quotes": f'Bearer "{token}"', "huge": "Bearer " + "a" * 8000,
        "no ASCII": f"Bearer {token[:-1]}\xe9", "a pattern": f"Bearer rmq_{id}_*",
    }  # fmt: skip


@pytest.mark.parametrize("wrong", wrong_tokens("rmq_0_0"))
def test_what_is_not_a_token_opens_nothing_and_is_told_nothing(scene: Scene, wrong: str) -> None:
    header = wrong_tokens(scene.tokens["admin"])[wrong]

    refused = ask(scene.url + TOPICS, headers={"Authorization": header})

    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert refused.body["detail"] == ask(scene.url + TOPICS).body["detail"]
    assert scene.tokens["admin"] not in str(refused.body)


def test_two_tokens_in_one_request_are_none(scene: Scene) -> None:
    at = urlsplit(scene.url)
    connection = http.client.HTTPConnection(str(at.hostname), at.port, timeout=PATIENCE_S)
    connection.putrequest("GET", TOPICS)
    for who in ("viewer", "admin"):
        connection.putheader("Authorization", f"Bearer {scene.tokens[who]}")
    connection.endheaders()

    assert connection.getresponse().status == 401
    connection.close()


@pytest.mark.parametrize("name", ["token", "access_token", "Authorization", "contains", "x"])
def test_a_token_in_a_url_is_refused_even_beside_a_right_one(scene: Scene, name: str) -> None:
    path = f"{TOPICS}?{name}={scene.tokens['viewer']}"

    assert ask(scene.url + path).status == 401
    assert scene.ask("admin", path).status == 400


def test_redis_has_no_token_but_its_digest(scene: Scene, server: Redis) -> None:
    with server.raw() as raw:
        stored = str(raw.hgetall("auth:tokens"))

    for who in ("viewer", "operator", "admin"):
        assert scene.tokens[who] not in stored
        assert scene.tokens[who].rpartition("_")[2] not in stored
    assert STATIC not in stored


def test_the_last_use_of_a_token_is_known(scene: Scene) -> None:
    made = scene.client.admin.token_create("used")
    assert made.used is None

    until(lambda: ask(scene.url + TOPICS, headers=bearer(made.text)).status == 200, "the token")

    (found,) = [each for each in scene.client.admin.tokens() if each.name == "used"]
    assert found.used is not None
    assert (found.text, made.text in repr(made)) == ("", False)


def test_a_token_that_is_revoked_opens_nothing_after_5_s(scene: Scene) -> None:
    assert authentication.KEPT_S <= 5, "so long what was read of it is used, and until then only"
    token = scene.client.admin.token_create("short", "admin").text
    until(lambda: ask(scene.url + TOPICS, headers=bearer(token)).status == 200, "the token")

    assert scene.client.admin.token_revoke("short") is True
    until(lambda: ask(scene.url + TOPICS, headers=bearer(token)).status == 401, "the end")

    assert scene.client.admin.token_revoke("short") is False


def test_a_token_ends_at_its_time(scene: Scene) -> None:
    token = scene.client.admin.token_create("brief", expires=2).text
    began = time.monotonic()
    until(lambda: ask(scene.url + TOPICS, headers=bearer(token)).status == 200, "the token")

    until(lambda: ask(scene.url + TOPICS, headers=bearer(token)).status == 401, "the end")

    assert time.monotonic() - began >= 1


def test_a_name_is_given_once_and_a_role_must_exist(scene: Scene) -> None:
    with pytest.raises(rmq.ConfigurationError, match="there is a token 'viewer'"):
        scene.client.admin.token_create("viewer", "admin")
    with pytest.raises(rmq.ConfigurationError, match="role: 'root'; use one of producer"):
        scene.client.admin.token_create("other", "root")
    with pytest.raises(rmq.ConfigurationError, match="name"):
        scene.client.admin.token_create("a b")


@pytest.mark.parametrize(
    ("role", "topics", "said"),
    [
        ("producer", [], "names its topics"), ("viewer", ["orders"], "is for all topics"),
        ("consumer", ["a b"], "a pattern has"), ("consumer", [""], "a pattern has"),
        ("consumer", [7], "a pattern has"), ("consumer", "orders", "give a list"),
        ("consumer", [f"t{n}" for n in range(101)], "at most 100"),
    ],
)  # fmt: skip
def test_topics_of_a_token_are_those_of_its_role(
    scene: Scene, role: str, topics: Any, said: str
) -> None:
    with pytest.raises(rmq.ConfigurationError, match=said):
        scene.client.admin.token_create("topical", role, topics=topics)
    assert "topical" not in [each.name for each in scene.client.admin.tokens()]


def test_while_redis_is_away_tokens_hold_no_more_and_the_static_one_does(
    own_server: Redis, prefix: str
) -> None:
    with rmq.Client(own_server.url, prefix=prefix) as client:
        token = client.admin.token_create("t").text
    with serving(own_server.url, prefix, token=STATIC) as running:
        metrics = running.url + "/metrics"
        until(lambda: ask(metrics, headers=bearer(token)).status == 200, "the token")

        own_server.kill()

        until(lambda: ask(metrics, headers=bearer(token)).status == 503, "no answer of Redis")
        assert ask(metrics, headers=bearer(STATIC)).status == 200
        own_server.start()
        until(lambda: ask(metrics, headers=bearer(token)).status == 200, "the token")


# --- what a role is shown ------------------------------------------------------------------------


def test_a_viewer_sees_messages_without_bodies(scene: Scene) -> None:
    topic = scene.client.topic("shown")
    sent = topic.send({"card": "visa", "n": 1}, headers={"Card": "x", "k": "v"})
    path = f"{TOPICS}/shown/messages/{sent.id}"

    readers = [who for who in scene.tokens if scene.ask(who, path).status == 200]
    bodies = {who: scene.ask(who, path).body["body"]["text"] for who in readers}
    headers = {who: scene.ask(who, path).body["headers"]["Card"] for who in readers}

    assert bodies == {
        "viewer": "(hidden)", "reader": '{"card": "***", "n": 1}',
        "operator": '{"card": "***", "n": 1}', "admin": '{"card": "visa", "n": 1}',
        "static": '{"card": "visa", "n": 1}',
    }  # fmt: skip
    assert headers == {
        "viewer": "***", "reader": "***", "operator": "***", "admin": "x", "static": "x",
    }  # fmt: skip
    for where in (f"{TOPICS}/shown/messages", f"{TOPICS}/shown/peek"):
        assert "visa" not in str(scene.ask("viewer", where).body)


def test_acked_messages_are_hidden_and_redacted_as_others_are(scene: Scene) -> None:
    topic = scene.client.topic("acked-cards", history=rmq.History(keep="1h", max_bytes="1MiB"))
    topic.send({"card": "visa", "n": 1}, headers={"Card": "x"})
    with topic.consumer() as consumer:
        consumer.ack(consumer.receive(1, wait=1))

    shown = {}
    for who in ("viewer", "reader", "admin"):
        (found,) = scene.ask(who, f"{TOPICS}/acked-cards/history").body["messages"]
        shown[who] = found["body"]["text"], found["headers"]["Card"]
    assert shown == {
        "viewer": ("(hidden)", "***"), "reader": ('{"card": "***", "n": 1}', "***"),
        "admin": ('{"card": "visa", "n": 1}', "x"),
    }  # fmt: skip


def test_nothing_is_decoded_of_bodies_that_are_hidden(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = scene.client.topic("packed", codec=rmq.Compressed("bytes"))
    ids = [topic.send(bytes(200_000)).id for _ in range(3)]
    with topic.consumer() as consumer:
        consumer.receive()[0].reject("why")
    read: list[int] = []

    def beginning(how: int, data: bytes, most: int) -> bytes:
        read.append(most)
        return zlib.decompressobj().decompress(data, most)

    def refused(how: int, data: bytes, most: int) -> bytes:
        raise AssertionError("all of a body is decompressed")

    monkeypatch.setattr(compression, "decompress_beginning", beginning)
    monkeypatch.setattr(compression, "decompress", refused)
    paths = [
        f"{TOPICS}/packed/{rest}"
        for rest in ("messages", "peek", "dead-letters", f"messages/{ids[2]}")
    ]

    for path in paths:
        assert scene.ask("viewer", path).status == 200
    assert read == []
    for path in paths:
        assert scene.ask("operator", path).status == 200
    assert read == [message.SHOWN_MAX + 1] * 6


def test_a_viewer_does_not_find_out_bodies_by_filters(scene: Scene) -> None:
    topic = scene.client.topic("asked")
    topic.send({"n": 1})
    with topic.consumer() as consumer:
        consumer.receive()[0].reject("why")
    path = f"{TOPICS}/asked/dead-letters?filter="

    assert scene.ask("viewer", path + "body.n=1").status == 403
    assert scene.ask("viewer", path + "body.n=").status == 400
    assert len(scene.ask("reader", path + "body.n=1").body["messages"]) == 1
    assert scene.ask("operator", path + "body.card=1").status == 403


# --- proxies -------------------------------------------------------------------------------------

PROXY = {
    "auth": "proxy", "proxy_addresses": ("127.0.0.1/32",), "proxy_user_header": "X-User",
    "proxy_role_header": "X-Groups",
}  # fmt: skip


def test_the_proxy_names_users_and_their_roles(server: Redis, prefix: str) -> None:
    with serving(server.url, prefix, token=STATIC, **PROXY) as running:

        def status(method: str = "GET", **headers: str) -> int:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            body = {"name": "t"} if method == "POST" else None
            return ask(running.url + TOPICS, method, body, named).status

        assert status() == 401
        assert status(X_User="anna", X_Groups="viewer") == 200
        assert status("POST", X_User="anna", X_Groups="operator, viewer") == 403
        assert status("POST", X_User="anna", X_Groups="dev,admin") == 201
        assert status(X_User="anna", X_Groups="dev") == 403
        assert status(X_User="anna") == 403
        assert status(X_User="") == 403
        assert status(X_Groups="admin") == 401
        assert status(Authorization=f"Bearer {STATIC}") == 200


@pytest.mark.parametrize("name", ["X-User", "X-Groups"])
def test_a_header_of_the_proxy_that_comes_twice_is_refused(
    server: Redis, prefix: str, name: str
) -> None:
    with serving(server.url, prefix, **PROXY) as running:
        at = urlsplit(running.url)
        connection = http.client.HTTPConnection(str(at.hostname), at.port, timeout=PATIENCE_S)
        connection.putrequest("GET", TOPICS)
        for given, value in (("X-User", "anna"), ("X-Groups", "viewer")):
            connection.putheader(given, value)
        connection.putheader(name.lower(), "admin")  # of the client
        connection.endheaders()

        refused = connection.getresponse()

        assert refused.status == 403
        assert name in refused.read().decode()
        connection.close()


def test_headers_of_the_proxy_are_believed_from_its_addresses_alone(
    server: Redis, prefix: str
) -> None:
    elsewhere = PROXY | {"proxy_addresses": ("10.0.0.0/8",)}
    with serving(server.url, prefix, token=STATIC, **elsewhere) as running:
        for headers in ({"X-User": "anna", "X-Groups": "admin"}, {"X-Groups": "admin"}):
            assert ask(running.url + TOPICS, headers=headers).status == 403
            assert ask(running.url + TOPICS, headers=headers | bearer(STATIC)).status == 403
        assert ask(running.url + TOPICS, headers=bearer(STATIC)).status == 200
    with serving(server.url, prefix, token=STATIC) as running:  # a server that knows no proxy
        assert ask(running.url + TOPICS, headers={"X-User": "anna"}).status == 401
        assert ask(running.url + TOPICS, headers={"X-Forwarded-User": "anna"}).status == 401


# --- rates ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_refill")
def test_too_many_requests_are_told_to_wait(server: Redis, prefix: str) -> None:
    with serving(server.url, prefix, rate=1) as running:
        found = [ask(running.url + "/metrics") for _ in range(5)]

        assert [each.status for each in found] == [200, 200, 429, 429, 429]
        assert found[-1].headers["Retry-After"] == "1"
        assert ask(running.url + "/livez").status == 200


def test_who_tries_many_tokens_is_told_to_wait_and_others_are_not(
    server: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "FAILURES", 3)
    monkeypatch.setattr(guard, "FAILURES_A_SECOND", 0.01)
    with serving(server.url, prefix, token=STATIC) as running:
        url = running.url + "/metrics"
        found = [ask(url, headers=bearer("wrong")).status for _ in range(5)]

        assert found == [401, 401, 401, 429, 429]
        assert ask(url).status == 401  # who has no token is told so
        assert ask(url, headers=bearer(STATIC)).status == 200


# --- other sites ---------------------------------------------------------------------------------


def test_a_token_in_a_header_needs_no_word_of_the_browser(scene: Scene) -> None:
    assert scene.ask("admin", TOPICS, "POST", {"name": "by-program"}).status == 201
    for headers in ({"Origin": "http://evil.test"}, {"Sec-Fetch-Site": "cross-site"}):
        assert scene.ask("admin", TOPICS, "POST", {"name": "x"}, headers=headers).status == 403


def test_a_name_that_points_here_is_not_this_server(scene: Scene) -> None:
    for host in ("evil.test", "127.0.0.1.evil.test", "localhost.evil.test:8800"):
        found = scene.ask("admin", TOPICS, headers={"Host": host})
        assert (found.status, found.body["type"]) == (421, "urn:rmq:error:other-host")


# --- the audit trail -----------------------------------------------------------------------------


def test_each_act_is_recorded_with_who_did_it_and_without_bodies(scene: Scene) -> None:
    path = f"{TOPICS}/recorded"
    assert scene.ask("admin", TOPICS, "POST", {"name": "recorded"}).status == 201
    pause = {"why": "a deploy", "by": "me"}
    paused = scene.ask("operator", path + "/pause", "POST", pause)
    assert scene.ask("operator", path + "/resume", "POST", {}).status == 200
    assert scene.ask("operator", path + "/messages", "POST", {"body": "secret"}).status == 201
    purge = {"confirm": "recorded", "queue": "store"}
    assert scene.ask("admin", path + "/purge", "POST", purge).status == 200
    assert scene.ask("admin", path + "/purge", "POST", purge | {"confirm": "x"}).status == 400
    intruder = bearer(scene.client.admin.token_create("intruder").text)
    until(
        lambda: ask(scene.url + path + "/purge", "POST", purge, intruder).status == 403,
        "the server reads the new token",
    )
    assert ask(scene.url + path, headers=intruder).status == 200

    lines = [each for each in scene.client.admin.audit_trail() if each.subject == "recorded"]
    assert [(line.by, line.what, line.text) for line in reversed(lines)] == [
        ("admin (token, 127.0.0.1)", "create_topic", "done"),
        ("operator (token, 127.0.0.1)", "pause_topic", "verb=receive, why=a deploy: done"),
        ("operator (token, 127.0.0.1)", "resume_topic", "verb=both: done"),
        ("admin (token, 127.0.0.1)", "purge", "queue=store: done"),
        ("admin (token, 127.0.0.1)", "purge", "queue=store: invalid"),
        ("intruder (token, 127.0.0.1)", "purge", "forbidden"),
    ]
    assert paused.body["by"] == "operator (me)"
    assert "secret" not in str(lines)  # letters: the times of the lines have any digits


def test_exports_and_former_settings_are_recorded(scene: Scene) -> None:
    scene.client.topic("changed", lease=30, max_length=100).open()
    curious = bearer(scene.client.admin.token_create("curious", "operator").text)
    path = f"{TOPICS}/changed"
    export = path + "/dead-letters/export"
    until(lambda: ask(scene.url + export, headers=curious).status == 403, "the new token")
    assert scene.ask("admin", export + "?filter=age%3E1h").status == 200
    change = {"lease": 90, "max_length": 100, "limit": "rate:5:1s"}
    assert scene.ask("admin", path + "/settings", "PATCH", change).status == 200
    assert scene.ask("admin", path + "/settings", "PATCH", {"lease": 0.1}).status == 400

    lines = [each for each in scene.client.admin.audit_trail() if each.subject == "changed"]
    assert [(line.by.partition(" ")[0], line.what, line.text) for line in reversed(lines)] == [
        ("curious", "export_dead_letters", "forbidden"),
        ("admin", "export_dead_letters", "filter=age>1h: done"),
        ("admin", "set_topic", "lease=30.0 -> 90.0, limit=off -> rate:5:1s: done"),
        ("admin", "set_topic", "lease=90.0 -> 0.1: InvalidValue"),
    ]


def test_refusals_do_not_drive_out_the_audit_trail(
    server: Redis, prefix: str, client: rmq.Client, no_refill: None
) -> None:
    token = bearer(client.admin.token_create("flood").text)
    with serving(server.url, prefix, auth="token", rate=100_000) as running:
        url = f"{running.url}{TOPICS}/orders/resume"
        statuses = {ask(url, "POST", {}, token).status for _ in range(REFUSALS + 5)}

    assert statuses == {403}
    lines = [line for line in client.admin.audit_trail() if line.what == "resume_topic"]
    assert 1 <= len(lines) <= REFUSALS  # those of one ms are one line
