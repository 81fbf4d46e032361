"""The configuration file: which one is read, and what is wrong with it."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from rmq.cli_framework import config_file
from rmq.errors import ConfigurationError


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The places where a file is looked for, the first one first; none is there yet."""
    found = [tmp_path / f"{n}.toml" for n in range(3)]
    monkeypatch.setattr(config_file, "FILES", tuple(map(str, found)))
    return found


def test_without_a_file_nothing_is_known(files: list[Path]) -> None:
    assert config_file.read_where({}) == {}
    assert config_file.read_file(None) == (None, {})


def test_the_first_file_is_read_and_one_that_is_named_instead(
    files: list[Path], tmp_path: Path
) -> None:
    files[2].write_text('url = "redis://third"')
    assert config_file.read_where({}) == {"url": "redis://third"}
    files[0].mkdir()
    files[1].write_text('prefix = "second"\n[server]\nlisten = "x:1"\n')
    assert config_file.read_where({}) == {"prefix": "second"}
    named = tmp_path / "named.toml"
    named.write_text('url = "redis://named"')

    assert config_file.read_where({"RMQ_CONFIG": str(named)}) == {"url": "redis://named"}


def test_a_file_of_others_is_passed_over_by_commands_and_stops_a_server(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files[1].write_text('url = "redis://secret"')
    files[2].write_text('url = "redis://mine"')
    open_file = builtins.open

    def refuse(path: Any, *args: Any, **named: Any) -> Any:
        if path == str(files[1]):
            raise PermissionError(13, "Permission denied")
        return open_file(path, *args, **named)

    monkeypatch.setattr(builtins, "open", refuse)

    assert config_file.read_where({}) == {"url": "redis://mine"}
    with pytest.raises(ConfigurationError, match=r"1\.toml: cannot be read: Permission denied"):
        config_file.read_file(None)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        config_file.read_where({"RMQ_CONFIG": str(files[1])})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('ulr = "redis://x"', "ulr: unknown setting"),
        ("url = 7", "url: 7 is not text; put it in quotes"),
        ('prefix = "a b"', "prefix"),
        ("url", "is not TOML"),
    ],
)
def test_a_slip_of_the_pen_is_an_error(files: list[Path], text: str, problem: str) -> None:
    files[0].write_text(text)
    with pytest.raises(ConfigurationError, match=rf"0\.toml: {problem}"):
        config_file.read_where({})
