"""Fixtures of the tests of the console: a server with topics that hold what producers may send."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import rmq
from rmq.features.workers import flows
from rmq.features.workers.status import HandlerStatus, write_status
from rmq.kernel.core.access import Role
from rmq.server import Server
from tests.server.console import browsing, corpus
from tests.server.console.fetching import Shown, csrf_of, fetch
from tests.server.running import serving
from tests.servers import Server as Redis

PAGES = [
    "", "problems", "runbook", "dead-letters", "dead-letters/causes", "workers", "jobs", "batches",
    "batches/import-7",
    "batches/import-7/cancel", "health", "audit-trail", "topics/orders",
    "topics/orders/messages", "topics/orders/messages?queue=prepare",
    "topics/orders/messages?filter=not+type=none", "topics/orders/messages?filter=age%3Esoon",
    "topics/orders/dead-letters", "topics/orders/dead-letters?filter=age%3E0s",
    "topics/orders/dead-letters?filter=age%3Esoon", "topics/orders/dead-letters/groups",
    "topics/orders/dead-letters/redrive", "topics/orders/dead-letters/redrive?to=other",
    "topics/orders/dead-letters/purge",
    "topics/orders/dead-letters/restore", "topics/orders/trash", "topics/orders/slots",
    "topics/orders/settings", "topics/orders/schedules", "topics/orders/queries",
    "topics/orders/queries/{run}/release", "topics/orders/leases", "topics/orders/audit",
    "topics/orders/resize", "topics/other/resize?slots=4", "topics/orders/resize?slots=x",
    "topics/orders/cancel", "topics/orders/cancel?filter=type%3Dx&running=on",
    "topics/orders/delete", "tokens", "jobs/{job}",
    "topics/orders/messages/{dead}",
    "topics/orders/groups", "topics/grouped/groups?sort=name",
    "topics/grouped/groups/purge?group=g", "topics/grouped/messages/{behind}",
    "topics/orders/messages/{waiting}", "topics/orders/messages/{held}", "nothing-here",
]  # fmt: skip


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let clients of tests with a browser connect: Playwright leaves a loop in their thread.

    The loop runs only inside the calls of Playwright, so that a blocking client holds up nothing.
    """
    if "browser" in getattr(item, "fixturenames", ()):
        text = "ignore:rmq.Client blocks the event loop:RuntimeWarning"
        item.add_marker(pytest.mark.filterwarnings(text))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium, for the tests of a file."""
    with browsing.started() as browser:
        yield browser


@pytest.fixture
def console(server: Redis, prefix: str, client: rmq.Client) -> Iterator[Server]:
    with serving(server.url, prefix) as running:
        yield running


class Filled(NamedTuple):
    """A server of a topic that holds what producers may send."""

    server: Server
    ids: dict[str, str]
    prefix: str

    def url(self, path: str) -> str:
        """Return the address of a page, with the ids that it names."""
        return self.server.url + filled(path, self.ids)


@pytest.fixture(scope="module")
def hostile(server: Redis, request: pytest.FixtureRequest) -> Iterator[Filled]:
    """Topics with text of the corpus everywhere, for tests that look and change nothing."""
    prefix = request.module.__name__.rpartition(".")[2]
    with rmq.Client(server.url, prefix=prefix) as client:
        ids = make_ids(client)
        with serving(server.url, prefix) as running:
            yield Filled(running, ids, prefix)


def make_ids(client: rmq.Client) -> dict[str, str]:
    """Make a topic with text of the corpus in every field that takes it; ids of some messages."""
    topic = client.topic("orders", slots=2, max_retries=0, retry="immediate", lease=60)
    topic.open()
    client.topic("other").open()
    grouped = client.topic("grouped", groups=rmq.Groups())
    for text in corpus.TEXTS:
        name = re.sub(r"[\0-\x1f\x7f]", "", text)[:40] or "g"
        behind = [str(grouped.send(n, group=name, share_key=name).id) for n in range(2)]
    consumer = topic.consumer()
    texts = itertools.cycle(corpus.TEXTS)
    for text in corpus.TEXTS:
        header = {"x-" + str(len(text)): text[:1000], "tenant": next(texts)[:1000]}
        topic.send({text[:100]: [text, {"deep": text}]}, headers=header, dedup_key=text[:60])
        for delivery in consumer.receive(wait=5):
            try:
                raise ValueError(text)
            except ValueError as error:
                delivery.nack(error=error)
    client.topic("orders", codec="bytes").send(
        b"\x00\xff" + corpus.TEXTS[0].encode(), headers={"kind": corpus.TEXTS[1]}
    )
    held = str(consumer.receive(wait=5)[0].id)
    topic.send(corpus.TEXTS[3], retry=None)
    topic.query("a" * 32, corpus.TEXTS[1][:60]).take({})
    waiting = str(topic.send(corpus.TEXTS[0], delay=3600, merge_key=None).id)
    topic.send(corpus.TEXTS[2], merge_key=corpus.TEXTS[0][:100], time_range=600)
    topic.every(
        "nightly", every=3600, body={"job": corpus.TEXTS[0]}, headers={"h": corpus.TEXTS[1]}
    )
    dead = client.admin.dead_letters("orders").messages
    job = client.admin.job_start(
        "orders", conditions={"error": "nothing has this"}, by=corpus.TEXTS[0][:100]
    )
    client.admin.job_pause(job.id, by=corpus.TEXTS[3][:100])
    client.admin.topic_pause("orders", by=corpus.TEXTS[0][:100], why=corpus.TEXTS[1][:100])
    client.admin.purge("orders", "dead", ids=[dead[0].id], keep=3600)
    _report_worker(client, held)
    batch = client.batch("import-7", then=("other", rmq.Outgoing(corpus.TEXTS[0])), timeout=3600)
    batch.open()
    batch.send("grouped", corpus.TEXTS[1], group="g")
    return {
        "dead": str(dead[1].id), "waiting": waiting, "held": held, "behind": behind[1],
        "job": job.id, "run": "a" * 32,
    }  # fmt: skip


def _report_worker(client: rmq.Client, held: str) -> None:
    """Report a worker whose host and handler have names of the corpus, and that runs a message."""

    def write(now_ms: int) -> str:
        handler = HandlerStatus("orders", corpus.TEXTS[0], 2, 1, 1, {"received": 3, "nack": 1})
        return write_status(
            at_ms=now_ms, host=corpus.TEXTS[1], pid=7, process=None, version="0", age_ms=1000,
            keep_ms=60_000, handlers=[handler], runs=[(held, 0, 500)],
        )  # fmt: skip

    prefix = client._prefix
    client._transport.run(flows.report(prefix, "0123abcd", write, 60_000))


def filled(path: str, ids: dict[str, str]) -> str:
    """Return the path of a page with the ids that it names."""
    return "/console" + (f"/{path.format(**ids)}" if path else "")


class Scene(NamedTuple):
    """A server that asks for tokens, and one of each role."""

    url: str
    tokens: dict[str, str]
    client: rmq.Client

    def sign_in(self, token: str, then: str = "") -> Shown:
        url = self.url + "/console/signin"
        form = {"csrf": csrf_of(fetch(url).text), "token": token, "then": then}
        return fetch(url, form, Origin=self.url)

    def cookie(self, role: str) -> str:
        """A session of a role."""
        cookie: str = self.sign_in(self.tokens[role]).headers["Set-Cookie"]
        return cookie.partition(";")[0]

    def fetch(self, path: str, cookie: str, form: dict[str, str] | None = None) -> Shown:
        return fetch(self.url + path, form, Cookie=cookie, Origin=self.url)


@pytest.fixture
def scene(server: Redis, prefix: str, client: rmq.Client) -> Iterator[Scene]:
    tokens = {
        role: client.admin.token_create(role, role, topics=["*"] * role.is_of_topics).text
        for role in Role
    }
    with serving(server.url, prefix, auth="token", rate=100_000) as running:
        yield Scene(running.url, tokens, client)
