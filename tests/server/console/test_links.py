"""Links of the console: each leads to a page."""

from __future__ import annotations

import re
from collections import Counter
from html import unescape
from urllib.parse import urljoin

import pytest

import rmq
from rmq.http_framework.page import PageRequest
from rmq.server import Server
from tests.server.console import corpus
from tests.server.console.conftest import PAGES, Filled
from tests.server.console.fetching import fetch
from tests.server.running import dead, until

PARTS = re.compile(r"(<a\b[^>]*?\bhref|<(?:script|link|img)\b[^>]*?\b(?:src|href))=\"([^\"]*)\"")
ENOUGH = 1000  # pages that a walk looks at
OF_A_KIND = len(corpus.TEXTS) + 1  # each text is in an address of each kind, and so is a plain one


def kind(address: str) -> tuple[str, ...]:
    """Return what addresses of one kind of page have in common: all but ids and values."""
    path, _, query = address.partition("?")
    names = [field.partition("=")[0] for field in query.split("&")]
    return (re.sub(r"\w{26,}", "", path), *names)


def followed(hostile: Filled, stops_at_404: bool = False) -> dict[str, tuple[int, str]]:
    """Fetch all that pages link to: the status of each address, and the page that has the link."""
    root = hostile.server.url
    expected = ("nothing-here", "topics/orders/resize?slots=x", "age%3Esoon")
    waiting = [
        (urljoin(root, hostile.url(path)), "") for path in PAGES if not path.endswith(expected)
    ]
    found: dict[str, tuple[int, str]] = {}
    kinds: Counter[tuple[str, ...]] = Counter()
    while waiting and len(found) < ENOUGH:
        address, page = waiting.pop()
        if address in found or not address.startswith(root) or kinds[kind(address)] == OF_A_KIND:
            continue
        kinds[kind(address)] += 1
        shown = fetch(address)
        found[address] = shown.status, page
        if stops_at_404 and shown.status == 404:
            break
        if shown.status == 303:
            waiting.append((urljoin(address, shown.headers["Location"]), page))
        elif "text/html" in (shown.headers["Content-Type"] or ""):
            links = (unescape(link).partition("#")[0] for _, link in PARTS.findall(shown.text))
            waiting += [(urljoin(address, link), address) for link in links if link]
    return found


def test_each_link_of_each_page_leads_somewhere(hostile: Filled) -> None:
    found = followed(hostile)

    broken = {address: at for address, at in found.items() if at[0] not in (200, 303)}
    assert broken == {}
    assert 100 < len(found) < ENOUGH
    assert sum("/messages/" in address for address in found) > 20


def test_outcomes_of_a_job_link_to_their_messages(console: Server, client: rmq.Client) -> None:
    ids = dead(client, 2)
    job = client.admin.job_start("orders")
    until(lambda: client.admin.job(job.id).state == "done", "the job")

    page = fetch(f"{console.url}/console/jobs/{job.id}").text

    links = re.findall(r'href="(/console/topics/orders/messages/[^"]+)"', page)
    assert sorted(link.rpartition("/")[2] for link in links) == sorted(ids)
    assert {fetch(console.url + link).status for link in links} == {200}


def test_a_link_that_leads_nowhere_would_be_noticed(
    hostile: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = PageRequest.url

    def wrong(self: PageRequest, *parts: str, **query: object) -> str:
        return url(self, *(part[:-1] if len(part) == 26 else part for part in parts), **query)

    monkeypatch.setattr(PageRequest, "url", wrong)

    assert 404 in {status for status, _ in followed(hostile, stops_at_404=True).values()}
