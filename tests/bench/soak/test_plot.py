from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

import rmq
from bench.soak import plot
from tests.bench.soak.histories import Story, sound


def test_without_matplotlib_an_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(rmq.ConfigurationError, match=r'pip install "matplotlib>=3.10"'):
        plot.load()


def test_acks_are_counted_by_second():
    story = Story()
    for number in range(60):
        story.settle(number, answer="ok" if number % 2 else "fail")  # 20 ms each

    assert plot.acked_per_second(story.events, 0) == [24, 6]
    assert plot.acked_per_second([], 0) == []


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="pip install --group plots")
def test_a_chart_marks_the_faults(tmp_path):
    path = tmp_path / "chart.svg"

    plot.draw(sound().end().events, str(path))

    assert "legend" in path.read_text()
    with pytest.raises(rmq.ConfigurationError, match=r"chart\.xyz"):
        plot.draw(sound().events, str(tmp_path / "chart.xyz"))
