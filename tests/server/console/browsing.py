"""A real Chromium that looks at the console, and notes what it complains of."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 60_000  # on a machine that is busy with other things


def chromium() -> str:
    """Its path; without one a test is skipped, and fails in CI."""
    found = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if found is None:
        problem = "no chromium; on Debian: apt-get install chromium"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
    return found


@contextmanager
def started() -> Iterator[Any]:
    """A browser; closed at the end."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            args=[
                "--no-sandbox",  # CI is root
                "--disable-background-networking",
                "--disable-dev-shm-usage",
                "--host-resolver-rules=MAP rmq.test 127.0.0.1",
            ],
        )
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """A window of a browser.

    Attributes:
        page: Playwright's.
        complaints: what the console of the browser said, and errors of scripts.
    """

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.url = url
        self._context = browser.new_context(**options)
        self._context.set_default_timeout(PATIENCE_MS)
        self.page = self._context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def open(self, path: str) -> None:
        """Show a page of the console."""
        self.page.goto(self.url + "/console" + path)

    def wait(self) -> None:
        """Let the browser tell what it has noted; nothing is noted while a test sleeps."""
        self.page.wait_for_timeout(20)

    def close(self) -> None:
        """Close the window, with its cookies."""
        self._context.close()

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
