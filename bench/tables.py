"""The tables of bench/README.md, in Markdown, from the figures of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.cost.row import COLUMNS
from bench.cost.trials import CALLS, DEPTH
from bench.figures import Figures, K, Spread, spaced, us

KINDS = ("plain", "json", "timed", "merged", "audited", "ordered", "bare", "stream")
VERBS = ("send", "take", "ack")
RARER = ("nack", "release", "stage", "publish", "query_take", "query_settle")
BATCHES = tuple(CALLS)
LIVES = {"redis": "Redis", "commands": "in commands", "script": "in the script",
         "cpu": "CPU of Redis", "calls": "calls", "client": "CPU of the client"}  # fmt: skip
assert list(LIVES) == list(COLUMNS)


def markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its first column is words, the others are numbers."""
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def verbs(figures: Figures) -> str:
    """Return Redis's us of send, take and ack, by kind and batch."""
    heading = ["", *(f"{verb} {k}" for verb in VERBS for k in BATCHES)]
    return markdown(
        heading,
        (
            [kind, *(us(figures.cost(verb, kind, k, "redis")) for verb in VERBS for k in BATCHES)]
            for kind in KINDS
        ),
    )


def rarer_verbs(figures: Figures) -> str:
    """Return the same of the other verbs."""
    rows = [(verb, "plain") for verb in RARER] + [("merge", "merged")]
    return markdown(
        ["Redis", *map(str, BATCHES)],
        (
            [f"`{verb}`", *(us(figures.cost(verb, kind, k, "redis")) for k in BATCHES)]
            for verb, kind in rows
        ),
    )


def lives(figures: Figures) -> str:
    """Return all columns of a whole life, of RMQ and of what it is compared with."""
    return markdown(
        ["a whole life", *LIVES.values()],
        (
            [f"{kind}, {'single life ' if k == 1 else ''}k = {k}",
             *(us(figures.life(kind, k, column)) for column in LIVES)]
            for kind in ("plain", "bare", "stream")
            for k in (1, 100, 1000)
        ),
    )  # fmt: skip


def memory(figures: Figures) -> str:
    """Return the bytes of a waiting message."""
    ways = ("used_memory", "MEMORY USAGE of its keys")
    rows = []
    for kind in ("plain", "bare", "stream"):
        names = [f"memory, {kind}, {DEPTH:,} waiting, each: {way}" for way in ways]
        rows.append([kind, *(spaced(figures.spread(name).value) for name in names)])
    return markdown([f"bytes of one, {spaced(DEPTH)} waiting", *ways], rows)


def cost(figures: Figures) -> str:
    """Return all tables of the part cost."""
    return "\n\n".join([verbs(figures), rarer_verbs(figures), lives(figures), memory(figures)])


def _spread(spread: Spread) -> str:
    return f"{spread.value:.2f} ({spread.least:.2f} .. {spread.most:.2f})"


def throughput(figures: Figures) -> str:
    """Return RMQ's speed / the baseline's, by batch."""
    steps = ("send", "receive", "ack", "life")
    more = ("JSON bodies", "client and server on one core")
    rows: list[Sequence[str]] = []
    for k in BATCHES:
        cells = [_spread(figures.spread(f"{step}, k = {k}")) for step in steps]
        cells += [f"{figures.spread(f'life, k = {k}, {one}').value:.2f}" for one in more]
        rows.append([str(k), *cells])
    heading = ["batch", "send", "receive", "ack", "whole life", "with JSON bodies", "on one core"]
    return markdown(heading, rows)


def streams(figures: Figures) -> str:
    """Return RMQ's speed / a raw stream's, and a deep queue's time / a shallow one's."""
    names = figures.names("throughput", f"bulk send, k = {K}") + figures.names("drain", "")
    names += figures.names("growth", "Redis's us of a life among")
    return markdown(
        ["figure", "measured", "target"],
        (
            [name, _spread(figures.spread(name)), figures.target(name)]
            for name in names
        ),
    )  # fmt: skip
