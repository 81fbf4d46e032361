"""The tables of README.md and bench/README.md, in Markdown, from the figures of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from bench.cost.row import COLUMNS
from bench.cost.trials import CALLS
from bench.figures import Figures, K, Missing, Spread, spaced, us
from bench.lone import rows as lone_rows
from bench.peers import show as peers_show
from bench.report import text

KINDS = ("plain", "json", "timed", "merged", "audited", "ordered", "bare", "stream")
VERBS = ("send", "take", "ack")
RARER = ("nack", "release", "stage", "publish", "query_take", "query_settle")
BATCHES = tuple(CALLS)
LIVES = {"redis": "Redis", "commands": "in commands", "script": "in the script",
         "cpu": "CPU of Redis", "calls": "calls", "client": "CPU of the client",
         "aof": "AOF bytes"}  # fmt: skip
assert list(LIVES) == list(COLUMNS)


def markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column has words and whose other columns have numbers."""
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
    """Return Redis's us of the other verbs."""
    rows = [(verb, "plain") for verb in RARER] + [("merge", "merged")]
    return markdown(
        ["Redis", *map(str, BATCHES)],
        (
            [f"`{verb}`", *(us(figures.cost(verb, kind, k, "redis")) for k in BATCHES)]
            for verb, kind in rows
        ),
    )


def aof(figures: Figures) -> str:
    """Return the bytes that each verb appends to the AOF, by kind and batch, with the body."""
    rows = [(verb, kind) for kind in KINDS for verb in VERBS]
    rows[3:3] = [("life", "plain"), *((verb, "plain") for verb in RARER)]
    rows.append(("merge", "merged"))
    return markdown(
        ["AOF bytes", *map(str, BATCHES)],
        (
            [f"`{verb}`, {kind}", *(spaced(figures.cost(verb, kind, k, "aof")) for k in BATCHES)]
            for verb, kind in rows
        ),
    )


def lives(figures: Figures) -> str:
    """Return all columns of a whole life, for RMQ and the queues it is compared with."""
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
    depth = figures.names("cost", "memory, plain, ")[0].split()[2]  # a quick run has fewer
    for kind in ("plain", "bare", "stream"):
        names = [f"memory, {kind}, {depth} waiting, each: {way}" for way in ways]
        rows.append([kind, *(spaced(figures.spread(name).value) for name in names)])
    return markdown([f"bytes of one, {depth.replace(',', ' ')} waiting", *ways], rows)


def cost(figures: Figures) -> str:
    """Return the tables of the part cost about time and memory."""
    return "\n\n".join([verbs(figures), rarer_verbs(figures), lives(figures), memory(figures)])


def lone(figures: Figures) -> str:
    """Return the costs of the steps of a lone message."""
    heading, rows = lone_rows({name: notes for name, (_, notes) in figures.part("lone").items()})
    return markdown(heading, rows)


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


Figure = Mapping[str, Any]  # as in a file


def measured(figure: Figure) -> str:
    """Return the value of a figure with its unit, and the least and most of its rounds."""
    unit, rounds = figure["unit"], figure["rounds"]
    value = text(unit, figure["value"]) + ("" if unit == "x" else f" {unit}")
    if len(rounds) == 1:
        return value
    return f"{value} ({text(unit, min(rounds))} .. {text(unit, max(rounds))})"


def rows(figures: Figures, found: Iterable[Figure]) -> str:
    """Return a row for each figure: its name, its measured value, and its target."""
    return markdown(
        ["figure", "measured", "target"],
        ([one["name"], measured(one), figures.target(one["name"])] for one in found),
    )


def streams(figures: Figures) -> str:
    """Return RMQ's speed / a raw stream's, and a deep queue's time / a shallow queue's."""
    names = figures.names("throughput", f"bulk send, k = {K}") + figures.names("drain", "")
    names += figures.names("growth", "Redis's us of a life among")
    return rows(
        figures,
        [one for one in figures.of("throughput", "drain", "growth") if one["name"] in names],
    )


def _promised(figures: Figures) -> tuple[list[Figure], list[Figure]]:
    """Return all figures with a target, and the figures that miss it."""
    promised = [one for one in figures.of(*figures.parts) if one.get("target") is not None]
    return promised, [one for one in promised if one["verdict"] == "short"]


def shorts(figures: Figures) -> str:
    """Return the figures that miss their target."""
    promised, short = _promised(figures)
    told = f"{len(promised) - len(short)} of {len(promised)} targets are met. The others:"
    return f"{told}\n\n{rows(figures, short)}"


def concurrency(figures: Figures) -> str:
    """Return each way to call RMQ and a stream, the times, and the ratios to another checkout."""
    cells, others = [], []
    for figure in figures.of("concurrency"):
        notes = figure.get("notes", {})
        if "stream" not in notes:
            others.append(figure)
            continue
        for side, name in zip(("rmq", "stream"), figure["name"].split(" / "), strict=True):
            of = {metric: median(values) for metric, values in notes[side].items()}
            verdict = [measured(figure), figures.target(figure["name"])]
            cells.append([
                name, spaced(of["messages/s"]), f"{of['p50 ms']:.2f} / {of['p99 ms']:.2f}",
                us(of["client us"]), us(of["Redis us"]), *(verdict if side == "rmq" else ["", ""]),
            ])  # fmt: skip
    heading = ["called", "messages/s", "p50 / p99 ms of a call", "client us", "Redis us",
               "to the stream", "target"]  # fmt: skip
    return f"{markdown(heading, cells)}\n\n{rows(figures, others)}"


def servers(figures: Figures) -> str:
    """Return the main rows on each server: messages/s, and the ratio to a stream on the server."""
    cells: dict[str, dict[str, str]] = {}
    told = []
    for figure in figures.of("servers"):
        notes = figure.get("notes", {})
        if "server" not in notes:
            told.append(f"{figure['name']} took {measured(figure)}.")
            told += [f"Not measured: {notes['left out']}."] if "left out" in notes else []
            continue
        server, name = figure["name"].split(": ")
        rate = spaced(median(notes["rmq"]["messages/s"]))
        cells.setdefault(name, {})[server] = f"{rate}/s, {measured(figure)}"
    names = list(next(iter(cells.values())))
    table = markdown(
        ["RMQ's messages/s, and to the stream's", *names],
        ([name, *(of[server] for server in names)] for name, of in cells.items()),
    )
    return f"{table}\n\n{' '.join(told)}"


def client(figures: Figures) -> str:
    """Return the messages/s of one client process, by kind of call."""
    bulk, drain = f"bulk send, k = {K}, ", f"drain, k = {K}, to a stream's XREADGROUP and XACK"
    found = {one["name"]: one["notes"] for one in figures.of("throughput") if bulk in one["name"]}
    told = {
        f"`send_many` of {K}": found[f"{bulk}to a raw stream's"]["rmq messages/s"],
        f"`send_many` of {K} that merge into waiting messages":
            found[f"{bulk}of messages that merge, to plain ones"]["rmq-merging messages/s"],
        f"`receive` and `ack` of {K}": figures.part("drain")[drain][1]["messages/s"],
    } | {
        one["name"].split(" / ")[0]: one["notes"]["rmq"]["messages/s"]
        for one in figures.of("concurrency") if "stream" in one.get("notes", {})
    }  # fmt: skip
    return markdown(
        ["one client process", "messages/s", "least .. most"],
        (
            [name, spaced(median(rates)), f"{spaced(min(rates))} .. {spaced(max(rates))}"]
            for name, rates in told.items()
        ),
    )


OTHERS = ("memory", "remembered", "latency", "due", "idle", "outbox")


def others(figures: Figures) -> str:
    """Return all figures of the small parts."""
    return rows(figures, figures.of(*OTHERS))


def cluster(figures: Figures) -> str:
    """Return all figures of the part cluster."""
    return rows(figures, figures.of("cluster"))


def peers(figures: Figures) -> str:
    """Return RMQ's worker and other workers, the settings, and RMQ's targets."""
    found = {one["name"]: one for one in figures.of("peers")}
    table = markdown(
        peers_show.HEADING,
        (
            [f"**{name}**" if name.startswith("rmq") else name, *cells]
            for name, *cells in peers_show.rows(found)
        ),
    )
    told = "\n".join(f"- {line}" for line in peers_show.settings(found))
    promised = [one for one in found.values() if one["target"] is not None]
    return f"{table}\n\n{told}\n\n{rows(figures, promised)}"


# The figures of README.md: the work and the other program, and a pattern of the names of its
# figures. RMQ's slower worker is shown.
FIVE = {
    "send 100 messages in one call / a pipeline of 100 XADD": (
        "throughput", rf"bulk send, k = {K}, to a raw stream's",
    ),
    "send from 64 asyncio tasks / XADD by redis.asyncio": (
        "concurrency", r"send, 64 tasks of one AsyncClient / XADD, redis\.asyncio",
    ),
    "receive and ack 100 messages / XREADGROUP, XACK and XDEL": (
        "drain", rf"drain, k = {K}, to a stream's XREADGROUP, XACK and XDEL",
    ),
    "run empty handlers / {peer}, the fastest other worker in Python": (
        "peers", r"rmq-(sync|async): drain, to .+",
    ),
    "one message from send to handler / BullMQ": (
        "peers", r"rmq-(sync|async): one, to bullmq",
    ),
}  # fmt: skip
HEADING = ("work", "compared with", "RMQ is", "target")


def five(figures: Figures) -> str:
    """Return five figures, and how many of all targets are missed."""
    cells = []
    for title, (part, pattern) in FIVE.items():
        found = [one for one in figures.of(part) if re.fullmatch(pattern, one["name"])]
        if not found:
            raise Missing(f"no figure {pattern!r} of the part {part}")
        figure = min(found, key=lambda one: float(one["value"]))
        peer = figure["name"].split(", to ")[-1]
        work, _, other = title.format(peer=peer).partition(" / ")
        ratio = f"{text(figure['unit'], figure['value'])} times as fast"
        cells.append([work, other, ratio, figures.target(figure["name"]) or "none"])
    promised, short = _promised(figures)
    return (
        f"{markdown(HEADING, cells)}\n\n"
        f"Of {len(promised)} targets of this run {len(short)} are missed: "
        "[the list](bench/README.md#targets-that-are-missed)."
    )
