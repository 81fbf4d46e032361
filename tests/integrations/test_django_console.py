"""`rmq.django.urls`: the console and the API in a Django project, with its users."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

import rmq
from tests.integrations.conftest import Make
from tests.patience import PATIENCE_S, wait_for
from tests.server import running
from tests.server.console import browsing
from tests.server.console.browsing import Window
from tests.server.console.fetching import csrf_of
from tests.server.hosting import served, served_wsgi
from tests.server.running import dead
from tests.servers import Server

pytestmark = pytest.mark.parametrize("shop_db", ["sqlite"], indirect=True)

ROOT = "/admin/rmq"
PASSWORD = "of the tests"
USERS = {"carl": {}, "ann": {"is_staff": True}, "root": {"is_superuser": True}}


class Site(NamedTuple):
    """A Django project with the console, and its users."""

    client: rmq.Client
    view: Any

    def browser(self, user: str = "") -> Any:
        """A program that has signed in, with the checks that Django makes for a browser."""
        from django.contrib.auth.models import User
        from django.test import Client

        browser = Client(enforce_csrf_checks=True, headers={"host": "localhost"})
        if user:
            browser.force_login(User.objects.get(username=user))
        return browser


def post(browser: Any, path: str, form: dict[str, str], headers: dict[str, str]) -> Any:
    """Send a form, as browsers do."""
    kind = "application/x-www-form-urlencoded"
    return browser.post(path, urlencode(form), content_type=kind, headers=headers)


@pytest.fixture
def mount(
    make_backend: Make, shop_db: str, server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Site]]:
    """Put the console into the URLs of the project."""
    from django.contrib.auth.models import User
    from django.contrib.auth.views import LoginView
    from django.test.utils import override_settings
    from django.urls import include, path

    from rmq.integrations.django import console

    for user, rights in USERS.items():
        User.objects.create_user(user, password=PASSWORD, **rights)
    urls: Any = ModuleType("console_urls")
    monkeypatch.setitem(sys.modules, "console_urls", urls)
    form = "<form method=post>{% csrf_token %}{{ form }}<button>Sign in</button></form>"
    engine = {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "OPTIONS": {"loaders": [("django.template.loaders.locmem.Loader",
                                 {"registration/login.html": form, "403.html": "of the host"})]},
    }  # fmt: skip
    backend = make_backend()
    backend.client.topic("orders").open()
    views = []

    def mount(*given: Any, **options: Any) -> Site:
        patterns = console.console_urls(*given, **options)
        views.append(patterns[0].callback)
        urls.urlpatterns = [
            path("accounts/login/", LoginView.as_view()), path("admin/rmq/", include(patterns)),
        ]  # fmt: skip
        return Site(backend.client, views[-1])

    with override_settings(ROOT_URLCONF="console_urls", TEMPLATES=[engine]):
        yield mount
    for loop in console._loops.values():
        for view in views:
            asyncio.run_coroutine_threadsafe(view.app.aclose(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        wait_for(lambda: not loop.is_running())  # noqa: B023
    console._loops.clear()


@pytest.fixture
def site(mount: Callable[..., Site]) -> Site:
    return mount()


def text_of(answer: Any) -> str:
    text: str = answer.content.decode()
    return text


def test_staff_are_operators_superusers_are_admins_and_others_are_refused(site: Site) -> None:
    path = ROOT + "/console/topics/orders?window=1h"
    anonymous = site.browser().get(path)
    pages = {user: site.browser(user).get(path) for user in USERS}
    of_admins = {user: site.browser(user).get(ROOT + "/console/tokens") for user in USERS}
    api = {user: site.browser(user).get(ROOT + "/api/v1/topics") for user in ("", *USERS)}

    assert (anonymous.status_code, anonymous.headers["Location"]) == (
        302, "/accounts/login/?next=/admin/rmq/console/topics/orders%3Fwindow%3D1h",
    )  # fmt: skip
    assert (pages["carl"].status_code, text_of(pages["carl"])) == (403, "of the host")
    assert "role operator" in text_of(pages["ann"])
    assert "role admin" in text_of(pages["root"])
    assert [page.status_code for page in of_admins.values()] == [403, 403, 200]
    assert [answer.status_code for answer in api.values()] == [403, 403, 200, 200]
    assert "accepts no user" in api[""].json()["detail"]
    assert api["ann"].json()["topics"] == ["orders"]


def test_pages_lead_below_the_mount_and_their_styles_are_there(site: Site) -> None:
    browser = site.browser("ann")
    text = text_of(browser.get(ROOT + "/console/topics/orders"))

    links = re.findall(r'(?:href|src|action)="([^"#][^"]*)"', text)
    assert [each for each in links if not each.startswith((ROOT + "/console", "?"))] == []
    static = [each for each in links if "/static/" in each]
    assert {each.rpartition(".")[2] for each in static} == {"css", "js", "svg"}
    for each in static:
        found = browser.get(each)
        assert found.status_code == 200
        assert "immutable" in found.headers["Cache-Control"]
    assert browser.get(ROOT + "/").headers["Location"] == ROOT + "/console"
    assert site.browser().get(ROOT).headers["Location"] == ROOT + "/", "Django adds the slash"


def test_an_act_needs_the_token_of_the_console_and_is_done_by_the_user(site: Site) -> None:
    browser, page = site.browser("ann"), ROOT + "/console/topics/orders"
    form = {"csrf": csrf_of(text_of(browser.get(page))), "verb": "receive"}
    own = {"origin": "http://localhost"}

    for given, headers in (
        (form | {"csrf": ""}, own), (form, {"origin": "http://evil.example"}), (form, {}),
    ):  # fmt: skip
        assert post(browser, page + "/pause", given, headers=headers).status_code == 403
    assert post(site.browser(), page + "/pause", form, headers=own).status_code == 302
    assert site.client.admin.settings("orders").paused is None
    done = post(browser, page + "/pause", form, headers=own)

    assert (done.status_code, done.headers["Location"]) == (303, page)
    notice = done.cookies["rmq_notice"]
    assert (notice["path"], notice["samesite"], notice["httponly"]) == (ROOT, "Strict", True)
    paused = site.client.admin.settings("orders").paused
    assert paused is not None
    assert paused.by == "ann"
    shown = browser.get(page)
    assert "Paused" in text_of(shown)
    assert shown.cookies["rmq_notice"].value == "", "the notice is shown once"
    unchanged = browser.get(page, headers={"if-none-match": browser.get(page).headers["ETag"]})
    assert (unchanged.status_code, text_of(unchanged)) == (304, "")


def test_behind_a_proxy_the_name_that_browsers_use_counts(site: Site, settings: Any) -> None:
    browser, page = site.browser("ann"), ROOT + "/console/topics/orders"
    form = {"csrf": csrf_of(text_of(browser.get(page))), "verb": "receive"}
    headers = {"origin": "https://shop.example", "x-forwarded-host": "shop.example"}

    assert post(browser, page + "/pause", form, headers=headers).status_code == 403
    settings(USE_X_FORWARDED_HOST=True)
    assert post(browser, page + "/pause", form, headers=headers).status_code == 303
    assert browser.get(page, headers={"x-forwarded-host": "evil.example"}).status_code == 400


@pytest.fixture
def settings() -> Iterator[Callable[..., None]]:
    """Change settings of Django for a test."""
    from django.test.utils import override_settings

    made: list[Any] = []

    def change(**values: Any) -> None:
        made.append(override_settings(**values))
        made[-1].enable()

    yield change
    for each in reversed(made):
        each.disable()


def test_a_program_may_choose_the_roles_and_the_redis(
    mount: Callable[..., Site], server: Server, name: str
) -> None:
    from rmq.server import Role

    def role(user: Any) -> Role | None:
        return Role.VIEWER if user.username == "carl" else None

    with rmq.Client(server.url, prefix=name + "-other") as other:
        other.topic("pears").open()
        site = mount(server.url, name + "-other", role=role)
        found = {user: site.browser(user).get(ROOT + "/console") for user in USERS}

    assert [each.status_code for each in found.values()] == [200, 403, 403]
    assert "role viewer" in text_of(found["carl"])
    assert "pears" in text_of(found["carl"])


EXPORT = ROOT + "/api/v1/topics/orders/dead-letters/export"


def test_under_wsgi_a_long_answer_comes_in_parts_and_a_stream_is_refused(site: Site) -> None:
    dead(site.client, 300)
    browser = site.browser("root")
    left = browser.get(EXPORT)
    left.close()
    assert b"".join(browser.get(EXPORT)).count(b"\n") == 300

    assert left.streaming
    stream = browser.get(ROOT + "/console", headers={"accept": "text/event-stream"})
    assert stream.status_code == 406
    wait_for(lambda: answers() == [])


@pytest.mark.usefixtures("sync_thread")
@pytest.mark.parametrize("ends", ["left", "demoted", "signed out"])
def test_under_asgi_a_page_is_live_until_its_user_loses_the_right(
    site: Site, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asgiref.sync import sync_to_async
    from django.contrib.auth.models import User
    from django.contrib.sessions.models import Session
    from django.test import AsyncClient

    monkeypatch.setattr("rmq.server.guard.STREAM_CHECK_S", 0.05)

    async def life() -> bytes:
        browser = AsyncClient()
        await browser.aforce_login(await User.objects.aget(username="ann"))
        answer = await browser.get(ROOT + "/console", headers={"accept": "text/event-stream"})
        parts = aiter(answer)
        first = await anext(parts)
        if ends == "left":
            await sync_to_async(answer.close)()
            return first
        if ends == "demoted":
            await User.objects.filter(username="ann").aupdate(is_staff=False)
        else:
            await Session.objects.all().adelete()
        async for _ in parts:  # the browser opens the stream again, and is refused
            pass
        return first

    first: bytes = asyncio.run(life())
    assert first.startswith(b"event: page")
    wait_for(lambda: answers() == [])


def is_of_stream(complaint: str) -> bool:
    """Whether a browser complains that it gets no stream."""
    return "406" in complaint or "EventSource" in complaint


def answers() -> list[Any]:
    """The answers that the console is writing."""
    from rmq.integrations.django.console import _loops

    (loop,) = _loops.values()
    return [task for task in asyncio.all_tasks(loop) if "_Answer" in repr(task)]


@pytest.mark.slow
@pytest.mark.parametrize("interface", ["asgi", "wsgi"])
def test_people_use_the_console_in_a_browser(
    site: Site, interface: str, settings: Any, server: Server, name: str
) -> None:
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler

    (letter,) = dead(site.client)
    settings(DEBUG=False)
    serving = served(ASGIHandler()) if interface == "asgi" else served_wsgi(WSGIHandler())
    # `rmq server` runs the jobs that the console starts.
    with running.serving(server.url, name), serving as url, browsing.started() as browser:
        for user, rights in USERS.items():
            with Window(browser, url) as window:
                page = window.page
                page.goto(url + ROOT + "/console")
                assert "/accounts/login/?next=" in page.url
                page.fill("[name=username]", user)
                page.fill("[name=password]", PASSWORD)
                page.click("button")
                if not rights:
                    page.wait_for_selector(":text('of the host')")
                    continue
                page.wait_for_selector("main")
                assert page.url == url + ROOT + "/console"
                color = page.evaluate("getComputedStyle(document.body).backgroundColor")
                assert color != "rgba(0, 0, 0, 0)", "the style is there"

                page.goto(url + ROOT + "/console/topics/orders/messages")
                id = str(site.client.topic("orders").send("hello").id)
                page.wait_for_selector(f"main :text('{id[-6:]}')")  # without a reload

                if user == "ann":
                    page.goto(url + ROOT + "/console/topics/orders/dead-letters")
                    page.check(f"tr[data-key='{letter}'] input")
                    page.click(".actions button:text('Redrive')")
                    page.click("main form button:text-is('Redrive')")
                    page.wait_for_selector("#job-state:text-is('done')")  # without a reload
                    assert site.client.admin.peek("orders", queue="dead") == []
                    assert page.goto(url + ROOT + "/console/tokens").status == 403
                else:
                    assert page.goto(url + ROOT + "/console/tokens").status == 200
                expected = [
                    each for each in window.complaints
                    if "403" not in each and not (interface == "wsgi" and is_of_stream(each))
                ]  # fmt: skip
                assert expected == []
    trail = [(line.by.partition(" ")[0], line.what) for line in site.client.admin.audit_trail()]
    assert ("ann", "job start") in trail
