"""`rmq top`: its frame, its keys, and both on a real terminal."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import termios
import time

import click
import pytest

import rmq
from rmq.cli.top import COLUMNS, WIDE, Reading, Top, document, keys, rates, short
from rmq.features.queries.held import HeldQuery
from rmq.kernel.core.slo import Slo
from rmq.kernel.core.telemetry import BUCKETS
from tests.cli.conftest import bury

COUNTS = dict.fromkeys((*COLUMNS.values(), "records"), 0)


def reading(at=1.0, lateness=None, **topics):
    counts = {name: COUNTS | counts for name, counts in topics.items()}
    return Reading(at, counts, [], 0.004, lateness or {})


def late(**counts):
    """Counts by bucket: `b2=96` are 96 messages that were 2 to 4 ms late."""
    return tuple(counts.get(f"b{bucket}", 0) for bucket in range(BUCKETS))


@pytest.fixture
def two():
    top = Top("redis://here")
    top.update(reading(1.0, {"a": late(b2=4)}, a={"accepted": 10}, b={"dead": 1}))
    a, b = {"accepted": 30, "priority": 12345}, {"dead": 70, "late_ms": 9000}
    top.update(reading(3.0, {"a": late(b2=100, b13=4)}, a=a, b=b))
    return top


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1.25, "1.2"), (9999, "9999"), (12345, "12.3k"), (999_949, "1000k"),
     (1_500_000, "1.5M"), (2.5e9, "2.5G")],
)  # fmt: skip
def test_numbers_fit(value, text):
    assert short(value) == text


def test_rates_come_from_two_readings(two):
    assert rates(two.before, two.now)["a"] == {"accepted": 10.0, "settled": 0.0}
    assert rates(None, two.now) == {}
    again = Top("")
    again.update(reading(1, a={"accepted": 90}))
    again.update(reading(2, a={"accepted": 1}))
    assert rates(again.before, again.now)["a"]["accepted"] == 0


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("height", [10, 24])
def test_a_frame_fits_the_terminal(two, width, height):
    frame = two.frame(width, height)

    assert len(frame) == height
    assert max(map(len, frame)) <= width
    percentiles = ([], []) if width < WIDE else (["3ms", "7.2s"], ["-", "-"])
    assert frame[2].split() == ["a", "12.3k", *"000000", "-", *percentiles[0], "10", "0"]
    assert frame[3].split() == ["b", *"00000", "70", "0", "9.0s", *percentiles[1], "0", "0"]
    assert frame[-1].startswith("q quit  s sort  / filter  arrows scroll  p pause")


def test_percentiles_are_those_of_the_last_quarter_of_a_minute():
    top = Top("")
    for at in range(0, 41, 5):
        slow = 1000 if at >= 10 else 0  # they came before the last 15 s
        top.update(reading(at, {"a": late(b2=at, b13=slow)}, a={}))

    assert len(top.recent) == 4
    assert top.lateness()["a"] == {"late_p50_ms": 3.0, "late_p99_ms": pytest.approx(3.98)}
    (row,) = document(top)["topics"]
    assert row["late_p50_ms"] == 3.0
    top.update(reading(60, {"a": late(b2=40, b13=1000)}, a={}))
    top.update(reading(80, {"a": late(b2=40, b13=1000)}, a={}))
    assert top.lateness()["a"] == {"late_p50_ms": None, "late_p99_ms": None}, "nothing was taken"


def test_keys_sort_filter_and_pause(two):
    while two.sort != "DEAD":
        two.key("s")
    assert [topic for topic, _ in two.rows()] == ["b", "a"]
    for key in ("/", "q", "backspace", "a", "enter"):
        two.key(key)
    assert ([topic for topic, _ in two.rows()], two.ended) == (["a"], False)
    two.key("/")
    two.key("escape")
    assert len(two.rows()) == 2
    two.key("p")
    assert "PAUSED" in two.frame(80, 24)[0]
    two.key("q")
    assert two.ended


def test_arrows_scroll_and_stop_at_the_ends():
    top = Top("")
    top.update(reading(1, **{f"t{n:03}": {} for n in range(100)}))
    top.key("up")
    assert "t000" in top.frame(80, 15)[2]
    top.key("down")
    assert "t001" in top.frame(80, 15)[2]
    for _ in range(500):
        top.key("down")
    assert any("t099" in line for line in top.frame(80, 15))


def test_what_a_terminal_sends_is_keys():
    sent = b"q\x1b[A\x1bOB\x1b[C/\xc3\xa4\r\x7f\x1b"
    assert list(keys(sent)) == ["q", "up", "down", "/", "\u00e4", "enter", "backspace", "escape"]


def test_names_cannot_control_the_terminal():
    top = Top("redis://\x1b[2J")
    top.update(reading(1, **{"a\x1b[31m": {}}))
    assert "\x1b" not in "".join(top.frame(80, 24))


def held(run, messages, owner, **report):
    return HeldQuery(run * 32, owner, 5.0 if owner else -4.0, messages, 100.0, {}, report)


@pytest.mark.parametrize("width", [80, 120])
def test_queries_are_shown_over_their_topics(width):
    told = {"rows": 88140, "bytes": 10664940, "replays": 1, "lag_ms": 1500}
    queries = {
        "orders": [held("a", 505, "etl-1", **told, commands=1234)],
        "refunds": [
            held("a", 5, "etl-1", **told, commands=1230), held("b", 0, None, rows=3, lag_ms=9)
        ],
    }  # fmt: skip
    top = Top("")
    top.update(reading(1, orders={}, refunds={})._replace(queries=queries))

    lines = top.frame(width)

    at = lines.index("", 2) + 1
    assert re.sub(r"\x1b\[\d*m", "", lines[at]).split() == [
        "QUERY", "HELD", "LAG", "ROWS", "BYTES", "REPLAYS", "COMMANDS", "TOPICS", "DRIVER",
    ]  # fmt: skip
    assert lines[at + 1].split() == [
        "aaaaaaaa", "510", "1.5s", "88.1k", "10.7M", "1", "1234", "orders,", "refunds", "etl-1",
    ]  # fmt: skip
    assert lines[at + 2].split() == ["bbbbbbbb", "0", "-", "3", *"---", "refunds", "no", "driver"]
    assert max(map(len, lines)) <= width
    assert document(top)["queries"][0] == {
        "query": "a" * 32, "held": 510, "topics": ["orders", "refunds"], "owner": "etl-1",
        "report": told | {"commands": 1234},
    }  # fmt: skip
    top.key("/")
    for key in "etl":
        top.key(key)
    assert [query.run[0] for query in top.queries()] == ["a"]


@pytest.mark.parametrize("height", [5, 8, 12, 24])
def test_many_queries_leave_room_for_topics_and_workers(height):
    top = Top("")
    many = {"t000": [held(f"{n:x}", n, "etl") for n in range(16)]}
    top.update(reading(1, **{f"t{n:03}": {} for n in range(100)})._replace(queries=many))

    frame = top.frame(80, height)

    assert len(frame) == height
    shown = "".join(frame)
    if height >= 12:
        assert "t000" in shown
        assert shown.count("  etl") >= 2


def test_queries_of_a_server_are_shown(run, topic):
    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    query = topic.query("e" * 32, "etl-1")
    query.take({}, 2)
    query.keep((), {"rows": 2})

    shown = run("top", "--once", COLUMNS="80").stdout

    (line,) = [line for line in shown.splitlines() if line.startswith("eeeeeeee")]
    assert line.split()[1:4] == ["2", "-", "2"]


def test_once_is_one_frame(run, topic):
    bury(topic, "why")
    topic.send(1)

    shown = run("top", "--once", COLUMNS="80")
    found = json.loads(run("top", "--once", "-o", "json").stdout)
    rows = csv.DictReader(io.StringIO(run("top", "--once", "-o", "csv").stdout))

    lines = shown.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    (line,) = [line for line in lines if line.startswith(f"{topic.name} ")]
    assert line.split()[1:7] == ["1", "0", "0", "0", "0", "1"]
    (row,) = [row for row in found["topics"] if row["topic"] == topic.name]
    assert (row["dead"], row["accepted_per_s"]) == (1, 0)
    assert topic.name in [row["topic"] for row in rows]
    assert run("top").exit_code == 2
    assert run("top", "--once", "--interval", "100ms").exit_code == 2


def test_keys_on_a_real_terminal(shell, client, name):
    for topic in ("alpha", "beta"):
        client.topic(f"{name}-{topic}").open()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    running = shell.start("top", stdin=theirs, stdout=theirs, stderr=theirs)
    shown = ""

    def wait_for(text, since=0):
        nonlocal shown
        until = time.monotonic() + 60
        while text not in shown[since:] and time.monotonic() < until:
            if select.select([ours], [], [], 0.1)[0]:
                shown += os.read(ours, 65536).decode()
        assert text in shown[since:], shown[-2000:]

    def press(data):
        since = len(shown)
        os.write(ours, data)
        return since

    wait_for("q quit")
    assert shown.startswith("\x1b[?1049h")
    assert "OUT/S" in shown
    assert not re.search(r"OUT/S(\x1b\[0m)?\x1b\[K", shown), (
        "it clears the last cell of a full line"
    )
    wait_for("by PRIO", press(b"s"))
    wait_for("PAUSED", press(b"p"))
    wait_for(f"/{name}-al_", press(f"/{name}-al".encode()))
    wait_for(f"filter '{name}", press(b"\r"))  # 80 columns may cut it
    last = shown[shown.rindex("\x1b[H") :]
    assert f"{name}-alpha" in last
    assert f"{name}-beta" not in last
    since = len(shown)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 100, 0, 0))
    wait_for("q quit", since)
    assert len(re.findall("\r\n", shown[shown.rindex("\x1b[H") :])) == 11
    wait_for("\x1b[?1049l", press(b"q"))
    os.close(theirs)

    assert running.wait(60) == 0
    os.close(ours)


def test_percentiles_of_a_topic_that_misses_its_slo_are_red(monkeypatch):
    monkeypatch.setattr("rmq.cli.top.styled", lambda text, color: f"<{color}>{text}")

    def frame(slo):
        top = Top("redis://x")
        for at, taken in ((1.0, late(b2=4)), (3.0, late(b2=100, b13=4))):
            top.update(reading(at, {"a": taken}, a={})._replace(slos={"a": slo}))
        (line,) = [line for line in top.frame(120) if line.startswith("a ")]
        return line

    assert "<red>" in frame(Slo(99, 2.0))
    assert "<red>" not in frame(Slo(95, 2.0))
    assert "<red>" not in frame(Slo(99, 60.0))


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_two_heads_or_figures_run_together(width):
    counts = dict.fromkeys(
        ("retries", "priority", "due", "later", "in_flight", "dead", "held"), 99_900
    )
    counts |= {"late_ms": 3_599_000, "accepted": 0, "settled": 0}
    top = Top("redis://x")
    top.update(Reading(0.0, {"orders": counts}, [], 0.001, {}))

    title, heads, figures, *_ = map(click.unstyle, top.frame(width))

    shown = [head for head in COLUMNS if width >= 100 or head not in ("P50", "P99")]
    assert heads.split() == ["TOPIC", *shown]
    assert len(figures.split()) == len(shown) + 1
    assert max(map(len, (heads, figures))) <= width
    assert "1 topic  0 workers" in title
