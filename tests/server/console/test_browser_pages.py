"""Each page in a real Chromium: hostile text stays text, and anybody can read and use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from rmq.server import Server
from tests.server.console.browsing import Window
from tests.server.console.conftest import PAGES, filled, make_ids
from tests.server.running import serving
from tests.servers import Server as Redis

WIDTHS = (360, 1280, 3840)
BROKEN = (  # answered with an error
    "nothing-here",
    "topics/orders/dead-letters?filter=age%3Esoon",
    "topics/orders/resize?slots=x",
)


@pytest.fixture(scope="module")
def scene(server: Redis) -> Iterator[tuple[Server, dict[str, str]]]:
    with rmq.Client(server.url, prefix="pages") as client, serving(server.url, "pages") as running:
        yield running, make_ids(client)


def _complaints(window: Window, path: str) -> list[str]:
    """The complaints of the browser, but the status of a page that is an error."""
    return [text for text in window.complaints if path not in BROKEN or "status of 40" not in text]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_runs_no_text_and_fits_every_width(
    browser: Any, scene: tuple[Server, dict[str, str]], path: str
) -> None:
    server, ids = scene
    with Window(browser, server.url) as window:
        window.page.goto(server.url + filled(path, ids))
        window.page.wait_for_timeout(200)

        for width in WIDTHS:
            window.page.set_viewport_size({"width": width, "height": 800})
            spilled = window.page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert spilled <= 0, f"{spilled} px wider than a window of {width}"
        assert window.page.evaluate("window.hacked") is None
        assert _complaints(window, path) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_accessibility_fault(
    browser: Any, scene: tuple[Server, dict[str, str]], scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    server, ids = scene
    found = []
    with Window(browser, server.url, color_scheme=scheme) as window:
        for path in PAGES:
            window.page.goto(server.url + filled(path, ids))
            for fault in Axe().run(window.page).response["violations"]:
                if fault["impact"] in ("serious", "critical"):
                    places = [node["html"][:200] for node in fault["nodes"][:3]]
                    found.append((path, fault["id"], places))
    print(f"FIG {len(PAGES)} pages, {scheme}, {len(found)} serious accessibility faults")
    assert found == []


def test_a_script_in_a_page_would_be_caught(
    browser: Any, scene: tuple[Server, dict[str, str]]
) -> None:
    server, _ = scene
    with Window(browser, server.url) as window:
        window.open("")
        window.page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.hacked=1>')"
        )
        window.page.wait_for_timeout(300)

        assert any("Content Security Policy" in text for text in window.complaints)
        assert window.page.evaluate("window.hacked") is None


def test_hostile_text_stays_text_when_a_page_is_updated(
    browser: Any, scene: tuple[Server, dict[str, str]], server: Redis
) -> None:
    running, _ = scene
    text = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
    with Window(browser, running.url) as window:
        window.open("/topics/updated/messages")
        with rmq.Client(server.url, prefix="pages") as client:
            client.topic("updated").open()
            window.open("/topics/updated/messages")
            window.page.wait_for_selector("text=No message is waiting")
            id = client.topic("updated").send(text, headers={"h": text}).id

        window.page.wait_for_selector(f"text={id}")

        assert text[:30] in window.page.inner_text("#messages")
        assert window.page.evaluate("window.hacked") is None
        assert [each for each in window.complaints if "404" not in each] == []
