"""The blocking classes are what the async ones give; `make lint` finds a file that is stale."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from tools import blocking

# Async classes whose blocking twin is written by hand, or that have none; see decision 59.
BY_HAND = {
    "AsyncAdminPart", "AsyncNodePools", "AsyncPool", "AsyncTransport",
}  # fmt: skip


def async_classes(path: Path) -> set[str]:
    body = ast.parse(path.read_text()).body
    names = [node.name for node in body if isinstance(node, ast.ClassDef)]
    return {name for name in names if name.startswith("Async")}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A tree with the sources and the generated files."""
    for module in blocking.SOURCES:
        source = blocking.path_of(module)
        (tmp_path / source).parent.mkdir(parents=True, exist_ok=True)
        for path in (source, source.with_name(f"{source.stem}_blocking.py")):
            shutil.copy(blocking.ROOT / path, tmp_path / path)
    return tmp_path


@pytest.mark.slow  # `make lint` checks them as well
def test_the_committed_files_are_what_their_sources_give(copy: Path) -> None:
    assert blocking.main(["--check"], copy) == 0


@pytest.mark.parametrize("changed", ["admin.py", "admin_blocking.py"])
def test_a_stale_file_is_found_and_written_anew(
    copy: Path,
    changed: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = ("rmq.features.workers.admin", "rmq.features.tokens.admin")  # all take 10 s
    monkeypatch.setattr(blocking, "SOURCES", sources)
    folder = copy / "rmq/features/workers"
    path = folder / changed
    path.write_text(path.read_text().replace("self._prefix", "self._other"))

    assert blocking.main(["--check"], copy) == 1
    assert "rmq/features/workers/admin_blocking.py: stale" in capsys.readouterr().out
    assert blocking.main([], copy) == 0
    assert blocking.main(["--check"], copy) == 0
    used = "self._other" if changed == "admin.py" else "self._prefix"
    assert used in (folder / "admin_blocking.py").read_text()


def test_every_async_class_is_a_source_or_known_to_be_written_by_hand() -> None:
    sources = {blocking.ROOT / blocking.path_of(module) for module in blocking.SOURCES}
    others = {*(blocking.ROOT / "rmq").rglob("*.py")} - sources

    assert set().union(*map(async_classes, others)) == BY_HAND
    assert all(map(async_classes, sources))


def test_code_comments_and_docstrings_lose_what_is_of_asyncio() -> None:
    text = '''
class AsyncReader(AsyncPart):
    """Reads. Made by `AsyncClient.reader`, for `async with`; tasks share it, and await."""

    async def read(self, url: str) -> AsyncIterator[str]:
        async with self._lock:
            yield await self._run(url)  # as `AsyncReader.lock` awaits it

    async def __aenter__(self) -> AsyncReader:
        return self
'''

    assert (
        blocking.without_asyncio(text.lstrip())
        == '''
class Reader(Part):
    """Reads. Made by `Client.reader`, for `with`; threads share it, and await."""

    def read(self, url: str) -> Iterator[str]:
        with self._lock:
            yield self._run(url)  # as `Reader.lock` awaits it

    def __enter__(self) -> Reader:
        return self
'''.lstrip()
    )
