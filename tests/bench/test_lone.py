"""`python -m bench --only lone`: the steps of a lone message, each accounted for."""

from __future__ import annotations

import pytest

from bench import lone as module, machine
from bench.lone import COLD, STEPS, lone, rows
from bench.tables import markdown


def test_each_step_is_accounted_for_and_the_parts_make_up_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PLACES", 3)
    monkeypatch.setattr(module, "_trickle", lambda *_: {"sync, wait": [70.0, 80.0, 100.0]})
    with machine.server() as server:
        measured = lone(server, rounds=1, quick=True)

    steps = {one.name: one.notes for one in measured}
    assert set(steps) == {f"{kind}, {n}" for kind in ("sync", "async", "stream") for n in STEPS}
    for name, step in steps.items():
        assert step["client"] == pytest.approx(step["socket"] + step["code"], abs=0.05)
        parts = [step[part] for part in ("request", "call", "commands", "publish", "lua", "rest")]
        # A script whose empty twin happened to be slower has no Lua.
        assert step["cpu"] == pytest.approx(sum(parts), abs=0.1) or step["lua"] == 0
        assert (step["call"] > 0) == (not name.startswith("stream") and "hear" not in name)
    assert [name for name, step in steps.items() if COLD in step] == ["sync, wait"]
    assert steps["sync, wait"][COLD] == 80.0


def test_the_table_has_a_sum_for_each_way() -> None:
    steps = {
        f"{kind}, {name}": {"cpu": 2.0, "client": 3.0, **({COLD: 5.0} if "it" in name else {})}
        for kind in ("sync", "async", "stream")
        for name in STEPS
    }

    lines = markdown(*rows(steps)).splitlines()

    assert len(lines) == 2 + 3 * (len(STEPS) + 2)
    single, trickled = lines[5].split(" | "), lines[10].split(" | ")
    assert single[:2] == ["| **sync, one at a time**", "6.00"]
    assert trickled[:2] == ["| **sync, trickled**", "8.00"]
    assert trickled[-1] == "15.0 |"  # wait, send to it, ack it
