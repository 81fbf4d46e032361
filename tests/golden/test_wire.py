"""The bytes that leave a client are those of the file: a change of them is made on purpose."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.kernel.transport.flow.steps import Command
from tests.golden.scenarios import SCENARIOS
from tests.golden.wire import Scene, record
from tests.golden.wire_file import title, written
from tests.servers import Server

ON_PURPOSE = "if that is on purpose: python -m tests.golden.wire_file, and say why in the commit"


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_commands_are_those_of_the_file(name: str, kind: str, server: Server) -> None:
    assert record(SCENARIOS[name], server, kind) == written()[title(name)], ON_PURPOSE


def test_the_file_has_every_scenario_once_and_no_other() -> None:
    assert list(written()) == [title(name) for name in SCENARIOS], ON_PURPOSE


def _differences(now: list[str], before: list[str]) -> list[tuple[str, str]]:
    return [lines for lines in zip(now, before, strict=True) if lines[0] != lines[1]]


def test_another_value_of_an_argument_is_noticed(server: Server) -> None:
    """A control of the first test."""

    def other_priority(scene: Scene) -> None:
        topic = scene.opened()
        topic.send(1, priority=900)
        topic.send(2, priority=18)

    now = record(other_priority, server)

    ((line, before),) = _differences(now, written()[title("send_with_priority")])
    assert before.replace("\\x11", "\\x12") == line


def test_an_argument_more_is_noticed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control of the first test: one script is called in another way."""
    make = Command.__init__

    def __init__(self: Command[Any], *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        if self.script.name == "stats":
            self.args = [*self.args, "more"]

    monkeypatch.setattr(Command, "__init__", __init__)

    now = record(SCENARIOS["look_at_topics"], server)

    differences = _differences(now, written()[title("look_at_topics")])
    assert differences
    assert all(line == f"{before} more" for line, before in differences)
