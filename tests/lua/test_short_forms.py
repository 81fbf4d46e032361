"""The short form of a script for one message does what its long form does."""

from __future__ import annotations

import pytest

from rmq.kernel.transport import scripts
from tests.lua.both_ways import compare
from tests.lua.single import COMMANDS, ack, send, take

SHORT = "if known and "  # how a short form begins: it is for sessions that go on


def without_short_form(verb: str) -> str:
    text = scripts.load(verb).text
    assert text.count(SHORT) >= 1
    return text.replace(SHORT, "if false and ", 1)


@pytest.mark.parametrize("build", COMMANDS.values(), ids=COMMANDS.keys())
def test_short_form_does_what_the_long_form_does(box, build):
    for _ in range(18):  # the 16th goes another way, and one take in five
        command = build(box)

        compare(box, command, without_short_form(command.script.name))


@pytest.mark.parametrize("build", COMMANDS.values(), ids=COMMANDS.keys())
def test_each_of_these_commands_takes_the_short_form(box, build):
    command = build(box)
    short, long = command.script.text.split("\nlocal function fail(", 1)

    assert long
    text = f"{short}\nerror('the long form')"
    box.redis.eval(text, len(command.keys), *command.keys, *command.args)


@pytest.mark.parametrize("verb", ["send", "prepare", "ack"])
def test_control_a_short_form_that_differs_is_noticed(box, verb):
    broken = without_short_form(verb).replace(
        "redis.call('HSET', slot,", "redis.call('HSET', slot, 'x', 1,"
    )
    command = {"send": send(), "prepare": take(1), "ack": ack}[verb](box)

    with pytest.raises(AssertionError):
        compare(box, command, broken)
