"""The examples of docs/testing.md, run as a user would: a module and a test file, by pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("backend", ["embedded", pytest.param("fakeredis", marks=pytest.mark.slow)])
def test_examples_of_the_guide_run(tmp_path: Path, backend: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/testing.md").read_text(), re.DOTALL)
    shop, tests = blocks[0], "\n".join(blocks[1:])
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "test_shop.py").write_text(tests)
    (tmp_path / "conftest.py").write_text(
        "import functools, rmq.testing\n"
        f"rmq.testing.Broker = functools.partial(rmq.testing.Broker, {backend!r})\n"
    )

    ran = _pytest(tmp_path, "-W", "error")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{tests.count('def test_')} passed" in ran.stdout


@pytest.mark.slow
def test_plugin_brings_a_fixture_also_to_parallel_runs(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["rmq.testing.plugin"]\n')
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(8))\n"
        "def test_alone(rmq_broker, n):\n"
        "    rmq_broker.client.topic('t').send(n)\n"
        "    assert [one.body for one in rmq_broker.sent('t')] == [n]\n"
    )

    ran = _pytest(tmp_path, "-p", "xdist", "-n", "2", "-W", "error")

    assert "8 passed" in ran.stdout, ran.stdout + ran.stderr


def _pytest(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *options,
            str(directory),
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        timeout=280,
    )
