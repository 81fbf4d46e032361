"""Pages and forms over HTTP, as a program without script fetches and sends them."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from html.parser import HTMLParser
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


class _Forms(HTMLParser):
    """The fields of each form that is sent by POST, with their values, by its address."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.by_address: dict[str, dict[str, str]] = {}
        self._fields: dict[str, str] | None = None
        self._select = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            is_post = given.get("method") == "post"
            self._fields = self.by_address.setdefault(given["action"], {}) if is_post else None
        if self._fields is None:
            return
        if tag == "select":
            self._select = given["name"]
            self._fields[self._select] = ""
        elif tag == "option" and "selected" in given:
            self._fields[self._select] = given["value"]
        elif tag == "input":
            self._fields[given["name"]] = given.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._fields = None


def chosen_in(page: str, verb: str, name: str, value: str) -> dict[str, str]:
    """Return what a browser sends where a person chooses a value and presses the button.

    Args:
        page: its text.
        verb: the last part of the address of the form.
        name: of the field.
        value: that is chosen there.
    """
    (fields,) = [
        fields
        for address, fields in _Forms(page).by_address.items()
        if address.rpartition("/")[2] == verb
    ]
    return fields | ({name: value} if name in fields else {})
