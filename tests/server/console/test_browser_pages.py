"""Each page in a real Chromium: hostile text stays text, and anybody can read and use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from tests.server.console.browsing import Window
from tests.server.console.conftest import PAGES, Filled
from tests.server.running import until
from tests.servers import Server as Redis

pytestmark = pytest.mark.slow  # test_pages.py reads the same pages without a browser

WIDTHS = (360, 1280, 3840)
BROKEN = (  # answered with an error
    "nothing-here",
    "topics/orders/dead-letters?filter=age%3Esoon",
    "topics/orders/messages?filter=age%3Esoon",
    "topics/orders/resize?slots=x",
)


@pytest.fixture(scope="module")
def window(browser: Any, hostile: Filled) -> Iterator[Window]:
    """A window for all pages: a new one for each would be most of what they cost."""
    with Window(browser, hostile.server.url) as window:
        yield window


def _complaints(window: Window, path: str) -> list[str]:
    """The complaints of the browser, but the status of a page that is an error."""
    return [text for text in window.complaints if path not in BROKEN or "status of 40" not in text]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_runs_no_text_and_fits_every_width(
    window: Window, hostile: Filled, path: str
) -> None:
    window.complaints.clear()
    window.page.goto(hostile.url(path))
    window.page.wait_for_timeout(200)  # for scripts that must not run

    for width in WIDTHS:
        window.page.set_viewport_size({"width": width, "height": 800})
        spilled = window.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert spilled <= 0, f"{spilled} px wider than a window of {width}"
    assert window.page.evaluate("window.hacked") is None
    assert _complaints(window, path) == []


@pytest.mark.parametrize(("scheme", "rules"), [("light", None), ("dark", ["color-contrast"])])
def test_no_page_has_a_serious_accessibility_fault(
    browser: Any, hostile: Filled, scheme: str, rules: list[str] | None
) -> None:
    """Colours are all that differs in the dark."""
    from axe_playwright_python.sync_playwright import Axe

    options = {"runOnly": rules} if rules else None
    found = []
    with Window(browser, hostile.server.url, color_scheme=scheme) as window:
        for path in PAGES:
            window.page.goto(hostile.url(path))
            for fault in Axe().run(window.page, options=options).response["violations"]:
                if fault["impact"] in ("serious", "critical"):
                    places = [node["html"][:200] for node in fault["nodes"][:3]]
                    found.append((path, fault["id"], places))
    assert found == []


def test_a_script_in_a_page_would_be_caught(browser: Any, hostile: Filled) -> None:
    with Window(browser, hostile.server.url) as window:
        window.open("")
        window.page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.hacked=1>')"
        )
        until(
            lambda: any("Content Security Policy" in text for text in window.complaints),
            "the complaint",
            wait=window.wait,
        )

        assert window.page.evaluate("window.hacked") is None


def test_hostile_text_stays_text_when_a_page_is_updated(
    browser: Any, hostile: Filled, server: Redis
) -> None:
    text = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
    with Window(browser, hostile.server.url) as window:
        window.open("/topics/updated/messages")
        with rmq.Client(server.url, prefix=hostile.prefix) as client:
            client.topic("updated").open()
            window.open("/topics/updated/messages")
            window.page.wait_for_selector("text=No message is waiting")
            id = client.topic("updated").send(text, headers={"h": text}).id

        window.page.wait_for_selector(f"text={id}")

        assert text[:30] in window.page.inner_text("#messages")
        assert window.page.evaluate("window.hacked") is None
        assert [each for each in window.complaints if "404" not in each] == []
