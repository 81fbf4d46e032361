"""`python -m bench.soak`, as far as it starts no server; tests/faults/test_soak.py runs it."""

from __future__ import annotations

import json
import sys


def test_a_history_that_is_there_is_not_touched(run, tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text("mine")

    done = run("run", "--history", path)

    assert done.exit_code == 6
    assert "name another file with --history" in done.stderr
    assert path.read_text() == "mine"


def test_an_unknown_fault_or_control_is_wrong_usage(run):
    for words in (("--fault", "earthquake"), ("--control", "none"), ("--minutes", "0")):
        assert run("run", *words).exit_code == 2


def test_a_plot_without_matplotlib_is_refused_before_the_run(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "history.jsonl"

    done = run("run", "--history", path, "--plot", tmp_path / "plot.svg")

    assert done.exit_code == 2
    assert 'pip install "matplotlib>=3.10"' in done.stderr
    assert not path.exists()


def test_without_a_server_it_says_what_to_install(run, tmp_path):
    done = run("run", "--history", tmp_path / "h", "--json", RMQ_REDIS_SERVER="/not/there")

    assert done.exit_code == 2
    assert "RMQ_REDIS_SERVER" in json.loads(done.stderr.splitlines()[-1])["error"]["message"]
