"""The part `size`: a small run of every stage, refusals, and what is left when it is stopped."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from bench import __main__ as bench
from bench.figures import Figures
from bench.size import run, scene, stages, tables
from bench.size.pinger import RECORD
from bench.size.scene import Account, DiskServer, Pings, refusal
from tests.conftest import any_binary


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[DiskServer]:
    """Make a run small; the servers that it starts."""
    servers: list[DiskServer] = []

    class Noted(DiskServer):
        def __init__(self, binary: str) -> None:
            super().__init__(binary)
            servers.append(self)

    monkeypatch.setattr(run, "DiskServer", Noted)
    monkeypatch.setattr(run, "QUICK_MESSAGES", 6000)
    monkeypatch.setattr(run, "QUICK_CALLS", 3)
    monkeypatch.setattr(stages, "LEAST_LEASE_S", 3.0)
    monkeypatch.setattr(stages, "BEFORE_S", 0.3)
    monkeypatch.setattr(stages, "AFTER_S", 0.3)
    return servers


def gone(server: DiskServer) -> bool:
    assert server.process is not None
    return server.process.poll() is not None and not Path(server.dir).exists()


@pytest.mark.slow
def test_a_small_run_fills_both_tables_and_loses_nothing(
    made: list[DiskServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = tmp_path / "size.json"
    words = ["bench", "--only", "size", "--quick", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", words)

    bench.main()

    figures = Figures.read(file)
    found = figures.part("size")
    assert found["lost"][0] == 0
    assert found["rollback"][1]["leases"] == 1200
    assert found["rollback"][1]["calls"] >= 12
    assert 150 < found["memory of a waiting message"][0] < 1000
    assert found["BGREWRITEAOF"][1]["aof_after"] < found["BGREWRITEAOF"][1]["aof_before"]
    for verb in ("send", "receive", "ack", "get", "stats", "receive of 1000"):
        notes = found[f"call: {verb}"][1]
        assert 0 < notes["deep"]["p50"] <= notes["deep"]["p99"] <= notes["deep"]["max"]
    page = tables.page(figures)
    assert "| 6 000 messages | measured |" in page
    assert "of 1 000 | of 6 000 | p50, 6 000 / 1 000" in page
    assert {line.count("|") for line in page.splitlines() if "p50 / p99" in line} <= {7}
    assert "rollback of 1 200 ended leases" in capsys.readouterr().out
    assert gone(made[0])


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_a_run_that_is_stopped_leaves_neither_server_nor_directory(
    made: list[DiskServer], monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    def stopped(*_: object) -> None:
        raise stop

    monkeypatch.setattr(stages, "latency", stopped)

    with pytest.raises(stop):
        run.size(SimpleNamespace(binary=any_binary()), 1, True)  # type: ignore[arg-type]

    assert gone(made[0])


def test_too_little_memory_or_disk_is_refused_before_anything_is_started(
    made: list[DiskServer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "size", "--messages", "10000000"])
    plenty: Any = SimpleNamespace(available=10**12, free=10**12)
    little: Any = SimpleNamespace(available=10**9, free=10**9)
    for memory, disk, text in (
        (little, plenty, "10,000,000 messages need 5.0 GB of memory, 1.0 free"),
        (plenty, little, "10,000,000 messages need 7.0 GB of disk, 1.0 free"),
    ):
        monkeypatch.setattr(psutil, "virtual_memory", lambda memory=memory: memory)
        monkeypatch.setattr(scene.shutil, "disk_usage", lambda _, disk=disk: disk)
        with pytest.raises(SystemExit) as ended:
            bench.main()
        assert ended.value.code == 2
        assert text in capsys.readouterr().err
    assert made == []
    monkeypatch.setattr(scene.shutil, "disk_usage", lambda _: plenty)
    assert refusal(10_000_000) is None


def test_a_message_that_nobody_handled_is_counted_as_lost() -> None:
    account = Account()
    bodies = [account.body() for _ in range(4)]
    account.handle(bodies[0])
    account.handle(bodies[1], Account.DEAD)
    account.handle(bodies[2])
    account.handle(bodies[2])

    assert (account.lost, account.repeated) == (1, 1)


def test_a_ping_counts_for_a_call_only_as_far_as_it_was_under_way_then(tmp_path: Path) -> None:
    path = tmp_path / "pings"
    path.write_bytes(b"".join(RECORD.pack(*one) for one in [(1.0, 0.1), (2.0, 0.5), (3.0, 0.2)]))
    found = Pings(path)
    found.read()

    assert found.longest_ms([(1.5, 1.9)]) == 0
    assert found.longest_ms([(2.4, 2.45)]) == pytest.approx(50)
    assert found.longest_ms([(1.9, 2.2), (2.9, 3.3)]) == pytest.approx(200)


def test_the_option_of_size_is_refused_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "cost", "--messages", "1000"])
    with pytest.raises(SystemExit):
        bench.main()
