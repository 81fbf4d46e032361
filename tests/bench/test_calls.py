"""The parts concurrency and servers: what takes turns, and a server that is some time away."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from bench import __main__ as bench, calls, machine
from bench.calls import CONCURRENCY, LATE, METRICS, SERVERS, servers
from bench.child import Child
from bench.link import far_server
from bench.peers import environments
from bench.peers.catalogue import PEERS, Peer
from tests.faults.partition import NotPermitted, names

ROOT = Path(__file__).parents[2]


def _copy(where: Path) -> Path:
    """Return another checkout."""
    for folder in ("rmq", "lua"):
        shutil.copytree(ROOT / folder, where / folder)
    shutil.copy(ROOT / "pyproject.toml", where / "pyproject.toml")
    return where


@pytest.mark.slow
def test_both_checkouts_and_the_stream_make_all_calls_in_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = tmp_path / "calls.json", _copy(tmp_path / "other")
    slow = other / "lua" / "send.lua"
    work = "for i = 1, 20000 do local _ = tostring(i) end\n"  # some ms in each call
    slow.write_text(slow.read_text().replace("]]\n", f"]]\n{work}", 1))
    words = ["--only", "concurrency", "--quick", "--against", str(other), "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["bench", *words])

    bench.main()

    figures = {one["name"]: one for one in json.loads(file.read_text())["figures"]}
    for row in CONCURRENCY.values():
        figure = figures[f"{row.title} / {row.plain}"]
        assert len(figure["rounds"]) == 2
        for side in ("rmq", "stream"):
            assert set(figure["notes"][side]) == set(METRICS)
            assert all(value > 0 for values in figure["notes"][side].values() for value in values)
    gains = {name: one["value"] for name, one in figures.items() if " / commit " in name}
    assert len(gains) == (
        len(CONCURRENCY)
        + sum(bool(row.gain) for row in CONCURRENCY.values())
        + sum(map(len, LATE.values()))
    )
    assert all(
        (value < 0.7) if " of a call" in name or "CPU" in name else (value > 1.4)
        for name, value in gains.items()
        if name.startswith("send") and "p99" not in name
    )


@pytest.mark.slow
def test_the_main_rows_are_measured_on_every_server_and_a_missing_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> None:
        raise NotPermitted("no namespaces here")

    monkeypatch.setattr(calls, "far_server", refused)
    with machine.server() as own:
        *rows, fsync = servers(own, 1, True)

    assert fsync.notes["left out"] == "0.5 ms away: no namespaces here"
    assert [row.name for row in rows] == [
        f"{server}: {row.title} / {row.plain}"
        for server in ("no AOF", "AOF everysec", "AOF always")
        for row in SERVERS.values()
    ]


def test_a_round_trip_to_the_far_server_takes_longer_and_nothing_of_it_is_left() -> None:
    before, took = names(), {}
    with machine.server() as own:
        for away_ms in (0.0, 20.0):
            try:
                with far_server(own.binary, away_ms) as (_, url, reach):
                    with reach():
                        child = Child(ROOT, ["-P", calls.CHILD], {"url": url, "prefix": "far"})
                    question = {"name": "plain", "way": "threads 1", "seconds": 0.5}
                    took[away_ms] = child.ask(question)["p50 ms"]
                    child.close()
            except NotPermitted as why:
                pytest.skip(str(why))

    assert took[0.0] < 20 <= took[20.0]
    assert names() == before


@pytest.mark.parametrize(
    ("lacking", "why"),
    [("TUN", "needs root, and the module tun"), ("PATH", "apt-get install iproute2")],
)
def test_a_machine_without_a_far_server_is_told_what_it_lacks_and_nothing_is_left(
    lacking: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = names()
    if lacking == "PATH":
        monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("bench.link.TUN", str(tmp_path / "tun"))

    with pytest.raises(NotPermitted) as refused, far_server("redis-server", 0.5):
        pass

    if "Operation not permitted" in str(refused.value):
        pytest.skip("no namespaces here")
    assert why in str(refused.value)
    assert names() == before


def test_a_child_that_imports_another_checkout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rmq").mkdir()
    script = tmp_path / "child.py"
    script.write_text(f'input(); print(\'{{"rmq": "{ROOT / "rmq"}"}}\')\n')

    with pytest.raises(RuntimeError, match="the child imported"):
        Child(tmp_path, [str(script)], {})


@pytest.mark.parametrize(
    "words", [["--only", "drain", "--against", "."], ["--only", "cost", "--against", "/tmp"]]
)
def test_another_checkout_is_refused_where_it_is_none_or_not_measured(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *words])

    with pytest.raises(SystemExit):
        bench.main()

    assert "--against" in capsys.readouterr().err


def test_a_peer_whose_python_is_not_here_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    peer = Peer("new", ("package==1",), (), "", python=(3, 99))

    with pytest.raises(environments.Skipped, match=r"needs Python 3.99 or later; here is 3\."):
        environments.make(peer)

    newer = tmp_path / "python3.99"
    newer.write_text("#!/bin/sh\n")
    newer.chmod(0o755)
    assert environments._base(peer) == str(newer)


def test_the_catalogue_says_of_each_peer_what_it_has_on_a_disk() -> None:
    on_disk = {peer.name for peer in PEERS if "fsync" in peer.durable}

    assert on_disk == {"procrastinate", "oban"} == {peer.name for peer in PEERS if peer.table}
