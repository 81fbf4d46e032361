"""`python -m bench --only growth`: its points, its backlog, a small run, and the tables."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from rich.console import Console

from bench import __main__ as bench, report
from bench.capacity import main as print_capacity, masters_table, table
from bench.figures import Figures
from bench.growth import backlog, run, tables
from bench.growth.backlog import Pile, longest_ms
from bench.growth.points import (
    BODIES,
    DEPTHS,
    SLOTS,
    GrowthRow,
    Point,
    Side,
    Topic,
    deeper,
    points,
)
from bench.report import Bar, bar
from rmq.kernel.core.keys import SlotKeys
from tests.conftest import any_binary
from tests.servers import Server, oldest_supported


@pytest.mark.parametrize("deepest", [1_000, 100_000, 1_000_000, 10_000_000])
def test_no_point_is_deeper_than_asked_for(deepest: int) -> None:
    depths = [point.depth for point in points(deepest) if point.grows == "depth"]
    assert depths == [depth for depth in DEPTHS if depth <= deepest]


def test_slots_and_bodies_grow_while_all_else_stands_still() -> None:
    series = defaultdict(list)
    for point in points(1_000_000):
        series[point.grows].append(point)

    assert [one.slots for one in series["slots"]] == list(SLOTS)
    assert len({(one.depth, one.body) for one in series["slots"]}) == 1
    assert [one.body for one in series["body"]] == list(BODIES)
    assert {one.slots for one in series["body"]} == {1}
    assert max(one.depth * one.body for one in points(1_000_000)) <= 125 << 20


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Server]:
    """Make the backlog small; return the servers that it starts."""
    servers: list[Server] = []

    def start(*words: str, **options: bool) -> Server:
        servers.append(Server(*words, **options))  # type: ignore[arg-type]
        return servers[-1]

    monkeypatch.setattr(backlog, "Server", start)
    monkeypatch.setattr(run, "QUICK_MESSAGES", 6000)
    monkeypatch.setattr(backlog, "QUICK_CALLS", 3)
    monkeypatch.setattr(backlog, "LEAST_LEASE_S", 3.0)
    monkeypatch.setattr(backlog, "BEFORE_S", 0.3)
    monkeypatch.setattr(backlog, "AFTER_S", 0.3)
    return servers


def gone(server: Server) -> bool:
    assert server.process is not None
    return server.process.poll() is not None and not Path(server.dir).exists()


@pytest.mark.slow
def test_a_small_run_measures_every_point_and_the_backlog(
    started: list[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = tmp_path / "growth.json"
    small = [
        Point("depth", 3000), Point("slots", 600, slots=3), Point("slots, by key", 600, slots=3),
        Point("body", 300, body=262_144),  # a take of 100 comes in two replies
    ]  # fmt: skip
    monkeypatch.setattr("bench.growth.points.points", lambda *_: small)
    at_once = lambda raw: raw.info("memory")["used_memory"]  # noqa: E731
    monkeypatch.setattr("bench.growth.points.used_memory", at_once)
    words = ["bench", "--only", "growth", "--quick", "--rounds", "2", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", words)

    bench.main()

    content = json.loads(file.read_text())
    assert content["loads"].keys() == {"growth", "backlog"}
    check_points([one for one in content["figures"] if one["part"] == "growth"])
    check_backlog(Figures(content))
    out = capsys.readouterr().out
    assert "256 KiB" in out
    assert "rollback of 1 200 expired leases" in out
    assert gone(started[0])


def check_points(figures: list[dict[str, Any]]) -> None:
    depth, filled, deep, slots, by_key, body = figures
    assert deep["name"] == "Redis's us of a life among 3,000 / 1,000"
    assert filled["name"] == deep["name"] + ", just filled"
    assert len(deep["rounds"]) == 2
    assert all(ratio > 0 for ratio in deep["rounds"] + filled["rounds"])
    for row in (depth, slots, by_key, body):
        for verb in ("send", "take", "ack", "life"):
            is_mixed = row is body and verb != "ack"  # plain commands beside scripts
            share = row["topic"][verb]["commands"] / row["topic"][verb]["redis"]
            assert 0 < share < 1 or (is_mixed and share == 1)
            assert row["keys"][verb]["calls"] == (3 if verb == "life" else 1)
        assert len(row["rounds"]) == 2
        assert row["value"] == pytest.approx(row["topic"]["life"]["redis"], abs=1e-3)
    assert 150 < depth["topic"]["memory"] < 1000
    assert 100 < depth["keys"]["memory"] < 1000
    assert by_key["topic"]["send"]["calls"] > slots["topic"]["send"]["calls"]  # a script a slot
    assert body["topic"]["take"]["calls"] > 1.5 * depth["topic"]["take"]["calls"]  # two replies
    assert slots["ask_us"] > 0
    assert by_key["ask_us"] > 0
    assert "ask_us" not in depth


def check_backlog(figures: Figures) -> None:
    found = figures.part("backlog")
    assert found["lost"][0] == 0
    assert found["rollback"][1]["leases"] == 1200
    assert found["rollback"][1]["calls"] >= 12
    assert 150 < found["memory of a waiting message"][0] < 1000
    assert found["BGREWRITEAOF"][1]["aof_after"] < found["BGREWRITEAOF"][1]["aof_before"]
    for verb in ("send", "receive", "ack", "get", "stats", "receive of 1000"):
        notes = found[f"call: {verb}"][1]
        assert 0 < notes["deep"]["p50"] <= notes["deep"]["p99"] <= notes["deep"]["max"]
    page = tables.backlog(found)
    assert "| 6 000 messages | measured |" in page
    assert "6 000 messages: the same | ratio of p50" in page
    assert {line.count("|") for line in page.splitlines() if "p50 / p99" in line} <= {7}


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_a_run_that_is_stopped_leaves_neither_server_nor_directory(
    started: list[Server], monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    def stopped(*_: object) -> None:
        raise stop

    monkeypatch.setattr(backlog.Backlog, "calls", stopped)

    with pytest.raises(stop):
        backlog.backlog(any_binary(), 6000, True)

    assert gone(started[0])


def test_what_a_machine_cannot_hold_is_refused_before_anything_is_started(
    started: list[Server], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plenty: Any = SimpleNamespace(available=10**12, free=10**12)
    little: Any = SimpleNamespace(available=10**9, free=10**9)
    for memory, disk, messages, text in (
        (little, plenty, 10_000_000, "10,000,000 messages need 5.0 GB of memory, 1.0 free"),
        (plenty, little, 10_000_000, "10,000,000 messages need 7.0 GB of disk, 1.0 free"),
        (plenty, plenty, 9_999, "give at least 10,000"),
    ):
        monkeypatch.setattr(sys, "argv", ["", "--only", "growth", "--messages", str(messages)])
        monkeypatch.setattr(psutil, "virtual_memory", lambda memory=memory: memory)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, disk=disk: disk)
        with pytest.raises(SystemExit) as ended:
            bench.main()
        assert ended.value.code == 2
        assert text in capsys.readouterr().err
    assert started == []
    assert run.refusal(10_000_000) is None


def test_a_message_that_was_never_handled_is_counted() -> None:
    pile = Pile(Mock(), "deep")
    bodies = [pile.body() for _ in range(4)]
    for number in (0, 2, 2, 3):
        pile.handle(bodies[number])

    assert list(pile.handled) == [1, 0, 2, 1]


def test_a_ping_counts_for_a_call_only_as_far_as_it_was_under_way_then() -> None:
    sent = [(1.0, 1.1), (2.0, 2.5), (3.0, 3.2)]

    assert longest_ms(sent, [(1.5, 1.9)]) == 0
    assert longest_ms(sent, [(2.4, 2.45)]) == pytest.approx(50)
    assert longest_ms(sent, [(1.9, 2.2), (2.9, 3.3)]) == pytest.approx(200)


def test_the_option_of_growth_is_refused_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "cost", "--messages", "100000"])
    with pytest.raises(SystemExit):
        bench.main()


def _side(memory: float = 0.0, **columns: list[float]) -> Side:
    """A side with these rounds of each column, the same for each verb."""
    side = Side(Mock())
    side.memory = memory
    for verb in ("send", "take", "ack", "life"):
        side.columns |= {(verb, column): values for column, values in columns.items()}
    return side


def _rows() -> list[GrowthRow]:
    topic, keys = (
        _side(memory, redis=[us, 3 * us], cpu=[us, 3 * us])
        for memory, us in ((315.2, 8.0), (176.0, 2.0))
    )
    return [
        GrowthRow(point, topic, keys, 40.0)
        for point in (
            Point("depth", 1_000_000), Point("slots", 100_000, slots=64),
            Point("slots, by key", 100_000, slots=1024), Point("body", 128, body=262_144),
        )
    ]  # fmt: skip


def test_a_deep_life_may_take_two_and_a_half_times_a_shallow_one_in_the_same_round() -> None:
    shallow = _side(redis=[4.0, 8.0, 4.0])

    row = deeper(Point("depth", 10_000_000), _side(redis=[10.0, 20.0, 9.0]), shallow)

    assert row.rounds == [2.5, 2.5, 2.25]
    assert row.verdict == "ok"
    longer = deeper(Point("depth", 10_000_000), _side(redis=[10.1, 20.2, 10.1]), shallow)
    assert longer.verdict == "short"


def test_a_table_that_is_being_doubled_is_finished_before_depth_is_measured() -> None:
    depth = 70_000  # beyond 65 536 rows the tables get 131 072; 4 500 sends are too few to move all
    point = Point("depth", depth)
    server = Server(oldest_supported())  # Redis 6.2 answers DEBUG without being configured
    try:
        with server.raw() as raw:
            topic = Topic(server.url, point)
            Side(topic).fill(raw, depth, Mock())
            slot = SlotKeys("rmq", topic.topics[0].name, 0)

            def unfinished() -> list[bool]:
                tables = [
                    raw.execute_command("DEBUG", "HTSTATS-KEY", key)
                    for key in (slot.records, slot.store)
                ]
                return [b"rehashing target" in stats for stats in tables]

            assert unfinished() == [True, True]
            topic.finish_tables(raw, depth, Mock())
            assert unfinished() == [False, False]
            topic.close()
    finally:
        server.stop()


def test_a_million_messages_need_the_busy_cores_and_room_to_spare() -> None:
    lines = masters_table(Figures(_content())).splitlines()

    assert "| plain, batches of 100 | 4.0 | 7 | 8 | 8 | 2.2 |" in lines
    assert {line.count("|") for line in lines} == {7}


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_bar_is_drawn_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    out = io.StringIO()
    monkeypatch.setattr("bench.report._stderr", Console(file=out, force_terminal=is_terminal))
    monkeypatch.setattr(Bar, "SECONDS", 0.0)

    with bar() as shown:
        shown.begin("depth: 10,000,000 waiting", 200)
        shown.advance(50)

    assert ("depth: 10,000,000 waiting" in out.getvalue()) == is_terminal
    assert ("25%" in out.getvalue()) == is_terminal


def test_columns_of_the_table_stand_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    report.show_table(tables.table(_rows()), "")

    lines = capsys.readouterr().out.splitlines()
    (heading,) = [line for line in lines if "waiting" in line and "slots" in line]
    rows = [line for line in lines if " 8.00 " in line]
    assert len(rows) == 4
    for column in ("waiting", "body", "/s", "ask"):
        end = heading.index(column) + len(column)
        assert all(row[end - 1] != " " and row[end : end + 1] in ("", " ") for row in rows)


def _content() -> dict[str, Any]:
    kinds = {"plain": (10, 100, 1000)} | {
        kind: (100,) for kind in ("json", "timed", "merged", "audited", "ordered", "bare", "stream")
    }
    names = [f"life, {kind}, k = {k}" for kind, ks in kinds.items() for k in ks]
    names += ["single life, plain, k = 1", "merge, merged, k = 100"]
    cost = [{"part": "cost", "name": name, "columns": {"cpu": {"least": 4.0}}} for name in names]
    return {"machine": {}, "figures": [*cost, *(row.as_json() for row in _rows())]}


def test_a_core_carries_a_million_us_of_messages() -> None:
    lines = table(Figures(_content())).splitlines()

    assert "| plain, batches of 100 | 4.0 | 250 000 |  |" in lines
    assert "| plain, batches of 100, 1 000 000 waiting | 8.0 | 120 000 | 315 |" in lines
    assert "| SET, GET, DEL of 256 KiB, pipelines of 100 | 2.0 | 500 000 | 176 |" in lines
    assert "| a consumer that asks 64 slots, each time | 40.0 |  |  |" in lines
    assert {line.count("|") for line in lines} == {5}


def test_a_file_that_lacks_a_figure_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = _content()
    content["figures"] = content["figures"][1:]
    file = tmp_path / "part.json"
    file.write_text(json.dumps(content))
    monkeypatch.setattr(sys, "argv", ["capacity", str(file)])

    with pytest.raises(SystemExit, match="life, plain, k = 10"):
        print_capacity()
