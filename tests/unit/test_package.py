"""The source files: imports and calls that are forbidden, their length, and their unit tests."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("no_finalizers")
def test_no_module_pickles_or_evaluates() -> None:
    banned = {"pickle", "marshal", "shelve", "yaml", "dill", "cloudpickle"}
    calls = {"eval", "exec", "compile", "__import__"}
    words = re.compile("|".join(banned | calls))
    paths = [*ROOT.glob("rmq/**/*.py"), *ROOT.glob("spark_connector/**/*.py")]
    assert len(paths) > 100
    for path in paths:
        if not words.search(text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.split(".")[0] for alias in node.names}
                assert not banned & (names | {(getattr(node, "module", "") or "").split(".")[0]}), (
                    path
                )
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in calls, path


def test_no_file_is_longer_than_600_lines() -> None:
    files = [*ROOT.glob("rmq/**/*.py"), *ROOT.glob("lua/**/*.lua"), *ROOT.glob("bench/*.py")]
    tests = [*ROOT.glob("tests/**/*.py")]
    assert len(files) > 60
    assert len(tests) > 200

    too_long = [path for path in files + tests if len(path.read_text().splitlines()) > 600]

    assert [str(path.relative_to(ROOT)) for path in too_long] == []


# Tests that compare the sync and async classes of a whole package.
PAIRS = {"client/test_pairs.py", "kernel/transport/test_twins.py"}


def test_each_folder_of_unit_tests_mirrors_a_package() -> None:
    unit = Path(__file__).parent
    tests = [
        test.relative_to(unit)
        for package in ROOT.glob("rmq/*/__init__.py")
        for test in (unit / package.parent.name).rglob("test_*.py")
    ]

    assert len(tests) > 50
    assert sorted(str(test) for test in tests if not _has_module(test)) == sorted(PAIRS)


def _has_module(test: Path) -> bool:
    """Whether a module has the name of a test file, or the name up to one of its underscores."""
    words = test.stem.split("_")[1:]
    folder = ROOT / "rmq" / test.parent
    return any((folder / f"{'_'.join(words[:n])}.py").exists() for n in range(len(words), 0, -1))
