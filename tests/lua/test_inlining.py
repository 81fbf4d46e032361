"""A script does the same with its inline functions in place and with functions that it calls."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.transport import inlining, scripts
from rmq.kernel.transport.steps import Command
from tests.lua.box import Box, case
from tests.lua.calls import CALLS, REACHING, Call


def plain(verb: str) -> str:
    """The text of a script that calls its inline functions."""
    return scripts.pruned(inlining.called(scripts.composed(verb)))


def outcome(box: Box, command: Command[Any], text: str) -> Any:
    """The reply of a text or its error, and the state of the slot after it."""
    try:
        reply = box.redis.eval(text, len(command.keys), *command.keys, *command.args)
    except redis.ResponseError as error:
        reply = str(error).partition(" script:")[0]
    return reply, box.state()


def compare(box: Box, command: Command[Any]) -> None:
    """Run both texts of a command on the same keys, and expect the same of them."""
    if command.write:
        box.redis.execute_command(*command.write)
    before = {key: box.redis.dump(key) for key in command.keys}

    called = outcome(box, command, plain(command.script.name))
    for key, content in before.items():
        if content is None:
            box.redis.delete(key)
        else:
            box.redis.restore(key, 0, content, replace=True)
    placed = outcome(box, command, command.script.text)

    assert placed == called


def one_message(box: Box) -> Box:
    box.one()
    return box


SINGLE = {
    "send": lambda box: box.send_command(box.ids()),
    "prepare": lambda box: consumer_scripts.prepare(
        box.keys, one_message(box).session(), 1, 30_000, True
    ),
    "ack": lambda box: box.ack_command([one_message(box).take_one()], box.session()),
}


@pytest.mark.parametrize("verb", scripts.names())
def test_script_does_the_same_with_inline_functions_in_place_or_called(anew, verb):
    calls: list[tuple[Any, Call]] = [(verb, CALLS[verb])]
    calls += [(place, call) for place, call in REACHING.items() if place[0] == verb]
    for place, call in calls:
        with case(place):
            furnished = anew()

            compare(furnished.box, call(furnished))


@pytest.mark.parametrize("verb", SINGLE)
def test_script_of_one_message_does_the_same_either_way(box, verb):
    compare(box, SINGLE[verb](box))


def test_every_inline_function_is_in_place_in_every_script():
    for verb in scripts.names():
        with case(verb):
            composed = scripts.composed(verb)
            loaded = scripts.load(verb).text

            for name in inlining.names(composed):
                assert f"function {name}(" not in loaded
