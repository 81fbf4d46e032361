"""A soak: RMQ passes under faults, broken variants do not, and nothing is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.soak.checker import LEAST_SENDS
from tests.forkserver import Forked
from tests.patience import wait_for

SEED = 7
SECONDS = 0.1  # minutes: 6 s
PATIENCE_S = 400.0
Start = Callable[..., Forked]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(PATIENCE_S + 60)]


@pytest.fixture
def soak(tmp_path: Path) -> Iterator[Start]:
    made = []

    def start(*words: object) -> Forked:
        asked = ["--history", tmp_path / "history.jsonl", "--seed", SEED, "--json", *words]
        made.append(
            Forked(
                "bench.soak.command", "run", *map(str, asked),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
        return made[-1]

    yield start
    for process in made:
        if process.poll() is None:
            process.kill()
            process.wait()


def ended(process: Forked) -> tuple[int, dict[str, Any], str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.wait(), json.loads(out) if out else {}, err


def offspring(process: Forked) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def at_work(process: Forked, history: Path) -> list[psutil.Process]:
    """Wait until messages are acked; all processes of the soak."""
    wait_for(
        lambda: history.exists() and b'"type":"ok","op":"ack"' in history.read_bytes(),
        "it acks",
        PATIENCE_S,
    )
    return offspring(process)


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=60)[1]


@pytest.mark.fault("F35")
def test_a_short_soak_passes_and_its_control_is_caught(soak, tmp_path):
    process = soak(
        "--minutes", SECONDS, "--every", "1.5s", "--fault", "kill-consumer", "--fault", "reset",
        "--fault", "script-flush",
    )  # fmt: skip

    code, said, err = ended(process)

    is_much = said["counts"]["answered"] >= LEAST_SENDS  # a slow machine sends less in this time
    assert (code, said["verdict"]) == ((0, "pass") if is_much else (7, "unknown")), (said, err)
    assert len(said["doubts"]) == (not is_much), (said, err)
    assert not any(said["findings"].values()), (said, err)
    assert said["controls"] == {"settle-first": True, "new-id": True}
    assert len(said["faults"]) >= 3
    assert said["settings"]["seed"] == SEED
    print(f"FIG soak of 6 s: {said['counts']}, {len(said['faults'])} faults, controls caught 2/2")


@pytest.mark.fault("F35", control=True)
@pytest.mark.parametrize(("control", "finding"), [("no-aof", "lost"), ("settle-first", "lost")])
def test_a_soak_of_a_broken_variant_fails(soak, control, finding):
    code, said, err = ended(soak("--minutes", SECONDS, "--control", control))

    assert (code, said["verdict"]) == (1, "fail"), (said, err)
    assert said["findings"][finding]


def test_ctrl_c_leaves_no_process_and_prints_what_was_found(soak, tmp_path):
    process = soak("--minutes", 10, "--no-controls", "--fault", "stop-consumer", "--every", "0.5s")
    processes = at_work(process, tmp_path / "history.jsonl")
    assert len(processes) >= 6  # producers, consumers, the server and its supervisor

    process.send_signal(signal.SIGINT)
    code, said, err = ended(process)

    assert code == 130, err
    assert "it was stopped" in said["doubts"]
    assert said["counts"]["acked"] > 0
    assert gone(processes)


def test_a_soak_that_is_killed_leaves_no_process(soak, tmp_path):
    process = soak("--minutes", 10, "--no-controls", "--fault", "reset")
    processes = at_work(process, tmp_path / "history.jsonl")
    stopped = next(one for one in processes if "bench.soak.child" in one.cmdline())
    stopped.suspend()
    wait_for(lambda: stopped.status() == psutil.STATUS_STOPPED, "it stands still")

    process.kill()

    assert gone(processes)
