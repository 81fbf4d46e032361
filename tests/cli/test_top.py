"""`rmq top`: its table, what it calls a problem, and its screen on a real terminal."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from rich.console import Console, Group

import rmq
from rmq.cli.top import FIGURES, SORTS, Top
from rmq.kernel.core.slo import Slo
from rmq.kernel.topic.stats import COUNTERS, GAUGES
from tests.cli.conftest import Shell, bury
from tests.servers import Server

NOTHING = dict.fromkeys((*GAUGES, *COUNTERS), 0)


def overview(name, slo=None, error=None, **counts):
    """A topic as `read_topics` returns it."""
    settings = SimpleNamespace(objective=slo)
    return SimpleNamespace(name=name, total=NOTHING | counts, error=error, settings=settings)


def top_of(*topics):
    top = Top("redis://here")
    top.update(topics, 2, 1.0)
    top.update(topics, 2, 2.0)
    return top


def lines(shown: Group, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(shown)
    return console.file.getvalue().splitlines()


def test_rates_come_from_two_reads():
    top = Top("")
    top.update([overview("a", accepted=10)], 0, 1.0)
    assert top.rows[0]["accepted_per_s"] is None
    top.update([overview("a", accepted=30, settled=5)], 0, 3.0)
    assert (top.rows[0]["accepted_per_s"], top.rows[0]["settled_per_s"]) == (10.0, 2.5)
    top.update([overview("a", accepted=1, settled=5)], 0, 4.0)
    assert top.rows[0]["accepted_per_s"] == 0, "the topic was created again"


STUCK = {"due": 5, "late_ms": 60_000}


@pytest.mark.parametrize(
    ("topic", "problem"),
    [
        (overview("a", due=5, late_ms=900, dead=3), ""),
        (overview("a", **STUCK), "no consumer"),
        (overview("a", **STUCK, in_flight=1), ""),
        (overview("a", **STUCK, held=5), ""),  # by a limit
        (overview("a", **STUCK, paused_ms=1, held=5), "paused"),
        (overview("a", sends_paused_ms=1), "sends paused"),
        (overview("a", **STUCK, groups_held=1, in_flight=1), "groups held"),
        (overview("a", Slo(99, 2.0), late_ms=1999), ""),
        (overview("a", Slo(99, 2.0), **STUCK), "no consumer, slo missed"),
        (overview("a", error=rmq.ScriptFailed("why")), "cannot be read"),
    ],
)
def test_problems(topic, problem):
    assert top_of(topic).rows[0]["problem"] == problem


def test_a_topic_whose_messages_are_received_has_a_consumer():
    top = top_of(overview("a", **STUCK))
    top.update([overview("a", **STUCK, delivered=1)], 0, 3.0)
    assert top.rows[0]["problem"] == ""


def test_topics_with_a_problem_come_first_and_every_column_sorts():
    top = top_of(
        overview("c", due=7, dead=1), overview("b", sends_paused_ms=1), overview("a", dead=4),
        overview("d", error=rmq.ScriptFailed("why")),
    )  # fmt: skip
    orders = {}
    for top.sort in SORTS:
        orders[top.sort] = "".join(row["topic"] for row in top.sorted_rows())

    assert orders.pop("PROBLEM") == "bdac"
    assert orders.pop("TOPIC") == "abcd"
    assert orders.pop("WAITING") == "cabd"
    assert orders.pop("DEAD") == "acbd"
    assert set(orders.values()) == {"abcd"}


@pytest.mark.parametrize("width", [50, 80, 140])
@pytest.mark.parametrize("height", [3, 10, 24])
def test_a_screen_fits_the_terminal(width, height):
    counts = dict.fromkeys(("due", "later", "in_flight", "dead"), 99_900)
    topics = [overview("a.topic.with.a.long.name", Slo(99, 2.0), **counts, late_ms=3_599_000)]
    topics += [overview(f"t{n:03}") for n in range(100)]

    title, heads, *rest, foot = lines(top_of(*topics).screen(height), width)

    assert len(rest) == height - 3
    assert max(map(len, (title, heads, *rest, foot))) <= width
    assert title.startswith("101 topics  2 workers  read at ")
    assert foot == f"q quit  s sort (by PROBLEM)  {104 - height} below"
    if width >= 80:
        assert heads.split() == ["TOPIC", *FIGURES, "PROBLEM"]
    if width >= 140 and rest:
        figures = ["99900"] * 4
        assert rest[0].split() == [
            topics[0].name,
            *figures,
            "59m",
            "59s",
            "0",
            "0",
            "slo",
            "missed",
        ]


def test_names_and_errors_cannot_control_the_terminal():
    top = top_of(overview("a\x1b[31m"), overview("[red]b[/red]"))
    top.where = "redis://\x1b[2J"
    top.error = "\x1b[2J"

    shown = "".join(lines(top.screen(24)))

    assert "\x1b" not in shown
    assert "[red]b[/red]" in shown


def test_once_prints_the_table_and_ends(run, topic):
    bury(topic, "why")
    topic.send(1)

    shown = run("top", "--once", COLUMNS="80").stdout.splitlines()
    found = json.loads(run("top", "--once", "-o", "json").stdout)["topics"]
    rows = csv.DictReader(io.StringIO(run("top", "--once", "-o", "csv").stdout))
    other = run("top", "--once", "-o", "json", f"{topic.name}?").stdout

    assert max(map(len, shown)) <= 80
    (line,) = [line for line in shown if line.startswith(f"{topic.name} ")]
    assert line.split()[1:5] == ["1", "0", "0", "1"]
    (row,) = [row for row in found if row["topic"] == topic.name]
    assert (row["waiting"], row["dead"], row["accepted_per_s"]) == (1, 1, 0)
    assert topic.name in [row["topic"] for row in rows]
    assert json.loads(other) == {"topics": []}


def test_without_a_terminal_it_says_what_to_do(run, shell):
    assert run("top").exit_code == 2
    assert run("top", "--once", "--interval", "100ms").exit_code == 2
    code, shown = shell.on_terminal("top", env={"TERM": "dumb"})
    assert (code, "give --once" in shown) == (2, True)


def test_a_topic_that_cannot_be_read_is_one_row(run, server, raw, name):
    prefix = f"{name}-top"  # other tests of this server read all topics of the usual prefix
    with rmq.Client(server.url, prefix=prefix) as client:
        for topic in ("good", "junk"):
            client.topic(topic).open()
    key = f"{prefix}:{{junk}}:topic"
    raw.delete(key)
    raw.set(key, "junk")

    found = json.loads(run("top", "--once", "--json", "--prefix", prefix).stdout)["topics"]

    assert [row["problem"] for row in found] == ["cannot be read", ""]
    assert key in found[0]["error"]
    assert found[1]["topic"] == "good"


class Terminal:
    """`rmq top` on a pseudo-terminal, and what it has shown."""

    def __init__(self, shell: Shell, columns: int, height: int, *words: str) -> None:
        self.ours, theirs = pty.openpty()
        self.resize(columns, height)
        self.before = termios.tcgetattr(theirs)
        self.process = shell.start("top", *words, stdin=theirs, stdout=theirs, stderr=theirs)
        self.theirs = theirs
        self.shown = ""

    def resize(self, columns: int, height: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def wait_for(self, text: str) -> str:
        """Return what was shown before `text`, and forget it."""
        until = time.monotonic() + 60
        while text not in self.shown and time.monotonic() < until:
            if select.select([self.ours], [], [], 0.1)[0]:
                data = os.read(self.ours, 65536).decode()
                self.shown += re.sub(r"\x1b\[[\d;]*m", "", data)
        assert text in self.shown, self.shown[-2000:]
        before, _, self.shown = self.shown.partition(text)
        return before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        os.close(self.theirs)
        os.close(self.ours)


@pytest.fixture
def terminal(shell) -> Iterator[Terminal]:
    made = Terminal(shell, 80, 10)
    yield made
    made.close()


def test_keys_on_a_real_terminal(terminal):
    assert terminal.wait_for("s sort (by PROBLEM)").startswith("\x1b[?1049h")
    terminal.press(b"s")
    terminal.wait_for("s sort (by TOPIC)")
    terminal.press(b"\x1b[A")  # an arrow means nothing here
    terminal.resize(16, 10)
    terminal.wait_for("s sort …")
    terminal.press(b"q")
    terminal.wait_for("\x1b[?1049l")

    assert terminal.process.wait(60) == 0
    assert termios.tcgetattr(terminal.theirs) == terminal.before


def test_ctrl_c_gives_the_terminal_back(terminal):
    terminal.wait_for("s sort")
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for("\x1b[?1049l")

    assert terminal.process.wait(60) == 128 + signal.SIGINT
    assert termios.tcgetattr(terminal.theirs) == terminal.before


def test_redis_may_go_away_and_come_back(forgetful: Server):
    terminal = Terminal(Shell(forgetful), 80, 10)
    try:
        terminal.wait_for("0 topics")
        forgetful.kill()
        terminal.wait_for("cannot be reached")
        forgetful.start()
        with rmq.Client(forgetful.url) as client:
            client.topic("later").open()
        terminal.wait_for("1 topic ")
        terminal.wait_for("s sort")
    finally:
        terminal.close()
