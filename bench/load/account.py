"""The account at the end of a run: every message once, and a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

NOTES = {
    "sent": "messages that RMQ has accepted",
    "merged": "of them, into one that waited",
    "unconfirmed": "sends without an answer; sent if they arrived",
    "received": "deliveries handed over, retries among them",
    "nacked": "of them, failed on purpose (--fail)",
    "settled": "messages acked",
    "drained": "of them, after the users had stopped",
    "dead": "letters: failed every time",
    "waiting": "or in flight still, when the drain ended",
    "strangers": "deliveries this run had not sent; put back",
    "early": "received before they were due",
    "duplicates": "came when they were over, or someone's",
    "lost": "sent; not merged, settled, dead or waiting",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The outcome of the messages of a run: sent = merged + settled + dead + waiting + lost."""

    sent: int
    merged: int
    unconfirmed: int
    received: int
    nacked: int
    settled: int
    drained: int
    dead: int
    waiting: int
    strangers: int
    early: int
    duplicates: int
    lost: int
    drain_s: float
    one_clock: bool  # the server's and ours; else "early" is a guess and nothing is held against it

    def is_wrong(self, name: str) -> bool:
        """Whether a figure breaks a promise, or leaves the account open."""
        if name == "early" and not self.one_clock:
            return False
        wrong = ("waiting", "strangers", "early", "duplicates", "lost")
        return name in wrong and getattr(self, name) > 0

    @property
    def wrong(self) -> list[str]:
        """The figures that make the run fail."""
        return [name for name in NOTES if self.is_wrong(name)]

    def table(self) -> Table:
        """The account for people."""
        made = Table(box=SIMPLE_HEAD, title="Account", title_justify="left", title_style="bold")
        made.add_column("figure")
        made.add_column("count", justify="right")
        made.add_column("what it counts", style="dim")
        for name, note in NOTES.items():
            style = "red" if self.is_wrong(name) else None
            if name in ("duplicates", "lost") and style is None:
                style = "green"
            made.add_row(name, str(getattr(self, name)), note, style=style)
        return made
