"""All that a user can name is in the files here, and a change of it is made on purpose."""

from __future__ import annotations

import sys

import pytest

import rmq
from tests.golden import surface


@pytest.mark.parametrize("file", surface.FILES)
def test_names_operations_and_commands_are_those_of_the_files(file: str) -> None:
    if file == "python.txt" and sys.version_info[:2] != (3, 11):
        pytest.skip("other versions of Python print signatures in other words")
    written = (surface.FOLDER / file).read_text()

    assert surface.text_of(file).splitlines() == written.splitlines(), (
        "if that is on purpose: python -m tests.golden.surface, and a line in the changelog"
    )


def test_a_parameter_that_goes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""

    def purge(self: rmq.Admin, topic: str) -> int:
        return 0

    monkeypatch.setattr(rmq.Admin, "purge", purge)

    written = (surface.FOLDER / "python.txt").read_text()
    assert surface.text_of("python.txt") != written
