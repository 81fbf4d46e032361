"""The source files: imports and calls that are forbidden, their length, and their unit tests."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("no_finalizers")
def test_no_module_pickles_or_evaluates() -> None:
    banned = {"pickle", "marshal", "shelve", "yaml", "dill", "cloudpickle"}
    paths = [*ROOT.glob("rmq/**/*.py"), *ROOT.glob("spark_connector/**/*.py")]
    assert len(paths) > 100
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.split(".")[0] for alias in node.names}
                assert not banned & (names | {(getattr(node, "module", "") or "").split(".")[0]}), (
                    path
                )
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile", "__import__"), path


# Files that are still too long. The test compares: one that has become shorter must leave the list.
LONG = ["tests/property/machine.py"]


def test_no_file_is_longer_than_500_lines() -> None:
    files = [*ROOT.glob("rmq/**/*.py"), *ROOT.glob("lua/**/*.lua"), *ROOT.glob("bench/*.py")]
    tests = [*ROOT.glob("tests/**/*.py")]
    assert len(files) > 60
    assert len(tests) > 200

    too_long = [path for path in files + tests if len(path.read_text().splitlines()) > 500]

    assert [str(path.relative_to(ROOT)) for path in too_long] == LONG


# Tests that compare the sync and async classes of a whole package.
PAIRS = {"client/test_pairs.py", "transport/test_twins.py"}


def test_each_folder_of_unit_tests_mirrors_a_package() -> None:
    unit = Path(__file__).parent
    packages = {path.parent.name for path in ROOT.glob("rmq/*/__init__.py")}
    strays = [
        str(test.relative_to(unit))
        for package in packages
        for test in (unit / package).rglob("test_*.py")
        if not _module_of(test.relative_to(unit)).exists()
    ]

    assert [name for name in sorted(packages) if not (unit / name).is_dir()] == []
    assert sorted(strays) == sorted(PAIRS)


def _module_of(test: Path) -> Path:
    """Return the module that a test file is named after."""
    return ROOT / "rmq" / test.parent / test.name.removeprefix("test_")
