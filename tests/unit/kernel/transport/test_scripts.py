"""The composed texts of scripts are kept between processes, and follow each edit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq.kernel.transport import scripts

ROOT = Path(__file__).parents[4]
CACHES = (scripts.directory, scripts.load, scripts._body)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout of our own, from which the loader reads."""
    shutil.copytree(ROOT / "lua", tmp_path / "lua")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for each in CACHES:
        each.cache_clear()
    monkeypatch.setattr(scripts, "directory", lambda: tmp_path / "lua")
    yield tmp_path
    monkeypatch.undo()
    for each in CACHES:
        each.cache_clear()


def in_next_process(name: str) -> scripts.Script:
    scripts.load.cache_clear()
    scripts._body.cache_clear()
    return scripts.load(name)


def test_the_next_process_composes_nothing(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = scripts.load("send")
    monkeypatch.setattr(scripts, "final_text", lambda name: pytest.fail("composed again"))

    again = in_next_process("send")

    assert (again.text, again.sha) == (first.text, first.sha)


@pytest.mark.parametrize("edited", ["send", "lib/clock"])
def test_an_edit_of_a_source_is_seen_at_once(checkout: Path, edited: str) -> None:
    before = scripts.load("send")
    path = checkout / "lua" / f"{edited}.lua"
    path.write_text(path.read_text() + "local function added() return 1 end\n")

    edited_hash = scripts._hash_of(scripts._sources("send"))

    kept = (checkout / ".rmq/scripts/send.lua").read_text().partition("\n")[0]
    assert kept != edited_hash
    in_next_process("send")
    assert (checkout / ".rmq/scripts/send.lua").read_text().startswith(edited_hash)
    assert before.name == "send"


def test_a_damaged_file_is_composed_again(checkout: Path) -> None:
    text = scripts.load("ack").text
    kept = checkout / ".rmq/scripts/ack.lua"

    for content in (b"", b"\xff", b"no hash\nack\nreturn 1", b"only one line"):
        kept.write_bytes(content)
        assert in_next_process("ack").text == text


def test_without_a_place_to_write_each_process_composes(checkout: Path) -> None:
    (checkout / ".rmq").write_text("a file where the directory would be")

    assert scripts.load("ack").text == scripts.final_text("ack")


def test_a_wheel_uses_the_texts_that_it_carries(checkout: Path) -> None:
    composed = checkout / "lua" / scripts.COMPOSED
    composed.mkdir()
    (composed / "ack.lua").write_text("return 'carried'")

    assert scripts.load("ack").text == "return 'carried'"
