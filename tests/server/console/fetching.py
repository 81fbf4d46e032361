"""Pages and forms over HTTP, as a program without script fetches and sends them."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tests.server.running import PATIENCE_S


class Shown(NamedTuple):
    """An answer: its status, its text and its headers."""

    status: int
    text: str
    headers: Any


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: object, **named: object) -> None:
        return None


def fetch(url: str, form: dict[str, str] | None = None, **headers: str) -> Shown:
    """Fetch a page, or send a form; redirects are not followed."""
    data = None if form is None else urlencode(form).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    opener = urllib.request.build_opener(_Stay)
    try:
        with opener.open(urllib.request.Request(url, data, named), timeout=PATIENCE_S) as reply:
            return Shown(reply.status, reply.read().decode(), reply.headers)
    except urllib.error.HTTPError as error:
        return Shown(error.code, error.read().decode(), error.headers)


def csrf_of(page: str) -> str:
    """The text in the forms of a page."""
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]
