"""`python -m bench` tells as it goes, and keeps what is done when it is stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench.measurement import Measurement
from bench.peers.catalogue import PEERS
from bench.peers.drive import Run


def test_a_part_is_shown_as_it_ends_and_kept_when_the_next_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"

    def stopped(*_: object) -> list[Measurement]:
        shown = capsys.readouterr()
        assert "first figure" in shown.out
        assert "1/3 measuring throughput" in shown.err
        assert "load of other programs" in shown.err
        assert "2/3 measuring drain" in shown.err
        assert [one["name"] for one in json.loads(file.read_text())["figures"]] == ["first figure"]
        raise KeyboardInterrupt

    parts = {
        "throughput": lambda *_: [Measurement("throughput", "first figure", [1.0])],
        "drain": stopped,
        "idle": stopped,
    }
    monkeypatch.setattr(bench, "PARTS", parts)
    monkeypatch.setattr(sys, "argv", ["bench", "--quick", "--json", str(file)])

    with pytest.raises(SystemExit) as ended:
        bench.main()

    assert ended.value.code == 130
    assert "not measured: drain, idle. Go on with --only drain --only idle" in (
        capsys.readouterr().err
    )
    assert file.exists()


def test_peers_that_are_stopped_show_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []

    def run(_: object, database: object, peer: object, part: str, count: int) -> Run:
        calls.append(part)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return Run(**{**{name: 1 for name in Run.__annotations__}, "late_ms": [1.0]})

    monkeypatch.setattr("bench.peers.run.run", run)
    monkeypatch.setattr("bench.peers.run._install", lambda *_: None)
    words = ["--only", "peers", "--rounds", "1", "--peer", PEERS[0].name, "--peer", PEERS[1].name]
    monkeypatch.setattr(sys, "argv", ["bench", *words])

    with pytest.raises(SystemExit):
        bench.main()

    shown = capsys.readouterr()
    assert f"{PEERS[0].name}: {PEERS[0].setting}" in shown.out
    assert "stopped; the figures below are those measured" in shown.err
    assert "round 1, drain" in shown.err
