"""`python -m bench --only cluster`: the CPU of a cluster's masters beside that of one server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import __main__ as bench


@pytest.mark.slow
def test_a_small_run_measures_a_cluster_and_a_server_in_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cluster.json"
    arguments = ["--only", "cluster", "--quick", "--rounds", "2", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])

    bench.main()

    figures = {figure["name"]: figure for figure in json.loads(file.read_text())["figures"]}
    for load in ("batches of 100", "one by one, to a consumer that sleeps"):
        servers, masters = (figures[f"{load}: {side}"] for side in ("the server", "three masters"))
        ratio = figures[f"{load}: masters / server"]
        assert ratio["rounds"] == [
            its / own for own, its in zip(servers["rounds"], masters["rounds"], strict=True)
        ]
        assert len(ratio["rounds"]) == 2
        assert figures[f"{load}: busiest master / idlest"]["value"] >= 1
