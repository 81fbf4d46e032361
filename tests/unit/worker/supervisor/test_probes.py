"""The endpoint of a worker: what it needs to serve metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

import rmq
from rmq.worker.supervisor.probes import MULTIPROCESS, Metrics


def test_a_directory_of_metrics_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("prometheus_client")
    monkeypatch.setenv(MULTIPROCESS, str(tmp_path / "nowhere"))

    with pytest.raises(rmq.ConfigurationError, match=rf"{MULTIPROCESS}: .*nowhere.*make an empty"):
        Metrics()

    monkeypatch.setenv(MULTIPROCESS, str(tmp_path))
    assert Metrics().text() == b""
