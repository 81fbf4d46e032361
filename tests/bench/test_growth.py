"""`python -m bench --only growth`: what it measures, that it runs, and the table made of it."""

from __future__ import annotations

import io
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from bench import __main__ as bench
from bench.capacity import main as print_capacity, masters_table, table
from bench.figures import Figures
from bench.growth import (
    BODIES,
    DEEPEST,
    DEPTHS,
    SLOTS,
    Cost,
    GrowthRow,
    Point,
    Topic,
    _deeper,
    _fill,
    points,
)
from bench.growth_table import show
from bench.report import Bar, bar
from rmq.kernel.core.keys import SlotKeys
from tests.servers import Server, oldest_supported


@pytest.mark.parametrize("deepest", [1_000, 100_000, DEEPEST, 10_000_000])
def test_no_point_is_deeper_than_asked_for(deepest: int) -> None:
    depths = [point.depth for point in points(deepest) if point.grows == "depth"]
    assert depths == [depth for depth in DEPTHS if depth <= deepest]


def test_slots_and_bodies_grow_while_all_else_stands_still() -> None:
    series = defaultdict(list)
    for point in points():
        series[point.grows].append(point)

    assert [one.slots for one in series["slots"]] == list(SLOTS)
    assert len({(one.depth, one.body) for one in series["slots"]}) == 1
    assert [one.body for one in series["body"]] == list(BODIES)
    assert {one.slots for one in series["body"]} == {1}
    assert max(one.depth * one.body for one in points()) <= 125 << 20


@pytest.mark.slow
def test_a_small_run_measures_every_point_beside_plain_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "growth.json"
    small = [
        Point("depth", 3000), Point("slots", 600, slots=3), Point("slots, by key", 600, slots=3),
        Point("body", 300, body=262_144),  # a take of 100 comes in two replies
    ]  # fmt: skip
    monkeypatch.setattr("bench.growth.points", lambda *_: small)
    monkeypatch.setattr("bench.memory.time.sleep", lambda _: None)
    arguments = ["--only", "growth", "--quick", "--rounds", "2", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])

    bench.main()

    depth, filled, deeper, slots, by_key, body = json.loads(file.read_text())["figures"]
    assert deeper["name"] == "Redis's us of a life among 3,000 / 1,000"
    assert filled["name"] == deeper["name"] + ", just filled"
    assert len(deeper["rounds"]) == 2
    assert all(ratio > 0 for ratio in deeper["rounds"] + filled["rounds"])
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
    assert "256 KiB" in capsys.readouterr().out


def test_the_options_of_growth_are_refused_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "cost", "--deepest", "1000"])
    with pytest.raises(SystemExit):
        bench.main()


def _side(us: float, memory: float) -> Cost:
    verbs = ("send", "take", "ack", "life")
    columns = {(verb, column): [us, 3 * us] for verb in verbs for column in ("redis", "cpu")}
    return Cost(columns, memory)


def _rows() -> list[GrowthRow]:
    topic, keys = _side(8.0, 315.2), _side(2.0, 176.0)
    return [
        GrowthRow("growth", point.name, [8.0, 24.0], "us", None, True, {}, point, topic, keys, 40.0)
        for point in (
            Point("depth", 1_000_000), Point("slots", 100_000, slots=64),
            Point("slots, by key", 100_000, slots=1024), Point("body", 128, body=262_144),
        )
    ]  # fmt: skip


def test_a_deep_life_may_take_two_and_a_half_times_a_shallow_one_in_the_same_round() -> None:
    shallow = Cost({("life", "redis"): [4.0, 8.0, 4.0]})
    deep = Cost({("life", "redis"): [10.0, 20.0, 9.0]})

    row = _deeper(Point("depth", 10_000_000), deep, shallow)

    assert row.rounds == [2.5, 2.5, 2.25]
    assert row.verdict == "ok"
    assert _deeper(Point("depth", 10_000_000), _side(10.1, 0), _side(4.0, 0)).verdict == "short"


def test_a_table_that_is_being_doubled_is_finished_before_depth_is_measured() -> None:
    depth = 70_000  # beyond 65 536 rows the tables get 131 072; 4 500 sends are too few to move all
    point = Point("depth", depth)
    server = Server(oldest_supported())  # Redis 6.2 answers DEBUG without being configured
    try:
        with server.raw() as raw:
            topic = Topic(server.url, point)
            _fill(raw, topic, point, Mock())
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


def test_a_topic_is_filled_to_its_depth_in_calls_that_suit_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: dict[Point, list[int]] = {
        Point("depth", 10_000_000): [], Point("depth", 1_000): [],
        Point("slots", 100_000, slots=8): [],
    }  # fmt: skip
    monkeypatch.setattr("bench.growth.used_memory", lambda _: 0)

    for point, counts in calls.items():
        side, shown = Mock(), Mock()
        side.fill = counts.append
        _fill(Mock(), side, point, shown)
        assert sum(counts) == point.depth - 200
        assert shown.advance.call_count == len(counts)

    assert [max(counts) for counts in calls.values()] == [1000, 100, 100]


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
    show(_rows())

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
