"""The account at the end of a run: the outcome of every message, and a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

NOTES = {
    "sent": "messages that RMQ has accepted",
    "merged": "of them, merged into a waiting message",
    "unconfirmed": "sends without a reply; they may have arrived",
    "received": "deliveries, with retries",
    "nacked": "of them, failed on purpose (--fail)",
    "settled": "messages acked",
    "drained": "of them, after the users stopped",
    "dead": "dead letters: failed every time",
    "waiting": "or in flight, when the drain ended",
    "strangers": "messages of other senders; released",
    "early": "received before they were due",
    "duplicates": "delivered when settled, or under a lease",
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
    one_clock: bool  # whether server and client agree on the time; else "early" is only a guess

    def is_wrong(self, name: str) -> bool:
        """Return whether a figure must be 0 and is not."""
        if name == "early" and not self.one_clock:
            return False
        wrong = ("waiting", "strangers", "early", "duplicates", "lost")
        return name in wrong and getattr(self, name) > 0

    @property
    def wrong(self) -> list[str]:
        """The figures that make the run fail."""
        return [name for name in NOTES if self.is_wrong(name)]

    def table(self) -> Table:
        """Return the account as a table."""
        table = Table(box=SIMPLE_HEAD, title="Account", title_justify="left", title_style="bold")
        table.add_column("figure")
        table.add_column("count", justify="right")
        table.add_column("meaning", style="dim")
        for name, note in NOTES.items():
            style = "red" if self.is_wrong(name) else None
            if name in ("duplicates", "lost") and style is None:
                style = "green"
            table.add_row(name, str(getattr(self, name)), note, style=style)
        return table
