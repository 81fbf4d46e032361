"""The page about types: mypy accepts its example, and finds exactly the mistakes that it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.pages import blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "typing.md"


def checked(folder: Path, name: str) -> list[str]:
    """Return what mypy reports about a file of the page."""
    found = list(blocks(PAGE.read_text()))
    for block in found:
        if block.kind.startswith("python "):
            file = folder / block.kind.removeprefix("python ")
            file.write_text("\n".join(block.lines) + "\n")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-pretty"]
    mypy += ["--config-file=", f"--cache-dir={ROOT / '.mypy_cache' / 'page'}", name]
    done = subprocess.run(mypy, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.slow  # mypy reads all modules of rmq, 4 s of a core without its cache
def test_mypy_accepts_the_example_and_finds_the_mistakes(tmp_path: Path) -> None:
    errors = next(b.lines for b in blocks(PAGE.read_text()) if b.kind == "text")

    assert checked(tmp_path, "shop.py") == []
    assert checked(tmp_path, "mistakes.py") == errors


def test_the_package_has_the_marker_of_types() -> None:
    assert (ROOT / "rmq" / "py.typed").is_file()
    assert (ROOT / "spark_connector" / "py.typed").is_file()
