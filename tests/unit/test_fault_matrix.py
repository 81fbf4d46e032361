"""The fault matrix: its rows, marks and verdicts."""

from __future__ import annotations

import ast
import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench.faults.__main__ import PAGE, TABLES, filled_page
from bench.faults.catalogue import ROWS, Row
from bench.faults.marks import Mark, docstring, marks
from bench.faults.peer_bugs import PEER_BUGS, PeerBug
from bench.faults.run import asked_rows
from bench.faults.table import markdown, show
from bench.faults.verdicts import Result, judge

ROOT = Path(__file__).parents[2]
LIVE = Row("F4", "a consumer dies", "its messages come back")


@pytest.fixture(scope="module")
def marked() -> list[Mark]:
    return marks(ROOT)


def test_rows_are_f0_to_f45() -> None:
    assert [row.number for row in ROWS] == [f"F{number}" for number in range(46)]


def test_marks_name_rows_of_the_catalogue(marked: list[Mark]) -> None:
    known = {row.number for row in ROWS}
    assert [mark for mark in marked if not mark.rows or set(mark.rows) - known] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_a_row_has_tests_and_a_control_or_a_reason(row: Row, marked: list[Mark]) -> None:
    mine = [mark.control for mark in marked if row.number in mark.rows and not mark.optional]
    if row.lane == "not yet":
        assert row.note
        assert mine == [], "it has tests: say in which lane"
    else:
        assert set(mine) == {False, True}


def test_marks_are_read_as_they_stand(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(
        '@pytest.mark.fault("F1", "F2", control=True)\nasync def test_a(): ...\n'
        '@other\n@pytest.mark.fault("F1")\ndef test_b(): ...\ndef test_c(): ...\n'
        '@pytest.mark.fault("F2", optional=True)\ndef test_d(): ...\n'
    )

    assert marks(tmp_path) == [
        Mark("tests/test_x.py", "test_a", ("F1", "F2"), True),
        Mark("tests/test_x.py", "test_b", ("F1",), False),
        Mark("tests/test_x.py", "test_d", ("F2",), False, optional=True),
    ]


@pytest.mark.parametrize("bug", PEER_BUGS, ids=lambda bug: bug.test.partition("::")[2])
def test_the_test_of_a_peer_bug_names_it(bug: PeerBug) -> None:
    told = docstring(ROOT, bug.test)
    assert told is not None, "there is no such test"
    assert f"Peer bug: {bug.what}." in " ".join(told.split())


def result(control: bool = False, outcome: str = "passed", *figures: str) -> Result:
    return Result("test_x", ("F4",), control, outcome, 1.0, "", figures, 1)


@pytest.mark.parametrize(
    ("results", "verdict", "why"),
    [
        ([result(), result(True)], "held", ""),
        ([result()], "unknown", "no control ran"),
        ([result(True)], "unknown", "no test ran"),
        ([], "unknown", "no test ran"),
        ([result(), result(True, "failed")], "unknown", "not caught: test_x"),
        ([result(), result(True, "skipped")], "unknown", "not caught: test_x"),
        ([result(), result(False, "failed"), result(True)], "broken", "failed: test_x"),
        ([result(False, "skipped"), result(), result(True)], "unknown", "skipped: test_x"),
        (
            [result(False, "failed", "kill: unknown: 9 attempted"), result(True)],
            "unknown", "no fault fired: test_x",
        ),
        (
            [result(False, "failed", "kill: invalid: 9 attempted"), result(True)],
            "broken", "failed: test_x",
        ),
    ],
)  # fmt: skip
def test_a_row_is_held_only_if_its_tests_passed_and_a_control_was_caught(
    results: list[Result], verdict: str, why: str
) -> None:
    assert judge(LIVE, results) == (verdict, why)


@pytest.mark.parametrize(
    ("outcome", "verdict"), [("skipped", "held"), ("passed", "held"), ("failed", "broken")]
)
def test_an_optional_test_may_be_skipped_but_not_fail(outcome: str, verdict: str) -> None:
    optional = replace(result(outcome=outcome), optional=True)

    assert judge(LIVE, [result(), result(True), optional])[0] == verdict
    if outcome == "skipped":
        alone = [replace(one, optional=True) for one in (optional, result(True, "skipped"))]
        assert judge(LIVE, alone) == ("unknown", "no test ran")


def test_a_row_without_tests_is_not_yet_whatever_ran() -> None:
    row = replace(LIVE, lane="not yet", note="it waits for Cluster")
    assert judge(row, [result(), result(True)]) == ("not yet", "it waits for Cluster")


def test_rows_are_asked_for_by_number() -> None:
    assert [row.number for row in asked_rows("f8, F4")] == ["F4", "F8"]
    assert asked_rows(None) == list(ROWS)
    with pytest.raises(SystemExit, match="no such row: F99"):
        asked_rows("F4,F99")


def test_the_table_shows_counts_and_figures() -> None:
    tests = [
        {"control": False, "outcome": "passed", "seconds": 1.0, "figures": ["a: lost 0"]},
        {"control": True, "outcome": "failed", "seconds": 0.5, "figures": ["control, b: lost 3"]},
    ]
    row = {
        "number": "F4", "fault": "a consumer dies", "holds": "they come back", "note": "",
        "verdict": "unknown", "why": "not caught: test_x", "tests": tests,
    }  # fmt: skip
    about = {"date": "2026-11-22", "rmq": "0.1", "valkey-server": "9.1", "redis-py": "8",
             "python": "3.11", "cpu": "x, 2 cores"}  # fmt: skip
    run = {"about": about, "seeds": [7], "jobs": 2, "seconds": 9.0, "rows": [row]}

    printed = io.StringIO()
    show(run, Console(file=printed))
    heading, _, *lines = [line.split() for line in printed.getvalue().splitlines() if line.strip()]
    assert heading == ["row", "verdict", "tests", "controls", "s", "fault"]
    assert lines[:2] == [
        ["F4", "unknown", "1/1", "0/1", "1.5", "a", "consumer", "dies"],
        ["not", "caught:", "test_x"],
    ]
    assert " ".join(lines[2]).startswith("0 of the 1 rows that have tests are held.")
    assert markdown(run).split("\n\n")[1:] == [
        "| row | fault | promise | verdict | tests | controls |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| F4 | a consumer dies | they come back | unknown: not caught: test_x | 1/1 | 0/1 |",
        "Figures, as the tests and controls print them:",
        "```text\nF4, a: lost 0\nF4, control: b: lost 3\n```",
    ]
    assert markdown(run).startswith("0 of the 1 rows that have tests are held. 2026-11-22, RMQ 0.1")


def test_a_run_fills_only_its_tables() -> None:
    page = "".join(f"<!-- bench: {name} -->\nold {name}\n<!-- end -->\n" for name in TABLES)
    about = {"date": "2026-11-30", "rmq": "0.1", "redis-py": "8", "python": "3.11", "cpu": "x"}
    rows = [
        {"number": row.number, "fault": row.fault, "holds": row.holds, "note": row.note,
         "verdict": "held", "why": "", "tests": []}
        for row in ROWS
    ]  # fmt: skip
    found = {"about": about, "seeds": [7], "jobs": 2, "seconds": 9.0, "rows": rows}

    filled = filled_page(page, found, ["outcome_faults"])

    assert [number for numbers in TABLES.values() for number in numbers] == [r.number for r in ROWS]
    assert "old faults" in filled
    assert "old outcome_faults" not in filled
    assert filled.count("\n| F") == len(TABLES["outcome_faults"])


def test_the_page_has_every_row() -> None:
    page = PAGE.read_text()
    without = [row.number for row in ROWS if page.count(f"\n| {row.number} |") != 1]
    assert without == ["F44", "F45"]  # newer than the last run of the table


def test_a_file_is_parsed_again_where_another_thread_came_between(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parse, errors = ast.parse, [SystemError("AST constructor recursion depth mismatch")] * 2

    def failing(text: str) -> ast.Module:
        if errors:
            raise errors.pop()
        return parse(text)

    (tmp_path / "test_one.py").write_text('def test_one():\n    """It is."""\n')
    monkeypatch.setattr(ast, "parse", failing)

    assert docstring(tmp_path, "test_one.py::test_one") == "It is."
    assert errors == []
