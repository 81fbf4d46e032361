"""The page of an audit: everything from outside is text, and nothing is fetched."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from spark_connector.audit import Findings, Gap, Message, Minute, report

BEGIN_MS = 1_790_000_000_000 // 60_000 * 60_000
HOSTILE = "<script>alert(1)</script>\"'&\n\u202e</style>"


def findings(**more: Any) -> Findings:
    given: dict[str, Any] = {
        "horizon_ms": BEGIN_MS, "ledger": 10, "settled": 9, "deliveries": 9, "snapshot": 1,
        "unreadable": {}, "totals": {"delivered": 9, "lost": 1}, "redelivered": 0,
        "topics": {"orders": {"delivered": 9, "lost": 1}}, "gaps": 0, "gap_numbers": 0,
        "timeline": [Minute(BEGIN_MS + n * 60_000, 5, 4, n == 3) for n in range(10)],
    }  # fmt: skip
    return Findings(**(given | more))


def message(text: str) -> Message:
    return Message(text, text, 1, text, 7, BEGIN_MS, None, 0, 0)


class Checked(HTMLParser):
    """Every tag is closed, and none is one that could do something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.said = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said += data


def checked(page: str) -> Checked:
    parser = Checked()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert not parser.seen & {"script", "img", "link", "iframe", "object", "base", "form", "image"}
    assert not re.search(r"https?:|url\(|@import", page)
    return parser


def test_hostile_ids_topics_and_producers_are_shown_as_text() -> None:
    gap = Gap(HOSTILE, HOSTILE, 1, HOSTILE, 3, 4, 2, BEGIN_MS)
    every = {
        status: [message(HOSTILE)] for status in ("lost", "duplicated", "unknown", "dead", "unsent")
    }

    page = report.page(
        findings(
            totals=dict.fromkeys(every, 1), topics={HOSTILE: {"lost": 1}}, listed=every,
            gaps=1, gap_numbers=2, gap_list=[gap], unreadable={HOSTILE: 1},
        )
    )  # fmt: skip

    parser = checked(page)
    assert "\u202e" not in page
    assert (
        parser.said.count("<script>alert(1)</script>\"'&\\u{a}\\u{202e}</style>")
        == 5 * 3 + 3 + 1 + 1
    )


def test_a_page_says_the_verdict_what_is_lost_and_where_numbers_are_missing() -> None:
    lost = message("0" * 26)._replace(topic="orders", producer="p9")
    gap = Gap("orders", "p9", 3, None, 100, 104, 5, BEGIN_MS)

    said = checked(
        report.page(findings(listed={"lost": [lost]}, gaps=1, gap_list=[gap], totals={"lost": 3}))
    ).said

    assert "Found: 3 lost, 1 gap." in said
    assert "The first 1 of 3." in said
    assert "0" * 26 in said
    assert "104" in said


def test_pages_without_anything_to_show_are_pages_too() -> None:
    clean = findings(totals={"delivered": 9}, topics={})
    nothing = findings(
        totals={}, topics={}, timeline=[], ledger=0, settled=0, deliveries=0, gaps=None
    )

    assert "Clean: every message up to" in checked(report.page(clean)).said
    assert "No verdict: the ledger is empty" in checked(report.page(nothing)).said


def test_a_timeline_of_one_minute_and_one_of_nothing_but_losses_can_be_drawn() -> None:
    for steps in (
        [Minute(BEGIN_MS, 1, 0, 1)],
        [Minute(BEGIN_MS, 0, 0, 0)],
        [Minute(0, 7, 10**12, 3)],
    ):
        assert "nan" not in checked(report.page(findings(timeline=steps))).said
