"""The documentation site: its pages fit and can be heard, and its search finds what is wanted.

`make docs-check` runs these tests on the site that `make docs` has built. A browser opens real
pages, and the real search page with each word.
"""

from __future__ import annotations

import functools
import http.server
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.server.console.browsing import PATIENCE_MS, started

SITE = os.environ.get("RMQ_TEST_SITE", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SITE, reason="`make docs-check` builds the site and runs this"),
]
ENOUGH = 23
TOP = 3
WANTED = {
    "retry": "workers", "backoff": "workers", "poison": "workers", "cron": "schedules",
    "progress": "outcomes", "typing": "typing", "cancel": "outcomes", "result": "outcomes",
    "deploy": "production", "delay": "sending", "priority": "sending", "duplicate": "guarantees",
    "lost": "audit", "exactly once": "guarantees", "dead letter": "dead-letters",
    "order": "groups", "rate limit": "workers", "timeout": "workers", "cluster": "connections",
    "tls": "security", "metrics": "observability", "docker": "server", "celery": "celery",
    "django": "django", "test": "testing",
}  # fmt: skip
# Pages with each kind of content; the first is the home page.
PAGES = (
    "docs/index",
    "docs/sending",
    "docs/comparison",
    "docs/api",
    "docs/api/rmq.Topic",
    "search",
)
WITH_CONTENTS = ("docs/sending", "docs/api", "docs/api/rmq.Topic")
# Pages for developers of RMQ. None of them is the first result for an everyday word.
INTERNAL = ("decisions/", "CHANGELOG", "CONTRIBUTING", "tests/", "lua/")


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves the site, with the search index of another directory."""

    def __init__(self, *args: Any, index: Path, **options: Any) -> None:
        self.index = index
        super().__init__(*args, **options)

    def translate_path(self, path: str) -> str:
        if path.startswith("/pagefind/"):
            return str(self.index / path.partition("?")[0].removeprefix("/pagefind/"))
        return super().translate_path(path)

    def log_message(self, *args: Any) -> None:
        """Print nothing."""

    def handle(self) -> None:
        """Let the browser close a connection before it has read everything."""
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True


@contextmanager
def served(index: Path) -> Iterator[str]:
    """Serve the site and return its address."""
    files = functools.partial(Files, directory=SITE, index=index)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), files)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def found(browser: Any, index: Path) -> dict[str, list[str]]:
    """Return the first pages that the search page shows for each word."""
    shown = {}
    with served(index) as url:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        for word in WANTED:
            page.goto(f"{url}/search.html?q={word}")
            page.wait_for_selector("pagefind-results a.pf-result-link")
            links = page.eval_on_selector_all(
                "pagefind-results a.pf-result-link", "found => found.map(one => one.pathname)"
            )
            shown[word] = links[:TOP]
        page.close()
    return shown


def hits(shown: dict[str, list[str]]) -> list[str]:
    """Return the words whose page is among the first ones."""
    return [word for word, page in WANTED.items() if f"/docs/{page}.html" in shown[word]]


@pytest.fixture(scope="module")
def without_synonyms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index of the same pages without synonyms."""
    from tools import search_index

    into = tmp_path_factory.mktemp("index")
    search_index.make(Path(SITE), into, search_index.config() | {"synonyms": {}})
    return into


@pytest.fixture(scope="module")
def browser(without_synonyms: Path) -> Iterator[Any]:
    """A browser; its event loop has to start after that of the index."""
    with started() as running:
        yield running


def test_the_wanted_page_is_among_the_first_three(browser: Any) -> None:
    shown = found(browser, Path(SITE) / "pagefind")
    missed = {word: shown[word] for word in WANTED.keys() - set(hits(shown))}

    assert len(WANTED) == 25
    assert len(WANTED) - len(missed) >= ENOUGH, missed
    first = [links[0] for links in shown.values()]
    assert [link for link in first if any(word in link for word in INTERNAL)] == []


def test_without_synonyms_too_few_words_find_their_page(
    browser: Any, without_synonyms: Path
) -> None:
    assert len(hits(found(browser, without_synonyms))) < ENOUGH


def axe_faults(page: Any) -> list[str]:
    """Return the accessibility faults that axe finds on the page."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{fault['id']}: {node['html'][:200]}" for fault in found for node in fault["nodes"]]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_fit_and_axe_finds_no_fault(browser: Any, width: int, scheme: str) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    faults = {}
    with context, served(Path(SITE) / "pagefind") as url:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        for name in PAGES:
            page.goto(f"{url}/{name}.html")
            spilled = page.evaluate("document.documentElement.scrollWidth") - width
            assert spilled <= 0, f"{name} is {spilled} px wider than the window"
            if name in WITH_CONTENTS and width == 1280:
                assert page.is_visible(".toc-tree"), name
            faults[name] = axe_faults(page)
        page.goto(f"{url}/{PAGES[0]}.html")
        page.evaluate("document.querySelector('h1').outerHTML = '<img src=\"x.png\">'")
        control = axe_faults(page)

    assert {name: found for name, found in faults.items() if found} == {}
    assert any(fault.startswith("image-alt") for fault in control)
