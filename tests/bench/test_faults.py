"""`python -m bench.faults`: tests run by their marks, and what is kept of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.faults.run import ROOT, play

TESTS = """
import pytest

@pytest.mark.fault("F4")
def test_holds(capsys):
    with capsys.disabled():
        print("\\nFIG kill: lost 0")

@pytest.mark.fault("F4", "F8", control=True)
def test_control():
    assert False, "nothing was caught"

@pytest.mark.fault("F8")
@pytest.mark.parametrize("how", [1, 2])
def test_skips(how):
    pytest.skip("no compiler")

@pytest.mark.fault("F8", optional=True)
def test_needs_root():
    pytest.skip("no rights")

@pytest.fixture
def broken():
    raise OSError("no server")

@pytest.mark.fault("F4")
def test_cannot_begin(broken): ...

@pytest.mark.fault("F9")
def test_of_another_row(): ...

def test_without_a_mark(): ...
"""


def test_tests_of_the_rows_are_run_and_recorded(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(TESTS)

    found = {one.test.partition("::")[2]: one for one in play(str(file), ["F4", "F8"], 7)}

    assert {name: (one.outcome, one.control, one.rows) for name, one in found.items()} == {
        "test_holds": ("passed", False, ("F4",)),
        "test_control": ("failed", True, ("F4", "F8")),
        "test_skips[1]": ("skipped", False, ("F8",)),
        "test_skips[2]": ("skipped", False, ("F8",)),
        "test_needs_root": ("skipped", False, ("F8",)),
        "test_cannot_begin": ("failed", False, ("F4",)),
    }
    assert [name for name, one in found.items() if one.optional] == ["test_needs_root"]
    assert found["test_holds"].figures == ("kill: lost 0",)
    assert "nothing was caught" in found["test_control"].why
    assert {one.seed for one in found.values()} == {7}


def test_a_file_that_cannot_be_collected_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("import nothing_of_this_name\n")

    with pytest.raises(SystemExit, match="nothing_of_this_name"):
        play(str(tmp_path / "test_x.py"), ["F4"], 1)


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "bench.faults", "--rows", "F3", "--seed", "7",
            "--json", str(tmp_path / "run.json"),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=280,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests/faults/test_torn_aof.py, seed 7: 2 passed" in done.stdout
    assert "1 of the 1 rows that have tests are held" in done.stdout
    run = json.loads((tmp_path / "run.json").read_text())
    assert [(row["number"], row["verdict"]) for row in run["rows"]] == [("F3", "held")]
    assert run["seeds"] == [7]
