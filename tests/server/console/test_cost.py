"""The cost of the console in Redis: a page does not read a whole queue, and viewers share readings.

`bench/console.py` measures times of a million messages; here are the numbers that bound them.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

import rmq
from bench.console import PAGES, fetch_to_the_end, fill, other_leader
from rmq.features.dead_letters import pages as dead_letters_pages
from rmq.features.messages import pages as messages_pages
from rmq.http_framework.readings import Readings
from rmq.server import Server
from tests.server.console.asked import Watch, forgetting
from tests.server.running import serving, until
from tests.servers import Server as Redis

pytestmark = pytest.mark.slow  # in `make test`, test_pages.py reads each page

MESSAGES = 20_000
COMMANDS, BYTES = 40, 60_000  # of a page that reads a part of a queue
EXAMINED = {"problems, to the end": 200, "overview": 200}  # commands of the doctor, by page
# Messages that a page looks at.
SCANNED = {"filter, 1 in 2": 5_000, "filter, none": MESSAGES, "search": 2 * MESSAGES}
COUNTED = {
    "by cause, to the end": MESSAGES, "causes, to the end": MESSAGES,
    "redrive all, to the end": 2 * MESSAGES,
}  # fmt: skip
LETTERS_A_CALL, LETTER_BYTES = 50, 400  # at least so many in a call, each at most so large
WINDOWS, TOPICS = 20, 100
LOOKED_S = 10.0  # five looks at a live page


class Pages:
    """A server whose pages are fetched one by one, and what they ask."""

    def __init__(self, redis: Redis, url: str, ids: dict[str, str], forget: Callable[[], None]):
        self._url, self._ids, self._forget = url, ids, forget
        self._watch = Watch(redis)

    def asked(self, name: str) -> tuple[int, int]:
        """Fetch a page twice; return how many commands it sent, and bytes that Redis answered."""
        path = f"/console/{PAGES[name].format(**self._ids)}".rstrip("/")
        self._forget()
        with self._watch.commands() as commands:
            assert fetch_to_the_end(self._url, path).status == 200
        self._forget()
        with self._watch.calls() as asked:
            fetch_to_the_end(self._url, path)
        print(f"FIG {name}: {len(commands)} commands, {asked.bytes} bytes of Redis")
        return len(commands), asked.bytes

    def close(self) -> None:
        self._watch.close()


@pytest.fixture(scope="module")
def pages(server: Redis) -> Iterator[Pages]:
    with rmq.Client(server.url, prefix="cost") as client:
        ids = fill(client, MESSAGES, 2)
        with other_leader(client), forgetting() as forget, serving(server.url, "cost") as running:
            made = Pages(server, running.url, ids, forget)
            yield made
            made.close()
        client.admin.topic_delete("big", force=True)


def bounds(name: str) -> tuple[int, int]:
    """Commands and bytes that a page may cost: by the letters that it looks at, else constant."""
    letters = SCANNED.get(name, COUNTED.get(name, 0))
    commands = EXAMINED.get(name, COMMANDS) + letters // LETTERS_A_CALL
    return commands, BYTES + letters * LETTER_BYTES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_for_a_part_of_20_000_messages(pages: Pages, name: str) -> None:
    commands, sent = pages.asked(name)

    most_commands, most_bytes = bounds(name)
    assert commands <= most_commands
    assert sent <= most_bytes


@pytest.mark.parametrize(
    ("name", "module", "constant", "value"),
    [
        ("waiting", messages_pages, "ROWS", 1_000),
        ("dead letters", dead_letters_pages, "ROWS", 1_000),
    ],
)
def test_a_page_that_read_more_would_be_noticed(
    pages: Pages, name: str, module: Any, constant: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, constant, value)

    commands, sent = pages.asked(name)

    most_commands, most_bytes = bounds(name)
    assert commands > most_commands or sent > most_bytes


@contextmanager
def window(url: str) -> Iterator[threading.Event]:
    """Keep the live overview open; yield what is set when its first page has come."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    connection.request("GET", "/console", headers={"Accept": "text/event-stream"})
    reply = connection.getresponse()
    shown = threading.Event()

    def read() -> None:
        with ExitStack() as stack:
            stack.callback(connection.close)
            try:
                while line := reply.readline():
                    if line.startswith(b"event: page"):
                        shown.set()
            except (OSError, ValueError, AttributeError):  # it is closed
                return

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    try:
        yield shown
    finally:
        if connection.sock is not None:
            connection.sock.shutdown(2)
        reading.join(60)


def looked(redis: Redis, running: Server, windows: int) -> float:
    """Open so many windows; return how many commands a second Redis gets meanwhile."""
    with Watch(redis) as watch, ExitStack() as stack:
        shown = [stack.enter_context(window(running.url)) for _ in range(windows)]
        for each in shown:
            until(each.is_set, "the first page of a window")
        began = time.monotonic()
        with watch.commands() as commands:
            time.sleep(LOOKED_S)  # the figure is a rate
        return len(commands) / (time.monotonic() - began)


@pytest.fixture
def overview(
    server: Redis, prefix: str, client: rmq.Client, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    # What took long is kept for longer, which would make the rate of a busy machine a lower one.
    monkeypatch.setattr("rmq.http_framework.readings.SHARE", 0)
    monkeypatch.setattr("rmq.server.console.STREAMS_EACH", WINDOWS)
    for n in range(TOPICS):
        client.topic(f"t{n:02}").send(n)
    with serving(server.url, prefix) as running:
        yield running


def counted(monkeypatch: pytest.MonkeyPatch, get: Callable[..., Awaitable[Any]]) -> Counter[str]:
    """Count how often pages ask for a reading, and how often Redis is read for it."""
    counts: Counter[str] = Counter()

    async def asked(self: Readings, key: str, read: Callable[..., Any], *keep: float) -> Any:
        async def done() -> Any:
            counts["read"] += 1
            return await read()

        counts["asked"] += 1
        return await get(self, key, done, *keep)

    monkeypatch.setattr(Readings, "get", asked)
    return counts


def are_shared(counts: Counter[str]) -> bool:
    return 0 < counts["read"] < counts["asked"] / 4


def test_twenty_windows_cost_redis_what_one_costs(
    server: Redis, overview: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = looked(server, overview, 1)
    counts = counted(monkeypatch, Readings.get)
    together = looked(server, overview, WINDOWS)

    print(
        f"FIG {TOPICS} topics: {alone:.0f} commands/s with 1 window, {together:.0f} with {WINDOWS}"
    )
    assert together < 1.5 * alone
    assert are_shared(counts), counts


def test_windows_that_shared_nothing_would_be_noticed(
    server: Redis, overview: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine reads no more often for twenty windows than for one; so reads are counted."""

    async def unshared(
        self: Readings, key: str, read: Callable[[], Awaitable[Any]], keep_s: float = 1.0
    ) -> Any:
        return await read()

    counts = counted(monkeypatch, unshared)
    together = looked(server, overview, WINDOWS)

    print(f"FIG readings not shared: {together:.0f} commands/s with {WINDOWS} windows")
    assert counts["asked"] > 0
    assert not are_shared(counts), counts
