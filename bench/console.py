"""The console's pages of a topic with a million messages: `python -m bench.console`.

It measures Redis's time for one call of a page, the calls of a page, its size, and the time of its
first byte. The topic has as many dead letters as waiting messages. If permitted, Redis has a higher
priority than all other processes. Another server leads the services, so that they make no calls. No
cached figure is available when a page is fetched.
"""

from __future__ import annotations

import argparse
import http.client
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import rmq
from bench import report
from bench.dead_letters import CAUSES, bury, first_of_all
from bench.machine import server
from bench.measurement import Measurement
from rmq.server.leadership import Leadership
from tests.server.console.asked import Asked, Watch, forgetting
from tests.server.running import serving
from tests.servers import Server as Redis, engines

PREFIX = "rmq"
FILL = 10_000  # messages per call of send_many
CONNECT_S = 5.0  # until the services have connected
DONE_S = 290.0  # longest wait until a topic's letters are counted
NOTED_US = 100  # shorter calls are not recorded
COUNTED = ("by cause, to the end", "causes, to the end", "redrive all, to the end")  # fetched once
BUSY_MS = 5.0  # target: longest time of Redis for one call
AT = "2100-01-01T00:00:00Z"
DEAD = "topics/big/dead-letters"
PAGES = {
    "overview": "", "topic": "topics/big", "waiting": "topics/big/messages",
    "a message": "topics/big/messages/{waiting}", "a dead letter": "topics/big/messages/{dead}",
    "topics with dead letters": "dead-letters", "dead letters": DEAD,
    "filter, 1 in 2": f"{DEAD}?filter=error+contains+Timeout",
    "filter, none": f"{DEAD}?filter=error+contains+Nothing",
    "by cause, to the end": f"{DEAD}/groups",
    "redrive all, to the end": f"{DEAD}/redrive?at={AT}",
    "trash": "topics/big/trash", "slots": "topics/big/slots", "settings": "topics/big/settings",
    "schedules": "topics/big/schedules", "queries": "topics/big/queries",
    "delete": "topics/big/delete", "workers": "workers", "jobs": "jobs",
    "causes, to the end": "dead-letters/causes", "search": "topics/big/messages?filter=type=none",
    "problems, to the end": "problems", "health": "health",
    "audit trail": "audit-trail", "tokens": "tokens",
}  # fmt: skip
GOES_ON = (b"Counting:", b"still being counted", b"the doctor examines")


class Fetched(NamedTuple):
    """A page: its status, its bytes as sent, its text, and the time of its first byte."""

    status: int
    sent: int
    text: bytes
    first_ms: float


def fetch(url: str, path: str) -> Fetched:
    """Fetch a page, compressed."""
    import gzip

    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    began = time.perf_counter()
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    reply = connection.getresponse()
    first_ms = 1000 * (time.perf_counter() - began)
    content = reply.read()
    connection.close()
    is_packed = reply.getheader("Content-Encoding") == "gzip"
    text = gzip.decompress(content) if is_packed else content
    return Fetched(reply.status, len(content), text, first_ms)


def fetch_to_the_end(url: str, path: str) -> Fetched:
    """Fetch a page until counting has ended; return the first answer."""
    first = page = fetch(url, path)
    end = time.monotonic() + DONE_S
    while any(text in page.text for text in GOES_ON):
        if time.monotonic() > end:
            raise RuntimeError(f"{path} still counts")
        time.sleep(0.5)
        page = fetch(url, path)
    return first


@contextmanager
def other_leader(client: rmq.Client) -> Iterator[None]:
    """Lead the services in place of the measured server."""
    leadership = Leadership(client._transport, client._prefix)
    leadership.run_once()
    stop = threading.Event()

    def lead() -> None:
        while not stop.wait(leadership.every_s):
            leadership.run_once()

    thread = threading.Thread(target=lead, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def fill(client: rmq.Client, count: int, slots: int) -> dict[str, str]:
    """Make a topic with `count` waiting messages and as many dead letters; return two ids."""
    bury(client, "big", count, slots)
    topic = client.topic("big", slots=slots)
    for start in range(0, count, FILL):
        numbers = range(start, min(count, start + FILL))
        sent = topic.send_many([rmq.Outgoing({"n": n, "fill": "x" * 100}) for n in numbers])
    dead = client.admin.dead_letters("big", limit=1).messages[0]
    return {"waiting": str(sent[0].id), "dead": str(dead.id)}


class Seen(NamedTuple):
    """A fetched page, and the work of Redis for it."""

    page: Fetched
    asked: Asked


def pages(
    own: Redis, url: str, ids: dict[str, str], rounds: int, forget: Callable[[], None]
) -> dict[str, list[Seen]]:
    """Fetch each page `rounds` times, and record the calls of Redis."""
    found: dict[str, list[Seen]] = {name: [] for name in PAGES}
    with Watch(own, NOTED_US) as watch:
        for name, path in PAGES.items():
            path = f"/console/{path.format(**ids)}".rstrip("/")
            if name not in COUNTED:
                fetch_to_the_end(url, path)  # makes connections and compiles the template
            for _ in range(1 if name in COUNTED else rounds):
                forget()
                with watch.calls() as asked:
                    page = fetch_to_the_end(url, path)
                if page.status != 200:
                    raise RuntimeError(f"{path}: status {page.status}")
                found[name].append(Seen(page, asked))
            longest = asked.longest
            told = f"{name}: {longest.us} us {longest.name}, {asked.scripts} scripts"
            print(told, file=sys.stderr, flush=True)
    return found


def measurements(found: dict[str, list[Seen]]) -> list[Measurement]:
    """Return the figures of each page."""
    rows = []
    for name, each in found.items():
        longest = max((asked.longest for _, asked in each), key=lambda call: call.us)
        rows += [
            Measurement(
                name, f"{name}: longest call, {longest.name}",
                [asked.longest.us / 1000 for _, asked in each], "ms", BUSY_MS, True,
            ),
            Measurement(name, "  scripts", [asked.scripts for _, asked in each], "scripts"),
            Measurement(name, "  size, packed", [page.sent for page, _ in each], "B"),
            Measurement(name, "  first byte", [page.first_ms for page, _ in each], "ms"),
        ]  # fmt: skip
    return rows


def markdown(found: dict[str, list[Seen]]) -> str:
    """Return the figures as a table for docs/console.md."""
    lines = [
        "| page | longest call | scripts | packed | first byte |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, each in found.items():
        middle = len(each) // 2
        longest = sorted((asked.longest for _, asked in each), key=lambda call: call.us)[middle]
        sent = sorted(page.sent for page, _ in each)[middle]
        first_ms = sorted(page.first_ms for page, _ in each)[middle]
        scripts = sorted(asked.scripts for _, asked in each)[middle]
        busy = f"{longest.us / 1000:.2f} ms `{longest.name}`" if longest.us else "< 0.1 ms"
        lines.append(
            f"| {name} | {busy} | {scripts:,} | {sent / 1000:.1f} kB | {first_ms:.0f} ms |"
        )
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="default 1000000")
    parser.add_argument("--slots", type=int, default=4, help="default 4")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--engine", choices=engines(), help="default: PATH's redis-server")
    parser.add_argument("--markdown", action="store_true", help="a table for docs/console.md")
    return parser.parse_args()


def main() -> None:
    """Measure, and print a table."""
    options = _options()
    with server(options.engine) as own, rmq.Client(own.url, prefix=PREFIX, timeout=60) as client:
        ids = fill(client, options.messages, options.slots)
        load = os.getloadavg()[0]
        assert own.process is not None
        with other_leader(client), forgetting() as forget, serving(own.url, PREFIX) as served:
            time.sleep(CONNECT_S)
            with first_of_all(own.process.pid) as permitted:
                found = pages(own, served.url, ids, options.rounds, forget)
    console = report.console(width=110)
    if options.markdown:
        print(markdown(found))
    else:
        console.print(report.table(measurements(found)))
    goes = "before all others" if permitted else "as all others"
    print(
        f"{options.messages:,} waiting and as many dead letters of {len(CAUSES)} causes, "
        f"{options.slots} slots; Redis goes {goes}; load {load:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after"
    )


if __name__ == "__main__":
    main()
