"""Signing in to the console, what each role may do there, and how a session ends."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from rmq.kernel.core.access import Role
from rmq.server.pages import PAGES
from tests.server.console.conftest import Scene
from tests.server.console.fetching import csrf_of, fetch
from tests.server.running import dead, until

KNOWN = {
    "topic": "none", "id": "0" * 26, "job": "none.00000000", "name": "n", "verb": "redrive",
    "run": "a" * 32,
}  # fmt: skip


def test_a_person_signs_in_and_out(scene: Scene) -> None:
    scene.client.topic("orders").open()
    asked = fetch(scene.url + "/console/topics/orders")
    assert (asked.status, asked.headers["Location"]) == (
        303, "/console/signin?then=" + quote("/console/topics/orders", safe=""),
    )  # fmt: skip

    signed_in = scene.sign_in(scene.tokens["operator"], "/console/topics/orders")

    cookie = signed_in.headers["Set-Cookie"]
    assert (signed_in.status, signed_in.headers["Location"]) == (303, "/console/topics/orders")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert scene.tokens["operator"] not in cookie
    session = cookie.partition(";")[0]
    page = scene.fetch("/console/topics/orders", session)
    assert page.status == 200
    assert "role operator" in page.text
    assert scene.tokens["operator"] not in page.text

    out = scene.fetch("/console/signout", session, {"csrf": csrf_of(page.text)})

    assert (out.status, out.headers["Location"]) == (303, "/console/signin")
    assert scene.fetch("/console/topics/orders", session).status == 303
    assert _trail(scene) == [
        ("operator (token, 127.0.0.1)", "sign_in", "done"),
        ("operator (session, 127.0.0.1)", "sign_out", "done"),
    ]


@pytest.mark.parametrize(
    "token", ["", "null", "rmq_", "x" * 5000, "static", "{prefix}", "{longer}"]
)
def test_a_wrong_token_signs_nobody_in(scene: Scene, token: str) -> None:
    right = scene.tokens["admin"]
    given = token.format(prefix=right[:-1], longer=right + "0")

    shown = scene.sign_in(given)

    assert shown.status == 401
    assert shown.headers["Set-Cookie"] is None
    assert "no such token" in shown.text
    assert given == "" or len(given) < 10 or given not in shown.text
    assert _trail(scene) == [("nobody (127.0.0.1)", "sign_in", "unauthorized")]


def _trail(scene: Scene) -> list[tuple[str, str, str]]:
    lines = [line for line in scene.client.admin.audit_trail() if line.what != "token create"]
    return [(line.by, line.what, line.text) for line in reversed(lines)]


@pytest.mark.usefixtures("no_refill")
def test_an_address_that_tries_too_often_has_to_wait(scene: Scene) -> None:
    statuses = [scene.sign_in(f"rmq_{n:08x}_" + "0" * 64).status for n in range(8)]

    assert statuses[:3] == [401] * 3
    assert statuses[-1] == 429
    assert scene.sign_in(scene.tokens["viewer"]).status == 303  # of somebody else at that address


@pytest.mark.parametrize(
    "places",
    [  # an address may sign in five times at once
        ["//evil.example", "https://evil.example", "/console/../../evil", "/" * 2000],
        ["/console\\@evil.example", "javascript:alert(1)", "/consolex",
         "/console//evil\r\nSet-Cookie: a=b"],
    ],
    ids=["a site", "a script"],
)  # fmt: skip
def test_signing_in_leads_to_no_other_site(scene: Scene, places: list[str]) -> None:
    for then in places:
        shown = scene.sign_in(scene.tokens["viewer"], then)

        assert shown.status == 303, then
        path = shown.headers["Location"]
        assert path == "/console" or path.startswith(("/console/", "/console?")), then
        assert not path.startswith("//"), then
        assert len(shown.headers.get_all("Set-Cookie")) == 1, then


def test_each_page_is_open_to_its_role_and_closed_to_others(scene: Scene) -> None:
    cookies = {role: scene.cookie(role) for role in ("viewer", "operator", "admin")}
    csrf = {role: csrf_of(scene.fetch("/console", cookies[role]).text) for role in cookies}
    through, cases = [], 0
    for page in PAGES:
        path = "/console" + page.path.format(**KNOWN)
        for who in ("nobody", *cookies):
            if page.role is None or page.path == "/signout":
                continue
            cases += 1
            form = {"csrf": csrf.get(who, "")} if page.method == "POST" else None
            if who == "nobody":
                status, expected = fetch(scene.url + path, form, Origin=scene.url).status, {303}
            else:
                status = scene.fetch(path, cookies[who], form).status
                lets_in = Role(who).includes(page.role)
                expected = {200, 303, 400, 404, 409} if lets_in else {403}
            if status not in expected:
                through.append((who, page.method, path, status))
    assert through == []
    assert cases > 100


def test_an_operator_cannot_purge_through_the_page_of_a_redrive(scene: Scene) -> None:
    ids = dead(scene.client, 1, max_retries=0)
    topic = scene.client.admin.topics()[0]
    cookie = scene.cookie("operator")
    csrf = csrf_of(scene.fetch("/console", cookie).text)
    form = {"csrf": csrf, "ids": ids[0], "confirm": topic}

    assert scene.fetch(f"/console/topics/{topic}/dead-letters/purge", cookie).status == 403
    assert scene.fetch(f"/console/topics/{topic}/dead-letters/purge", cookie, form).status == 403
    assert scene.client.admin.jobs() == []


def test_a_form_of_another_session_is_refused(scene: Scene) -> None:
    scene.client.topic("orders").open()
    mine, other = scene.cookie("admin"), scene.cookie("operator")
    csrf = csrf_of(scene.fetch("/console", other).text)

    shown = scene.fetch("/console/topics/orders/pause", mine, {"csrf": csrf})

    assert shown.status == 403
    assert scene.client.admin.settings("orders").paused is None


def test_a_viewer_sees_no_bodies_and_no_tracebacks(scene: Scene) -> None:
    topic = scene.client.topic("orders", max_retries=0, retry="immediate")
    topic.open()
    topic.send({"card": "4111-secret"})
    try:
        raise ValueError("refused")
    except ValueError as error:
        topic.consumer().receive(wait=5)[0].nack(error=error)
    id = scene.client.admin.dead_letters("orders").messages[0].id
    paths = ["/console/topics/orders/dead-letters", f"/console/topics/orders/messages/{id}"]

    for path in paths:
        text = scene.fetch(path, scene.cookie("viewer")).text
        assert "refused" in text
        assert "4111-secret" not in text
        assert "test_signing_in.py" not in text
        assert "4111-secret" in scene.fetch(path, scene.cookie("operator")).text
    oracle = "/console/topics/orders/dead-letters?filter=" + quote('body.card contains "4111"')
    assert scene.fetch(oracle, scene.cookie("viewer")).status == 403


def test_revoking_a_token_ends_its_sessions(scene: Scene) -> None:
    cookie = scene.cookie("viewer")
    assert scene.fetch("/console", cookie).status == 200

    scene.client.admin.token_revoke("viewer")

    until(lambda: scene.fetch("/console", cookie).status == 303, "the end of the session")


def test_an_admin_makes_and_revokes_tokens(scene: Scene) -> None:
    cookie = scene.cookie("admin")
    csrf = csrf_of(scene.fetch("/console/tokens", cookie).text)
    form = {"csrf": csrf, "name": "ann", "role": "viewer", "expires": "90d", "sees_bodies": "on"}

    made = scene.fetch("/console/tokens", cookie, form)

    found = {token.name: token for token in scene.client.admin.tokens()}["ann"]
    assert (found.role, found.sees_bodies) == ("viewer", True)
    text = made.text.partition('data-copy="')[2].partition('"')[0]
    bearer = {"Authorization": f"Bearer {text}"}
    until(lambda: fetch(scene.url + "/console", **bearer).status == 200, "the server to know it")
    assert text not in scene.fetch("/console/tokens", cookie).text
    assert scene.fetch("/console/tokens/ann/revoke", cookie, {"csrf": csrf}).status == 303
    assert "ann" not in {token.name for token in scene.client.admin.tokens()}


def test_a_token_that_is_made_on_the_page_expires_and_that_of_an_admin_always(
    scene: Scene,
) -> None:
    cookie = scene.cookie("admin")
    csrf = csrf_of(scene.fetch("/console/tokens", cookie).text)

    def made(name: str, role: str, expires: str) -> int:
        form = {"csrf": csrf, "name": name, "role": role, "expires": expires}
        return scene.fetch("/console/tokens", cookie, form).status

    assert made("empty", "admin", "") == 200
    assert made("never", "admin", "never") == 400
    assert made("reader", "viewer", "never") == 200
    found = {token.name: token for token in scene.client.admin.tokens()}
    days = (found["empty"].expires_ms - found["empty"].created_ms) / 86_400_000
    assert (days, found["reader"].expires_ms, "never" in found) == (90, None, False)
