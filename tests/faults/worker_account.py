"""The account of a run of workers, from what their handlers wrote down.

A history is a file of JSON lines, appended by many processes, one write each. Every line has the
monotonic time `t` (ns, one clock for all processes), the wall time `wall` (ms, the clock of a Redis
on this machine) and the `pid`. Handlers write

    deliver   it is called, at `t`; `n` the message, `attempt`, `fence`, `until`: when its lease
              ends, ms. The line is written when that is known
    until     Redis has a later end for the lease of this very delivery
    lost      the handler has seen that d.lost is true
    hang      it is going to work for longer than its max_runtime, `runtime` seconds from its
              call on; `blind`: it blocks, and cannot look at d.lost; `loop`: nor can others beside
              it
    done      it returns; fail: it raises
    exit      it ends its process

and a test writes what it did: kill, stop, cont, term, heartbeat (with the `pid` it did it to),
redis (with `back`, when it was over), clock (the clock of Redis steps, and is `ahead` of the wall
clock by so many ms from then on), and that a process is gone (with its exit `code`). Nothing here
knows of RMQ's own counts.

    settled      its newest delivery is done: what a zombie finishes does not count
    lost         was sent, and is neither settled nor dead
    unexplained  delivered again, and nothing had happened to the delivery before
    overlaps     begun while another run went on that had not seen that its lease was lost,
                 or before the deadline of a lease that nobody had given back
    zombies      begun although a later delivery had begun before
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.checker import History

SLACK_NS = 1_000_000_000  # a handler that looks every 20 ms, on a machine that is busy
NEVER = float("inf")
Event = dict[str, Any]


@dataclass
class Run:
    """A run of a handler."""

    n: int
    pid: int
    attempt: int
    fence: int
    begun: int
    wall: int
    untils: list[tuple[int, int]] = field(default_factory=list)  # since when, deadline
    lost: float = NEVER
    ended: float = NEVER  # done, failed, or its process died
    given: float = NEVER  # from here on the lease may be somebody else's: done, failed, handed back
    done: float = NEVER
    blind: bool = False  # it blocks its thread or loop, and cannot see that its lease is lost

    def deadline(self, at: float) -> int:
        return max(until for since, until in self.untils if since <= at)


@dataclass
class Account:
    """The outcome of a run."""

    state: str
    sent: int
    runs: int
    dead: int
    lost: list[int]
    unexpected: list[int]
    duplicates: int
    unexplained: list[int]
    overlaps: list[str]
    zombies: list[int]

    def __str__(self) -> str:
        return (
            f"{self.state}: {self.sent} sent, {self.runs} runs, {self.dead} dead, "
            f"lost {len(self.lost)}, unexpected {len(self.unexpected)}, "
            f"duplicates {self.duplicates} (unexplained {len(self.unexplained)}), "
            f"overlaps {len(self.overlaps)}, zombies {len(self.zombies)}"
        )


def events(log: Path) -> list[Event]:
    """Return the events in a history, without an unfinished last line."""
    text = log.read_bytes() if log.exists() else b""
    return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]


def _spans(history: list[Event], what: str, to: str) -> dict[int, list[tuple[float, float]]]:
    """By process: from when to when."""
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in history:
        if event["e"] == what:
            found[event["pid"]].append((event["t"], NEVER))
        elif event["e"] == to and found[event["pid"]]:
            found[event["pid"]][-1] = (found[event["pid"]][-1][0], event["t"])
    return found


def _blocked(history: list[Event]) -> dict[int, list[tuple[float, float]]]:
    """By process: from when to when a handler blocked its event loop."""
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    begun: dict[tuple[int, int, int], float] = {}
    for event in history:
        if event["e"] == "hang" and event["loop"]:
            begun[event["pid"], event["n"], event["fence"]] = event["t"]
        elif event["e"] == "done":
            since = begun.pop((event["pid"], event["n"], event["fence"]), None)
            if since is not None:
                found[event["pid"]].append((since, event["t"]))
    for (pid, _, _), since in begun.items():
        found[pid].append((since, NEVER))
    return found


def runs_of(history: list[Event]) -> dict[int, list[Run]]:
    """The runs of each message, as they began."""
    found: dict[int, list[Run]] = defaultdict(list)
    open_: dict[tuple[int, int, int], Run] = {}
    for event in history:
        what, t = event["e"], event["t"]
        if what == "deliver":
            run = Run(event["n"], event["pid"], event["attempt"], event["fence"], t, event["wall"])
            run.untils.append((t, event["until"]))
            found[run.n].append(run)
            open_[run.n, run.pid, run.fence] = run
        elif what in ("until", "lost", "done", "fail", "hang"):
            run = open_[event["n"], event["pid"], event["fence"]]
            if what == "until":
                run.untils.append((t, event["until"]))
            elif what == "lost":
                run.lost = min(run.lost, t)
            elif what == "hang":
                run.given = min(run.given, run.begun + int(event["runtime"] * 1e9))
                run.blind = event["blind"]
            else:
                run.ended, run.given = t, min(run.given, t)
                run.done = t if what == "done" else NEVER
        elif what in ("kill", "exit", "gone"):
            for run in open_.values():
                if run.pid == event["pid"]:
                    run.ended = min(run.ended, t)
        elif what == "term":
            for run in open_.values():
                if run.pid == event["pid"]:
                    run.given = min(run.given, t)
    return found


def _explained(one: Run, again: Run, history: list[Event]) -> bool:
    """Whether something happened to this run, or to what it stands on, before the next one."""
    for event in history:
        if event["t"] >= again.begun:
            return False
        if event["e"] == "redis":
            if event["back"] >= one.begun:
                return True
        elif event["pid"] == one.pid and (event["t"] >= one.begun or event["e"] == "exit"):
            # Another thread may begin between the line that tells of an exit and the exit.
            if event["e"] in ("kill", "exit", "stop", "term", "heartbeat"):
                return True
            if event["e"] == "gone" and event.get("code"):
                return True  # told to stop before this run began, it ended before the ack
            if event["e"] in ("fail", "hang") and event["n"] == one.n:
                return True
    return False


def _overlap(
    one: Run, again: Run, stopped: Iterable[tuple[float, float]], slack_ns: float, ahead_ms: int
) -> str:
    """Return why `again` began too early; '' if it did not."""
    early = one.deadline(again.begun) - again.wall - ahead_ms
    if one.given > again.begun and early > 0:
        return f"{one.n}: begun {early} ms before the lease of attempt {one.attempt} ended"
    if one.ended <= again.begun or one.blind:
        return ""
    may_be_late = again.begun + slack_ns
    for since, until in sorted(stopped):
        if since <= may_be_late and until >= again.begun:
            may_be_late = max(may_be_late, until + slack_ns)  # it cannot look before it goes on
    if one.lost > may_be_late and one.ended > may_be_late:
        return f"{one.n}: attempt {one.attempt} went on beside {again.attempt}, not told it is lost"
    return ""


def account(
    history: list[Event], sent: Iterable[int], dead: Iterable[int] = (), *, fired: int,
    slack_ns: float = SLACK_NS,
) -> Account:  # fmt: skip
    """The account of a run.

    Args:
        history: what was written down.
        sent: the messages that were accepted.
        dead: those that are dead letters.
        fired: how many faults there were; 0 proves nothing.
        slack_ns: how long after another run began a handler may learn that its lease is lost.
    """
    book, buried = History(), set(dead)
    for number in sent:
        book.attempt(number)
        book.answer(number)
    for number in buried:
        book.bury(number)
    history = sorted(history, key=lambda event: event["t"])
    ahead_ms = max([0, *(event["ahead"] for event in history if event["e"] == "clock")])
    stopped, blocked = _spans(history, "stop", "cont"), _blocked(history)
    unexplained, overlaps, zombies, settled = [], [], [], []
    for number, runs in runs_of(history).items():
        newest = runs[0]
        book.deliver(number)
        for place, again in enumerate(runs[1:], 1):
            book.deliver(number)
            if _explained(newest, again, history):
                book.explain(number)
            else:
                unexplained.append(number)
            for one in runs[:place]:
                if wrong := _overlap(
                    one, again, [*stopped.get(one.pid, []), *blocked.get(one.pid, [])], slack_ns,
                    ahead_ms,
                ):  # fmt: skip
                    overlaps.append(wrong)
            if again.fence < newest.fence:
                zombies.append(number)
            else:
                newest = again
        if newest.done < NEVER:
            settled.append(number)
    for number in settled:
        book.settle(number)
    verdict = book.verdict(fired=fired)
    state = verdict.state
    if overlaps or zombies or unexplained:
        state = "invalid"
    return Account(
        state, verdict.answered, verdict.delivered, len(buried), verdict.stuck, verdict.unexpected,
        verdict.duplicates, unexplained, overlaps, zombies,
    )  # fmt: skip
