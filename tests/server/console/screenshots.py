"""Screenshots of every page of the console, for docs/console: `make screenshots`.

A browser looks at a server of its own, whose Redis holds the shop of `shop.py`. Names of machines
in the pages are made up, so two runs on two machines show the same shop.
"""

from __future__ import annotations

import argparse
import io
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import rmq
from tests.server.console import browsing
from tests.server.console.shop import Shop, furnish
from tests.server.running import serving
from tests.servers import Server as Redis, engines

FOLDER = Path(__file__).parents[3] / "docs" / "console"
PREFIX = "shop"
HOST = "shop-server-1"
EACH_BYTES, ALL_BYTES = 60_000, 1_200_000
COLOURS = 64  # of a picture, those that are seen most: grounds and lines keep theirs
# The doctor would complain of a Redis without, and of calls that waited for a CPU of this machine.
OPTIONS = ("--appendonly", "yes", "--appendfsync", "everysec", "--slowlog-log-slower-than", "-1")
LIVE_MS = 6_000  # until rates are known, which are those between two looks

DEAD = "topics/payments/dead-letters"
PAGES = {
    "problems": "problems", "runbook": "runbook", "overview": "",
    "causes": "dead-letters/causes",
    "edit": DEAD + "/edit/{dead}", "topic": "topics/payments", "topic-paused": "topics/newsletter",
    "messages": "topics/mail/messages",
    "messages-in-flight": "topics/payments/messages?queue=prepare",
    "cancel": "topics/mail/cancel?filter=priority%3E0&running=on",
    "message": "topics/mail/messages/{waiting}", "message-dead": "topics/payments/messages/{dead}",
    "dead-letters-topics": "dead-letters", "dead-letters": DEAD,
    "dead-letters-filter": DEAD + '?filter=error+contains+"amount"+and+header.tenant=osaka',
    "dead-letters-mistake": DEAD + "?filter=age%3Esoon",
    "dead-letters-groups": DEAD + "/groups",
    "groups": "topics/invoices/groups", "purge-group": "topics/invoices/groups/purge?group=tokyo",
    "redrive": DEAD + '/redrive?filter=error+contains+"amount"',
    "purge": DEAD + '/purge?filter=error+contains+"amount"',
    "restore": DEAD + "/restore", "trash": "topics/payments/trash",
    "leases": "topics/payments/leases", "loss-audit": "topics/payments/audit",
    "resize": "topics/payments/resize?slots=8",
    "release-query": "topics/stock/queries/" + "0f" * 16 + "/release",
    "slots": "topics/payments/slots", "settings": "topics/payments/settings",
    "schedules": "topics/reports/schedules", "queries": "topics/stock/queries",
    "delete": "topics/newsletter/delete", "workers": "workers", "jobs": "jobs", "job": "jobs/{job}",
    "batches": "batches", "batch": "batches/import-7", "cancel-batch": "batches/import-7/cancel",
    "health": "health", "audit-trail": "audit-trail", "tokens": "tokens", "not-found": "nothing",
}  # fmt: skip


class Look(NamedTuple):
    """How pages are looked at."""

    name: str
    width: int
    height: int
    tallest: int
    scheme: str


LOOKS = (
    Look("light", 1200, 700, 800, "light"),
    Look("dark", 1200, 700, 800, "dark"),
    Look("phone", 390, 844, 1400, "light"),
)

KEPT = LOOKS[0]  # in docs/console; browser tests look at all of them


def packed(png: bytes, tallest: int) -> bytes:
    """Return a screenshot in few colours and few bytes, cut where it is taller."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        cut = image.convert("RGB").crop((0, 0, image.width, min(image.height, tallest)))
        out = io.BytesIO()
        counted = sorted(cut.getcolors(cut.width * cut.height) or [], reverse=True)
        palette = Image.new("P", (1, 1))
        palette.putpalette([part for _, colour in counted[:COLOURS] for part in colour])
        few = cut.quantize(palette=palette, dither=Image.Dither.NONE)
        few.save(out, "PNG", optimize=True)
    return out.getvalue()


def shots(browser: Any, url: str, look: Look, names: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """Sign in, and yield each page as a picture."""
    size = {"width": look.width, "height": look.height}
    with browsing.Window(browser, url, viewport=size, color_scheme=look.scheme) as window:
        page = window.page
        window.open("")  # leads to the page to sign in
        yield "signin", page.screenshot(full_page=True)
        page.fill("#token", names["token"])
        page.keyboard.press("Enter")
        page.locator("#topics").wait_for()
        page.wait_for_timeout(LIVE_MS)
        for name, path in PAGES.items():
            window.open("/" + path.format(**names) if path else "")
            page.get_by_text("the doctor examines").wait_for(state="hidden")
            page.wait_for_timeout(300)
            yield name, page.screenshot(full_page=True, animations="disabled")


def take(folder: Path, looks: list[Look]) -> dict[str, int]:
    """Write the pictures; return how many bytes each has."""
    sizes: dict[str, int] = {}
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(socket, "gethostname", return_value=HOST))
        stack.enter_context(mock.patch.dict(os.environ, LOGNAME="ann"))
        redis = Redis(list(engines().values())[-1], *OPTIONS)
        stack.callback(redis.stop)
        client = stack.enter_context(rmq.Client(redis.url, prefix=PREFIX))
        shop = Shop(client, PREFIX)
        shop.live_an_hour()
        names = furnish(client)
        server = stack.enter_context(serving(redis.url, PREFIX, auth="token"))
        stack.enter_context(shop.open())
        browser = stack.enter_context(browsing.started())
        for look in looks:
            for name, png in shots(browser, server.url, look, names):
                path = folder / f"{name}-{look.name}.png"
                path.write_bytes(packed(png, look.tallest))
                sizes[path.name] = path.stat().st_size
    return sizes


def main() -> None:
    """Take all pictures, and refuse those that are too large for a repository."""
    parser = argparse.ArgumentParser(prog="make screenshots", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="default docs/console")
    names = [each.name for each in LOOKS]
    parser.add_argument("--look", choices=names, default=KEPT.name, help=f"default: {KEPT.name}")
    options = parser.parse_args()
    chosen = [each for each in LOOKS if each.name == options.look]
    sizes = take(options.folder, chosen)
    large = {name: size for name, size in sizes.items() if size > EACH_BYTES}
    print(
        f"{len(sizes)} pictures, {sum(sizes.values()):,} bytes, the largest {max(sizes.values()):,}"
    )
    if large or sum(sizes.values()) > ALL_BYTES:
        raise SystemExit(f"too large: {large or sum(sizes.values())}")


if __name__ == "__main__":
    main()
