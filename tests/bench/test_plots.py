"""`python -m bench.plots` and `bench.pages`: charts and tables of the pages, from a stored run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from bench import pages
from bench.figures import Figures, Missing
from bench.masters import even, fullest, hashed
from bench.plots import INK, LOOKS, charts

ROOT = Path(__file__).parents[2]
RUN = Path(__file__).with_name("run.json")
PAGES = (pages.CAPACITY, pages.README, pages.FRONT)
SVG = "{http://www.w3.org/2000/svg}"
LINES = {
    "depth": {"RMQ": 4, "SET, GET, DEL": 4},
    "memory": {"RMQ": 4, "plain key": 4},
    "slots": {"no keys": 4, "each message with a key": 4},
    "bodies": {"RMQ": 5, "SET, GET, DEL": 5},
    "batches": {"RMQ": 4, "three bare scripts": 4, "Redis stream": 4},
}


def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(RUN.read_text())
    return content


def _without(gone: Callable[[dict[str, Any]], bool]) -> Figures:
    content = _content()
    kept = [figure for figure in content["figures"] if not gone(figure)]
    assert len(kept) < len(content["figures"])
    return Figures({**content, "figures": kept})


@pytest.fixture
def _matplotlib() -> None:
    if find_spec("matplotlib") is None:
        text = "no matplotlib here: pip install --group plots"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)


def _draw(file: Path, into: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "bench.plots", str(file), "--into", str(into)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=280)


@pytest.mark.usefixtures("_matplotlib")
@pytest.mark.slow
def test_the_command_draws_every_point_of_every_series_and_the_same_file_twice(
    tmp_path: Path,
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    for into in (first, again):
        done = _draw(RUN, into)
        assert done.returncode == 0, done.stderr

    drawn = {}
    for file in first.iterdir():
        assert file.read_bytes() == (again / file.name).read_bytes()
        assert file.stat().st_size < 30_000
        root = ET.parse(file).getroot()
        groups = {one.get("id"): one for one in root.iter(f"{SVG}g") if one.get("id")}
        counts = []
        while line := groups.get(f"line-{len(counts)}"):
            path = line.find(f"{SVG}path")
            assert path is not None
            counts.append(len(re.findall(r"[ML] ", path.get("d", ""))))
        legend = groups["legend_1"]
        labels = ["".join(text.itertext()) for text in legend.iter(f"{SVG}text")]
        drawn[file.stem] = dict(zip(labels, counts, strict=True))
    assert drawn == LINES


def test_a_run_that_lacks_a_series_is_refused_and_nothing_is_drawn(tmp_path: Path) -> None:
    content = _content()
    content["figures"] = [one for one in content["figures"] if one.get("grows") != "slots, by key"]
    file = tmp_path / "run.json"
    file.write_text(json.dumps(content))

    done = _draw(file, tmp_path / "charts")

    assert done.returncode == 1
    assert "no figure of growth by slots, by key" in done.stderr
    assert not (tmp_path / "charts").exists()


@pytest.mark.parametrize(
    "gone",
    [
        lambda one: one.get("grows") == "depth",
        lambda one: one.get("grows") == "slots",
        lambda one: one.get("grows") == "body",
        lambda one: one["name"] == "life, bare, k = 10",
        lambda one: one["name"] == "single life, stream, k = 1",
        lambda one: one["name"] == "life, plain, k = 1000",
        lambda one: one.get("grows") == "depth" and one["depth"] > 1000,
    ],
)
def test_no_chart_is_made_without_its_figures(gone: Callable[[dict[str, Any]], bool]) -> None:
    with pytest.raises(Missing):
        list(charts(_without(gone)))


def test_the_alternative_text_has_every_point() -> None:
    for chart in charts(Figures.read(RUN)):
        assert {line.label: len(line.points) for line in chart.lines} == LINES[chart.name]
        for line in chart.lines:
            assert all(f" at {chart.ticks[x]}" in chart.alt for x, _ in line.points)
            assert line.label in chart.alt


def _contrast(one: str, other: str) -> float:
    """Of WCAG 2, from 1 to 21."""

    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colors_can_be_read_on_a_light_and_on_a_dark_page() -> None:
    assert _contrast("#ffffff", "#000000") == pytest.approx(21)
    for page in ("#ffffff", "#0d1117"):
        assert _contrast(INK, page) >= 4
        assert all(_contrast(color, page) >= 3 for color, _, _ in LOOKS)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for page in PAGES:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("_matplotlib")
def test_one_run_fills_every_table_of_the_pages_with_its_machine_date_and_rounds(
    checkout: Path,
) -> None:
    figures = Figures.read(RUN)

    assert pages.update(figures, checkout, "`run.json`: ") == []

    for name, block in pages.BLOCKS.items():
        text = (checkout / block.page).read_text()
        (content,) = re.findall(rf"<!-- bench: {name} -->\n(.*?)\n<!-- end -->", text, re.DOTALL)
        assert content.endswith(block.make(figures))
        if block.how:
            caption = content.partition("\n\n")[0].replace("\n", " ")
            assert caption.startswith("`run.json`: 2026-11-22, commit 0123456789ab, ")
            assert "load before the run 0.4, of others meanwhile 0.07." in caption
            assert f"{block.how.capitalize()} of " in caption
            assert caption.endswith(f"{figures.rounds(*block.parts)} rounds.")
    for chart in LINES:
        assert (checkout / "docs" / "charts" / f"{chart}.svg").exists()
    before = {page: (checkout / page).read_text() for page in PAGES}
    pages.update(figures, checkout, "`run.json`: ")
    assert before == {page: (checkout / page).read_text() for page in before}


@pytest.mark.slow
def test_tables_of_parts_that_were_not_measured_stay_and_are_named(checkout: Path) -> None:
    readme = (checkout / pages.README).read_text()

    left = pages.update(_without(lambda one: one["part"] not in ("throughput",)), checkout)

    assert left == [name for name in pages.BLOCKS if name != "throughput"]
    cost = re.compile(r"<!-- bench: cost -->.*?<!-- end -->", re.DOTALL)
    assert cost.findall((checkout / pages.README).read_text()) == cost.findall(readme)
    assert (checkout / pages.README).read_text() != readme


@pytest.mark.slow
def test_a_part_that_lacks_a_figure_changes_nothing(checkout: Path) -> None:
    before = {page: (checkout / page).read_text() for page in PAGES}

    with pytest.raises(Missing, match="query_settle, plain, k = 10"):
        pages.update(_without(lambda one: one["name"] == "query_settle, plain, k = 10"), checkout)

    assert before == {page: (checkout / page).read_text() for page in before}


def test_the_page_has_the_load_of_the_fullest_master_as_it_is_calculated() -> None:
    text = (ROOT / pages.CAPACITY).read_text()
    rows = re.findall(
        r"^ +\| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]*) ?\|$", text, re.M
    )

    assert len(rows) == 4
    for slots, *loads in rows:
        for masters, load in zip((4, 8, 16, 32), loads, strict=True):
            if load:
                assert float(load) == pytest.approx(fullest(masters, int(slots)), abs=0.006)


def test_masters_are_as_many_as_keep_the_fullest_below_its_share() -> None:
    assert even(5.0) == 9
    assert hashed(5.0, 256) == 12
    count = hashed(5.0, 1024)
    assert count is not None
    assert 5.0 / count * fullest(count, 1024) <= 0.6 < 5.0 / (count - 1) * fullest(count - 1, 1024)
    assert hashed(133.0, 64) is None
