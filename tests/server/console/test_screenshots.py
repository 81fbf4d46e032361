"""Pictures of the console: each page has them, and they are small."""

from __future__ import annotations

import re

from rmq.server.pages import PAGES
from tests.server.console import screenshots
from tests.server.console.screenshots import ALL_BYTES, EACH_BYTES, FOLDER, KEPT

NO_PICTURE = {"/topics/{topic}/find"}  # it leads to another page


def pictured(path: str, shown: list[str]) -> bool:
    """Return whether one of the addresses is of a page."""
    route = re.compile(re.sub(r"\{\w+\}", r"[^/]+", path))
    return any(route.fullmatch("/" + each if each else "") for each in shown)


def test_every_page_has_a_picture() -> None:
    shown = ["signin", *(path.partition("?")[0] for path in screenshots.PAGES.values())]

    routes = {page.path for page in PAGES if page.method == "GET"} - NO_PICTURE
    assert [path for path in sorted(routes) if not pictured(path, shown)] == []
    names = {f"{name}-{KEPT.name}.png" for name in ("signin", *screenshots.PAGES)}
    assert {path.name for path in FOLDER.iterdir()} == names


def test_a_page_without_a_picture_would_be_noticed() -> None:
    assert not pictured("/topics/{topic}/new", ["topics/payments", "topics/payments/slots"])


def test_pictures_are_small() -> None:
    sizes = [path.stat().st_size for path in FOLDER.iterdir()]

    assert max(sizes) <= EACH_BYTES
    assert sum(sizes) <= ALL_BYTES


def test_the_page_of_the_console_names_each_picture() -> None:
    text = (FOLDER.parent / "console.md").read_text()

    names = [f"{name}-{KEPT.name}.png" for name in ("signin", *screenshots.PAGES)]
    assert [name for name in names if f"console/{name}" not in text] == []
