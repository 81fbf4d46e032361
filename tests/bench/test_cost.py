"""`python -m bench --only cost`: how Redis's time is split, what is compared, and that it runs."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench.cost.compare import compare, with_checkout
from bench.cost.row import COLUMNS, CostRow
from bench.cost.spending import Spent, read_stats, split
from bench.measurement import Measurement

ROOT = Path(__file__).parents[2]


def test_the_commands_that_a_script_calls_are_taken_off_its_own_time() -> None:
    before = {"evalsha": (10, 1000), "zadd": (20, 300), "info": (4, 90)}
    after = {
        "evalsha": (12, 1100), "zadd": (24, 330), "hset": (2, 10), "info": (5, 290),
        "config|resetstat": (1, 50),
    }  # fmt: skip

    script_us, command_us, commands = split(before, after)
    each = Spent(20, script_us, command_us, commands, 160, 60, aof_bytes=4000).each()

    assert (script_us, command_us, commands) == (100, 40, 6)
    assert each == {
        "redis": 5.0, "commands": 2.0, "script": 3.0, "cpu": 8.0, "calls": 0.3, "client": 3.0,
        "aof": 200.0,
    }  # fmt: skip


def test_without_a_script_commands_are_all_there_is() -> None:
    each = Spent(10, *split({}, {"xadd": (10, 50)})).each()

    assert (each["redis"], each["commands"], each["script"]) == (5.0, 5.0, 0.0)


def test_spending_adds_up() -> None:
    one, ten = Spent(1, 2, 3, 4, 5, 6, 7), Spent(10, 20, 30, 40, 50, 60, 70)
    assert one + ten == Spent(11, 22, 33, 44, 55, 66, 77)


def test_the_stats_of_redis_py_are_read() -> None:
    info = {"cmdstat_evalsha": {"calls": 3, "usec": 90, "usec_per_call": 30.0}}
    assert read_stats(info) == {"evalsha": (3, 90)}


def _row(**columns: float) -> CostRow:
    values = {name: [columns.get(name, 10.0)] * 2 for name in COLUMNS}
    return CostRow.of("send", "plain", 100, values)


def _file(*rows: Measurement) -> dict[str, object]:
    text = json.dumps({"machine": {}, "figures": [row.as_json() for row in rows]})
    content: dict[str, object] = json.loads(text)
    return content


def test_what_is_higher_by_five_percent_is_marked_and_less_is_not() -> None:
    before = _file(_row())

    (comparison,) = compare([_row(redis=10.5, script=10.49, client=9.0, cpu=20.0)], before)

    assert comparison.higher() == ["redis", "cpu"]
    assert comparison.ratios["redis"] == pytest.approx(1.05)
    assert comparison.ratios["client"] == pytest.approx(0.9)


def test_the_least_of_the_rounds_is_compared_and_not_their_median() -> None:
    before = _file(_row())
    noisy = _row()
    noisy.columns["redis"][:] = [10.0, 90.0]

    (comparison,) = compare([noisy], before)

    assert comparison.higher() == []


def test_what_redis_counts_as_nothing_has_no_ratio() -> None:
    (comparison,) = compare([_row(script=0.01)], _file(_row(script=0.0)))

    assert "script" not in comparison.ratios
    assert comparison.higher() == []


def test_memory_is_compared_and_a_row_without_a_counterpart_is_not() -> None:
    memory = Measurement("cost", "memory", [318.0], "B")
    more = Measurement("cost", "memory", [400.0], "B")

    (comparison,) = compare([more, _row()], _file(memory))

    assert comparison.name == "memory"
    assert comparison.higher() == ["memory"]


@pytest.mark.slow
def test_a_small_run_measures_every_column_of_every_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cost.json"
    arguments = ["--only", "cost", "--quick", "--rounds", "1", "--k", "1,10", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["bench", *arguments, "--depth", "1000"])

    bench.main()

    figures = json.loads(file.read_text())["figures"]
    rows = {figure["name"]: figure["columns"] for figure in figures if "columns" in figure}
    sizes = {figure["name"]: figure["value"] for figure in figures if "columns" not in figure}
    for kind in ("plain", "json", "timed", "merged", "audited", "ordered", "bare", "stream"):
        for verb in ("send", "take", "ack", "life"):
            for k in (1, 10):
                columns = rows[f"{verb}, {kind}, k = {k}"]
                expected = set(COLUMNS) - ({"script"} if kind == "stream" else set())
                missing = {name for name in expected if columns[name]["least"] <= 0}
                assert set(columns) == set(COLUMNS)
                assert not missing - {"cpu"}, (verb, kind, k)  # some systems count CPU in ms
    for verb in ("nack", "release", "stage", "publish", "query_take", "query_settle"):
        assert rows[f"{verb}, plain, k = 10"]["redis"]["least"] > 0
    assert 0 < rows["merge, merged, k = 10"]["calls"]["least"] < 5  # one script for all ten
    assert rows["single life, plain, k = 1"]["redis"]["least"] > 0
    assert len(sizes) == 6
    assert all(100 < size < 1000 for size in sizes.values())
    assert "single life" in capsys.readouterr().out


@pytest.mark.slow
def test_another_checkout_is_measured_by_turns_and_compared_pair_by_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    for folder in ("rmq", "lua", "bench", "tests/servers.py", "pyproject.toml"):
        (other / folder).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copy if (ROOT / folder).is_file() else shutil.copytree
        copy(ROOT / folder, other / folder)
    scripted = other / "lua" / "ack.lua"
    work = "for i = 1, 200000 do local _ = tostring(i) end\n"  # tens of ms in each call
    scripted.write_text(scripted.read_text().replace("]]\n", f"]]\n{work}", 1))
    arguments = ["--only", "cost", "--verb", "send,ack", "--k", "10", "--kind", "plain"]
    monkeypatch.setattr(
        sys, "argv", ["bench", *arguments, "--quick", "--rounds", "4", "--against", str(other)]
    )
    found: list[CostRow] = []
    monkeypatch.setattr(bench, "show_against", found.extend)

    bench.main()

    send, ack = (with_checkout(row) for row in found)
    assert (send.name, ack.name) == ("send, plain, k = 10", "ack, plain, k = 10")
    assert ack.ratios["redis"] < 0.1 < send.ratios["redis"]
    assert ack.old["script"] > 10 * ack.now["script"]


def test_ratios_of_paired_rounds_are_not_moved_by_a_slow_moment() -> None:
    row = _row(redis=0)
    row.columns["redis"] = [11.0, 22.0, 110.0]
    row.against = {name: list(values) for name, values in _row().columns.items()}
    row.against["redis"] = [10.0, 20.0, 100.0]
    for name in COLUMNS:
        row.columns[name] = (row.columns[name] * 3)[:3]
        row.against[name] = (row.against[name] * 3)[:3]

    comparison = with_checkout(row)

    assert comparison.ratios["redis"] == pytest.approx(1.1)
    assert comparison.higher() == ["redis"]


def test_the_share_of_pairs_that_are_higher_is_counted() -> None:
    row = _row()
    row.against = {name: [10.0] * 5 for name in COLUMNS}
    row.columns = {name: [11.0, 11.0, 11.0, 9.0, 10.0] for name in COLUMNS}

    assert with_checkout(row).higher_pairs == pytest.approx(0.6)


def test_options_of_cost_are_refused_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--verb", "send"])
    with pytest.raises(SystemExit):
        bench.main()
