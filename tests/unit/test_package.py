"""The source files: what they may import and call, and how long they are."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


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


def test_no_file_is_longer_than_500_lines() -> None:
    files = [*ROOT.glob("rmq/**/*.py"), *ROOT.glob("lua/**/*.lua"), *ROOT.glob("bench/*.py")]
    assert len(files) > 60
    assert [str(p) for p in files if len(p.read_text().splitlines()) > 500] == []
