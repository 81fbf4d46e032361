"""`bench.pages` fills no page from figures of a busy machine, or of several commits or machines."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as bench, machine, pages
from bench.machine import OthersLoad, commit
from bench.measurement import Measurement

ROOT = Path(__file__).parents[2]
RUN = Path(__file__).with_name("run.json")
PAGES = (pages.CAPACITY, pages.README, pages.FRONT)
BLOCK = re.compile(r"(<!-- bench: \w+ -->\n).*?(\n<!-- end -->)", re.DOTALL)
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pages with empty tables, which are filled without charts: these need matplotlib."""
    monkeypatch.setattr("bench.plots.draw", lambda *_: None)
    for page in PAGES:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        text = BLOCK.sub(r"\1old\2", (ROOT / page).read_text())
        (tmp_path / page).write_text(text)
    return tmp_path


def _texts(checkout: Path) -> list[str]:
    """Return the pages with single spaces, because captions are wrapped."""
    return [" ".join((checkout / page).read_text().split()) for page in PAGES]


def _file(where: Path, change: Change = lambda _: None) -> Path:
    content = json.loads(RUN.read_text())
    change(content)
    where.write_text(json.dumps(content))
    return where


def _only(*parts: str) -> Change:
    """Keep the figures of some parts."""

    def change(content: dict[str, Any]) -> None:
        content["figures"] = [one for one in content["figures"] if one["part"] in parts]
        content["loads"] = {part: content["loads"][part] for part in parts}

    return change


def _machine(**facts: str) -> Change:
    return lambda content: content["machine"].update(facts)


def test_a_quiet_run_of_one_commit_fills_all_pages_and_no_table_is_marked(checkout: Path) -> None:
    pages.fill_from([_file(checkout / "run.json")], checkout, anyway=False)

    texts = _texts(checkout)
    assert not any("do not convince" in text for text in texts)
    assert sum(text.count("commit 0123456789ab") for text in texts) == sum(
        block.how is not None for block in pages.BLOCKS.values()
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_machine(**{"load before": "1.1"}), "load 1.1 before the run; at most 1"),
        (lambda content: content["loads"].update(drain=0.61), "load of others during drain 0.61"),
        (lambda content: content["loads"].pop("cost"), "is not known during cost"),
        (lambda content: content.pop("loads"), "is not known during backlog, cluster, concurrency"),
        (_machine(commit="0123456789ab+"), "the code is that of no commit"),
        (lambda content: content["machine"].pop("commit"), "the commit is not known"),
        (_machine(rounds="quick"), "it was a quick run"),
        (_only("cost", "growth"), "README.md would keep the tables of another run"),
    ],
)
def test_a_run_that_does_not_convince_changes_nothing_unless_its_tables_are_marked(
    checkout: Path, change: Change, why: str
) -> None:
    before = _texts(checkout)
    file = _file(checkout / "run.json", change)

    with pytest.raises(SystemExit, match="the pages are not filled: ") as refused:
        pages.fill_from([file], checkout, anyway=False)

    assert why in str(refused.value)
    assert _texts(checkout) == before

    pages.fill_from([file], checkout, anyway=True)

    for text in _texts(checkout):
        marked = text.count("**These figures do not convince: ")
        assert marked == text.count("commit 0123456789ab") + text.count("commit unknown")
        assert marked == text.count(why)
    assert any(why in text for text in _texts(checkout))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_machine(commit="ba9876543210"), "runs differ in commit: 0123456789ab, ba9876543210"),
        (_machine(cpu="another, 64 cores"), "runs differ in cpu: "),
        (_machine(python="3.13.0"), "runs differ in python: 3.11.7, 3.13.0"),
    ],
)
def test_files_of_other_commits_and_machines_are_refused_together(
    checkout: Path, change: Change, why: str
) -> None:
    parts = sorted({one["part"] for one in json.loads(RUN.read_text())["figures"]})
    most = _file(checkout / "most.json", _only(*(part for part in parts if part != "peers")))
    peers = _file(checkout / "peers.json", _only("peers"))

    def changed(content: dict[str, Any]) -> None:
        _only("peers")(content)
        change(content)

    other = _file(checkout / "other.json", changed)
    before = _texts(checkout)

    with pytest.raises(SystemExit, match="the pages are not filled") as refused:
        pages.fill_from([most, other], checkout, anyway=False)

    assert why in str(refused.value)
    assert _texts(checkout) == before

    pages.fill_from([most, peers], checkout, anyway=False)

    assert _texts(checkout) != before


def test_a_page_is_refused_before_anything_is_measured(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object) -> list[Measurement]:
        raise AssertionError("a part was measured")

    monkeypatch.setattr(bench, "PARTS", dict.fromkeys(bench.PARTS, measured))
    monkeypatch.setattr(sys, "argv", ["bench", "--page", "--quick", "--into", str(checkout)])

    with pytest.raises(SystemExit, match="it was a quick run"):
        bench.main()


class Told(Measurement):
    """A figure that a file has."""

    def __init__(self, figure: dict[str, Any]) -> None:
        super().__init__(figure["part"], figure["name"], figure["rounds"])
        self.figure = figure

    def as_json(self) -> dict[str, Any]:
        return self.figure


@pytest.mark.parametrize("busy", [False, True])
def test_a_page_is_filled_from_what_its_parts_measure_or_the_file_is_kept(
    busy: bool, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, file, before = json.loads(RUN.read_text()), checkout / "page.json", _texts(checkout)
    measured: dict[str, list[Measurement]] = defaultdict(list)
    for figure in content["figures"]:
        part = "growth" if figure["part"] == "backlog" else figure["part"]
        measured[part].append(Told(figure))
    parts = {part: lambda *_, part=part, **__: measured[part] for part in bench.PARTS}
    monkeypatch.setattr(bench, "PARTS", parts)
    monkeypatch.setattr(bench, "SHOWS", dict.fromkeys(bench.PARTS, lambda _: None))
    monkeypatch.setattr(bench, "description", lambda _: content["machine"])
    monkeypatch.setattr(OthersLoad, "cores", lambda _: 0.6 if busy else 0.07)
    words = ["--page", "--into", str(checkout), "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["bench", *words])

    if busy:
        with pytest.raises(SystemExit, match=r"load of others during throughput 0\.60, drain"):
            bench.main()
    else:
        bench.main()

    assert json.loads(file.read_text())["figures"] == [
        one.as_json() for part in bench.PAGE for one in measured[part]
    ]
    assert (_texts(checkout) == before) == busy
    assert all("commit 0123456789ab" in text for text in _texts(checkout)) == (not busy)


def test_each_part_of_a_page_has_its_rounds() -> None:
    needed = {part for block in pages.BLOCKS.values() for part in block.parts}

    assert needed - {"backlog"} == set(bench.PAGE)  # growth measures the backlog
    assert set(bench.PAGE) <= set(bench.PARTS)


def test_the_load_of_others_is_what_is_neither_idle_nor_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, everyone, own = [100.0], [50.0], [7.0]
    monkeypatch.setattr("bench.machine.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(machine, "_cpu_of_all_s", lambda: everyone[0])
    monkeypatch.setattr(machine, "_own_cpu_s", lambda: own[0])
    load = OthersLoad()

    clock[0], everyone[0], own[0] = 110.0, 70.0, 22.0  # two cores busy, one and a half by us

    assert load.cores() == pytest.approx(0.5)


BURN = "import time\nwhile time.process_time() < 0.15: pass\n"


@pytest.mark.parametrize("ended", [False, True])
def test_the_cpu_time_of_a_child_is_ours_while_it_runs_and_when_it_has_ended(ended: bool) -> None:
    before = machine._own_cpu_s()
    text = BURN + "print(flush=True)\n" + ("" if ended else "import sys; sys.stdin.read()")
    child = subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    if ended:
        child.wait()

    spent = machine._own_cpu_s() - before

    child.communicate()
    assert spent > 0.1


ORPHAN = """
import os, sys, time
from bench import machine
if "adopt" in sys.argv:
    machine.adopt_orphans()
before = machine._own_cpu_s()
reading, writing = os.pipe()
middle = os.fork()
if middle == 0:
    orphan = os.fork()
    if orphan == 0:
        while time.process_time() < 0.15: pass
    else:
        os.write(writing, b"%d" % orphan)
    os._exit(0)
os.close(writing)
os.waitpid(middle, 0)
told = os.fdopen(reading).read()  # until the orphan has ended, too
print(machine._own_cpu_s() - before, told)
"""


@pytest.mark.parametrize("adopted", [True, False])
def test_the_cpu_time_of_an_orphan_is_ours_where_it_is_adopted(adopted: bool) -> None:
    words = [sys.executable, "-c", ORPHAN, *(["adopt"] if adopted else [])]

    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)

    used_s, orphan = done.stdout.split()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(int(orphan), 0)  # where this process adopts orphans: it must leave no zombie
    assert (float(used_s) > 0.1) == adopted


def test_a_commit_with_changed_code_is_marked_and_changed_words_are_not(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    assert commit(tmp_path) == ""
    (tmp_path / "rmq").mkdir()
    (tmp_path / "rmq" / "__init__.py").write_text("")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    name = commit(tmp_path)
    assert len(name) == 12

    (tmp_path / "README.md").write_text("words")
    assert commit(tmp_path) == name

    (tmp_path / "rmq" / "more.py").write_text("")
    assert commit(tmp_path) == f"{name}+"
